"""`simrank kernels`: what is emulated, and what the lines of kernels did."""

import sys

import pytest
from typer.testing import CliRunner

from simrank.cli import app, main

pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

from simrank.kernels.source import names  # noqa: E402 - it needs triton

SCRIPT = """
import triton, triton.language as tl

@triton.jit
def copy(x, y, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + offs, tl.load(x + offs, mask=offs < n), mask=offs < n)

def go(ctx):
    x, y = ctx.ones(1000), ctx.empty(1000)
    ctx.launch(copy, (4,), x, y, 1000, BLOCK=256)
    assert y.sum().item() == 1000

def other(what):
    pass
"""


@pytest.fixture
def script(tmp_path):
    """A file with a kernel and functions that launch it."""
    path = tmp_path / "kernels_of_mine.py"
    path.write_text(SCRIPT)
    return path


def command(capsys, *args):
    """Run `simrank kernels report`; return status, output and errors."""
    with pytest.raises(SystemExit) as caught:
        main(["kernels", "report", *args])
    captured = capsys.readouterr()
    return caught.value.code, captured.out, captured.err


def test_the_report_shows_the_source_beside_what_lines_did(script, capsys):
    """As text."""
    code, out, _ = command(capsys, f"{script}::go")
    assert code == 0
    assert "copy: 1 launch(es), 4 programs" in out
    (line,) = [line for line in out.splitlines() if "tl.store" in line]
    assert "8000 B" in line
    assert "2.3%" in line


def test_the_report_is_a_page_where_asked(script, tmp_path, capsys):
    """With a bar for each line that takes time, and the roofline."""
    page = tmp_path / "report.html"
    assert command(capsys, f"{script}::go", "--html", str(page))[0] == 0
    text = page.read_text()
    assert "tl.store(y + offs" in text
    assert 'class="bars"' in text


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nowhere.py::go", "expected a Python file"),
        ("{}::missing", "expected a function of"),
        ("{}::other", "a function with only the arguments ctx, rank, world_size"),
        ("{}", "a program that launches kernels"),
    ],
)
def test_a_target_that_is_none_is_a_usage_error(script, capsys, target, message):
    """Exit status 2."""
    code, _, err = command(capsys, target.format(script))
    assert code == 2
    assert message in err


@pytest.mark.parametrize("wrong", ["1 / 0\n", "def go(:\n", "import nothing_of_the_kind\n"])
def test_a_file_that_raises_fails_with_its_own_traceback(script, capsys, wrong):
    """Status 1, and no word of simrank's; where modules are looked for is as before."""
    before = list(sys.path)
    script.write_text(f"{wrong}\ndef go(ctx):\n    pass\n")
    for target in (f"{script}::go", str(script)):
        code, _, err = command(capsys, target)
        assert code == 1
        assert f'{script}", line 1' in err
        assert "bug in simrank" not in err
    assert sys.path == before


pytest.importorskip("triton")


def test_the_command_counts_the_names():
    """The last line is the sum."""
    found = CliRunner().invoke(app, ["kernels", "coverage"])
    absent = (names.MISSING, names.REFUSED_BY_NAME)
    num_covered = sum(state not in absent for state in names.coverage().values())
    assert f"{num_covered} of {len(tl.__all__)} names" in found.output
