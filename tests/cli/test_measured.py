"""Measured times that the command line names."""

import io
import re
from pathlib import Path

import pytest

from simrank.cli.measured import STDIN, texts_of
from simrank.config import configs_dir
from simrank.errors import ConfigError

BENCH = Path(__file__).parents[1] / "bench"
JSON = BENCH / "nccl_tests" / "all_reduce.json"
INSPECTOR = BENCH / "inspector" / "documented.json"


def test_words_are_tables_files_or_standard_input(monkeypatch):
    """Each text stands under the name of its file."""
    monkeypatch.setattr("sys.stdin", io.StringIO("pasted"))
    name = "h100x8_aws_p5_allreduce"
    texts = texts_of([name, str(JSON), "-"])
    table = configs_dir() / "measured" / f"{name}.csv"
    assert texts == {str(table): table.read_text(), str(JSON): JSON.read_text(), STDIN: "pasted"}


@pytest.mark.parametrize(
    ("stdin", "got"),
    [(None, "there is none"), (io.TextIOWrapper(io.BytesIO(b"a\xff"), "utf-8"), "at offset 1")],
)
def test_a_standard_input_that_cannot_be_read_is_said(monkeypatch, stdin, got):
    """Closed, or of bytes that are no text."""
    monkeypatch.setattr("sys.stdin", stdin)
    with pytest.raises(ConfigError, match=got):
        texts_of(["-"])


@pytest.mark.parametrize("command", ["accuracy", "calibrate"])
def test_both_commands_read_every_format_from_files_and_standard_input(cli, command, monkeypatch):
    """What nccl-tests and the Inspector wrote, with the ranks of each."""
    status, out, err = cli(command, JSON, "--cluster", "h100_ib")
    assert (status, err) == (0, "")
    assert re.search(r" all_reduce +8 ", out)
    monkeypatch.setattr("sys.stdin", io.StringIO(INSPECTOR.read_text()))
    status, out, err = cli(command, "-", "--cluster", "h100_ib")
    assert (status, err) == (0, "")
    assert re.search(r" all_reduce +8 ", out)
    assert re.search(r" reduce_scatter +32 ", out)


@pytest.mark.parametrize("command", ["accuracy", "calibrate"])
def test_a_broken_file_is_status_2_with_its_line(cli, command, tmp_path):
    """And no traceback."""
    path = tmp_path / "cut.json"
    path.write_text(JSON.read_text()[:500])
    status, _, err = cli(command, path, "--cluster", "h100_ib")
    assert status == 2
    assert err.startswith(f"{path}:1: expected JSON, got ")


def test_what_nccl_tests_does_not_say_may_be_said_to_both(cli, monkeypatch):
    """`accuracy` takes the options that its messages name, as `calibrate` does."""
    line = "  1048576  262144  float  sum  -1  45.0  0.02  0.04  0\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(line))
    status, out, _ = cli(
        "accuracy", "-", "--cluster", "hgx_h100", "--collective", "all_gather", "-g", "8"
    )
    assert status == 0
    assert out.splitlines()[1].split()[:5] == ["standard", "input", "hgx_h100", "all_gather", "8"]
