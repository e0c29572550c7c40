"""Reports of hanging programs name, by themselves, the line at which ranks diverged."""

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from . import hanging_programs as programs

FAST = ("a rank skips a collective", "a swallowed exception")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n not in FAST)) for n in programs.PROGRAMS]
)
def test_the_report_names_the_line_at_which_ranks_diverged(name, tmp_path, cli):
    """Without an option: a second run finds it."""
    path = tmp_path / "program.py"
    path.write_text(programs.PROGRAMS[name])
    status, _, err = cli("run", "--nproc-per-node", 4, "--summary", "none", path)
    assert status == 1
    assert f"diverged at program.py:{programs.line_of(programs.PROGRAMS[name])} " in err
