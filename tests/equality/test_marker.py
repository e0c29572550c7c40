"""`@pytest.mark.equal`: a test per layout."""

import os
import shutil
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from tests.equality import programs

pytest_plugins = ["pytester"]
# pytester gives another home, where simulated devices would be built for a minute.
CACHE = os.environ.get("SIMRANK_CACHE") or str(Path.home() / ".cache" / "simrank")
BODY = """
import pytest
from nets import *
{gpt}
{tp}
@pytest.mark.equal(layouts={layouts})
def test_layouts(equal_layout):
    assert equal_layout in (0, 1)
"""


@pytest.fixture
def write(pytester, monkeypatch):
    """Write a test file whose program is its own."""
    monkeypatch.setenv("SIMRANK_CACHE", CACHE)
    shutil.copy(Path(__file__).parent / "nets.py", pytester.path)

    def write_file(name, layouts, parallel=programs.TP):
        text = BODY.format(gpt=programs.GPT, tp=parallel, layouts=layouts)
        pytester.makepyfile(**{name: text})

    return write_file


def test_each_layout_is_a_test_that_passes_or_fails_with_its_first_difference(pytester, write):
    """Its body runs where the layout equals the single program; no traceback of simrank's."""
    parallel = programs.FAULTY["a_row_parallel_bias_is_added_by_each_rank"].parallel
    write("test_right", '[{"tp": 2}, {"dp": 1, "tp": 2}], steps=1')
    write("test_wrong", '[{"tp": 2}], steps=1', parallel)
    result = pytester.runpytest_subprocess("-q", "-p", "no:cacheprovider", "-p", "no:randomly")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["FAIL tp2: forward, layers.0.mlp.down: the bias is added 2 *"])
    assert "FAILED test_wrong.py::" in result.stdout.str()
    assert "marker.py" not in result.stdout.str()


def test_layouts_that_are_written_wrongly_are_an_error_of_usage(pytester, write):
    """When tests are collected."""
    write("test_it", '[{"tp": 0}]')
    result = pytester.runpytest_inprocess("-q", "-p", "no:cacheprovider", "-p", "no:randomly")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["*layouts?0?.tp: expected a whole number from 1, got 0"])
