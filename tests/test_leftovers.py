"""Contexts leave the standard library as it was: each name, descriptor, object, flag and handler.

That of torch is held by `torch/test_install.py`. Programs of `leftovers.py` reach torch, so that
those of a file that imports it run on threads where another test has imported torch.
"""

import gc
import os
import sys

import pytest

from simrank.engine import collector
from tests import leftovers

MODULES = (
    "builtins", "datetime", "functools", "locale", "logging", "multiprocessing", "os", "queue",
    "random", "signal", "socket", "subprocess", "sys", "tempfile", "threading", "time", "warnings",
)  # fmt: skip


def test_contexts_leave_the_standard_library_as_it_was():
    """One whose ranks set names, one that fails, and one in another one that is interrupted."""
    programs = [leftovers.sets_names, leftovers.fails, leftovers.is_interrupted]
    leftovers.run_all(3, programs)  # Python's own caches are filled.
    collector.thaw()
    gc.collect()  # What other tests have left.
    before = leftovers.Snapshot(tops=MODULES)
    ends = leftovers.run_all(3, programs)
    assert before.changes(leftovers.Snapshot(tops=MODULES)) == {}
    assert list(ends.values()) == [[None], ["SpawnException"], ["KeyboardInterrupt"]]


@pytest.mark.slow
def test_fifty_contexts_leave_the_standard_library_as_it_was(monkeypatch, tmp_path):
    """Nested, failed and interrupted ones, and such that cannot be entered, are among them."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    changes, ends = leftovers.changes_of(tmp_path, 50)
    assert changes == {}
    assert set(ends["waits"]) == set(ends["sets_names"]) == {None}
    assert set(ends["starts_threads"]) == {"SpawnException", None}
    assert set(ends["enters"]) == set(ends["fails"]) == {"SpawnException"}
