"""Every example runs with the command of the table in examples/README.md, and prints a result."""

import io
import json
import re
import runpy
import shlex
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from simrank.cli import main
from simrank.collectives import algorithms

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "examples"
TABLE = (FOLDER / "README.md").read_text()
COMMANDS = re.findall(r"\| `([^`]+)` \|$", TABLE, re.MULTILINE)
NEEDS = {
    "ddp_step.py": "torch", "fsdp2.py": "torch", "pipeline.py": "torch",
    "moe_all_to_all.py": "torch", "kernel_all_reduce.py": "triton",
}  # fmt: skip
# A line that each example prints.
PRINTED = {
    "ddp_step.py": r"step 15: mean loss \d",
    "fsdp2.py": r"rank 0 holds 4160 parameters",
    "pipeline.py": r"mean loss \d",
    "moe_all_to_all.py": r"rank 0 received \d+ tokens",
    "test_tp_layer.py": "4 passed",
    "kernel_all_reduce.py": r"262144 floats: kernel +\d+\.\d us, NCCL +\d+\.\d us",
    "custom_algorithm.py": r"star +1024 B +\d+\.\d us, 0 wrong elements",
    "own_cluster.py": r"16777216 B +ring +\d+\.\d us",
    "gloo_hang": r"CAUSE \(high confidence\): rank 2 made all_gather .*train.py:41.*train.py:43",
    "calibrate_and_predict.py": r" calibrated: +\d+\.\d",
}


def run(command):
    """Run a command of the table in the project's folder, in this process; return its output."""
    tool, *arguments = shlex.split(command)
    printed = io.StringIO()
    with redirect_stdout(printed):
        if tool == "simrank":
            with pytest.raises(SystemExit) as ended:
                main(arguments)
            expected = 1 if arguments[0] == "diagnose" else 0  # A hang was found.
            assert ended.value.code == expected, printed.getvalue()
        elif tool == "pytest":
            assert pytest.main([*arguments, "-q", "-p", "no:cacheprovider"]) == 0
        else:
            runpy.run_path(arguments[0], run_name="__main__")
    return printed.getvalue()


@pytest.mark.parametrize("command", [c for c in COMMANDS if not c.startswith("jupyter")])
def test_an_example_runs_with_its_command(command, monkeypatch, capfd):
    """And prints its result."""
    name = next(word for word in shlex.split(command) if word.startswith("examples/"))[9:]
    if name in NEEDS:
        pytest.importorskip(NEEDS[name], reason=f"{NEEDS[name]} is not installed")
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(algorithms, "_TABLE", dict(algorithms._TABLE))  # One registers its own.
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    printed = run(command) + capfd.readouterr().out
    assert re.search(PRINTED[name], printed, re.DOTALL), printed


def test_the_notebook_runs_from_top_to_bottom(monkeypatch):
    """Its code cells run in order; the hang is printed, not raised."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # The plot is left to readers.
    cells = json.loads((FOLDER / "notebook.ipynb").read_text())["cells"]
    names, printed = {"__name__": "__main__"}, io.StringIO()
    with redirect_stdout(printed):
        for number, cell in enumerate(cells):
            if cell["cell_type"] == "code":
                assert cell["outputs"] == [], "outputs are not committed"
                exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)  # noqa: S102 - ours
    assert "deadlock (proved)" in printed.getvalue()


def test_the_table_lists_every_example_with_a_size_to_copy():
    """Eleven examples of at most 60 lines."""
    listed = set(re.findall(r"\]\((\w+\.\w+|\w+/\w+\.\w+)\)", TABLE))
    paths = [path for path in FOLDER.rglob("*") if path.suffix in (".py", ".yaml", ".ipynb")]
    assert listed == {path.relative_to(FOLDER).as_posix() for path in paths}
    assert len(COMMANDS) == 11
    assert all(len(path.read_text().splitlines()) <= 60 for path in FOLDER.rglob("*.py"))
