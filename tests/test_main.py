"""The command's own entry."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from simrank import cli
from simrank.__main__ import main
from simrank.cli import common
from simrank.cli.common import COMMANDS


class _Interrupts:
    """Ctrl-C while the command line is loaded."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        del path, target
        if name == "simrank.cli":
            raise KeyboardInterrupt


def test_ctrl_c_while_the_command_is_loaded_ends_it_without_a_traceback(monkeypatch):
    """With the status that shells give to it."""
    monkeypatch.delitem(sys.modules, "simrank.cli", raising=False)
    monkeypatch.setattr(sys, "meta_path", [_Interrupts, *sys.meta_path])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 130


def test_the_command_runs(monkeypatch, capsys):
    """As it does from the shell."""
    monkeypatch.setattr(sys, "argv", ["simrank", "--version"])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("simrank ")


def test_output_of_closed_streams_is_discarded(monkeypatch):
    """`simrank clusters >&- 2>&-` ends as with open streams."""
    monkeypatch.setattr(sys, "argv", ["simrank", "clusters"])
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    with pytest.raises(SystemExit) as caught:
        main()
    found = [(stream.name, stream.close()) for stream in (sys.stdin, sys.stdout, sys.stderr)]
    assert (caught.value.code, found) == (0, [(os.devnull, None)] * 3)


@pytest.mark.slow
def test_a_closed_stream_does_not_become_a_file(tmp_path):
    """What is written to descriptor 1 does not reach a file that the command opens."""
    program, table = tmp_path / "writes.py", tmp_path / "trace.json"
    program.write_text("import os\nos.write(1, b'x' * 100)\n")
    words = [sys.executable, "-m", "simrank", "run", "--trace", str(table), str(program)]
    done = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *words], check=False)
    assert done.returncode == 0
    assert "xxx" not in table.read_text()


HEAVY = {"numpy", "yaml", "rich.progress", "simrank.bench", "simrank.context"}


ANSWERS = [
    (["--version"], "simrank "),
    (["--help"], "  bench "),
    (["b", "COMPLETE"], "bench"),
    (["run", "--clu", "COMPLETE"], "--cluster"),
    (["run", "--cluster", "hgx_h1", "COMPLETE"], "hgx_h100"),
    (["bench", "all_r", "COMPLETE"], "all_reduce"),
    (["kernels", "check", "--c", "COMPLETE"], "--cluster"),
]


@pytest.mark.parametrize(("words", "answer"), ANSWERS)
def test_version_help_and_completion_import_no_command(words, answer):
    """They answer at once: they are what a prompt waits for."""
    completes = words[-1] == "COMPLETE"
    typed = words[:-1] if completes else words
    asks = {
        "COMP_WORDS": " ".join(["simrank", *typed]), "COMP_CWORD": str(len(typed)),
        "_SIMRANK_COMPLETE": "complete_bash",
    }  # fmt: skip
    program = (
        "import sys, atexit\n"
        "atexit.register(lambda: print(sorted(sys.modules), file=sys.stderr))\n"
        f"sys.argv = ['simrank', *{[] if completes else typed}]\n"
        "from simrank.__main__ import main\nmain()"
    )
    command = [sys.executable, "-c", program]
    environment = dict(os.environ) | (asks if completes else {})
    out = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    imported = set(ast.literal_eval(out.stderr.splitlines()[-1]))
    assert HEAVY & imported == set()
    assert not {f"simrank.cli.{name}" for name in COMMANDS} & imported
    assert answer in out.stdout


GROUPS = {"kernels", "torch"}


def test_each_command_is_found_in_the_module_that_the_table_names():
    """A command that the table lacks would be found by nobody."""
    defined = {
        name or function
        for path in Path(common.__file__).parent.glob("*.py")
        for name, function in re.findall(
            r'@app\.command\((?:"([\w-]+)")?(?s:.*?)\ndef (\w+)\(', path.read_text()
        )
    }
    assert {name.removesuffix("_command") for name in defined} | GROUPS == COMMANDS.keys()


def test_a_misspelt_command_is_answered_with_the_name(capsys):
    """As typer does."""
    with pytest.raises(SystemExit) as caught:
        cli.main(["bnech"])
    assert caught.value.code == 2
    assert "Did you mean 'bench'?" in capsys.readouterr().err


# Rooms that a program's run does not need; `cli` and `pytest_plugin` load them for their commands.
LABORATORY = {
    "bench", "calibration", "diagnose", "equality", "formats", "pages", "parallel", "planning",
    "replay", "suites", "validate",
}  # fmt: skip
LISTING = """
import simrank
import simrank.distributed as dist

def work(rank=0):
    dist.init_process_group("nccl")
    x = simrank.ones(4)
    dist.all_reduce(x)
    x.tolist()

def rooms():
    import sys
    return sorted({name.split(".")[1] for name in sys.modules if name.startswith("simrank.")})
"""


@pytest.mark.parametrize("command", [[], ["-m", "simrank", "run", "--nproc-per-node", "2"]])
def test_a_run_loads_no_room_of_the_laboratory(command, tmp_path):
    """Neither `simrank run` nor a program that enters a Context."""
    own = "with simrank.Context('hgx_h100') as ctx:\n    ctx.multiprocessing.spawn(work, nprocs=2)"
    begin = "work()" if command else own
    path = tmp_path / "program.py"
    path.write_text(f"{LISTING}\n{begin}\nprint('rooms', *rooms(), flush=True)")
    done = subprocess.run(
        [sys.executable, *command, str(path)], check=True, capture_output=True, text=True
    )
    (first, *_) = re.findall(r"rooms (.*)", done.stdout)
    assert "distributed" in first
    assert not LABORATORY & set(first.split())
