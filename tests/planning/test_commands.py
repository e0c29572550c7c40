"""Commands in processes that a fork server starts, as users would start them."""

import signal
import threading
import time
from multiprocessing.context import ForkServerProcess

import pytest

from simrank.planning import commands
from simrank.planning.commands import ForkedCommands

SHOWS = """
import atexit, os, sys
from pathlib import Path

print("dropped")
stdin, kept = sys.stdin.read(), open("kept", "w")
kept.write("kept")  # Open at the end.
atexit.register(Path("at_exit").write_text, "called")
Path("seen").write_text(f"{sys.argv} {stdin!r} {os.getcwd()}")
"""


@pytest.fixture(name="program")
def fixture_program(tmp_path):
    """Write a program that shows what it sees."""
    (tmp_path / "program.py").write_text(SHOWS)
    return tmp_path / "program.py"


def run(program, *words):
    """Run it in its folder on one rank."""
    running = ForkedCommands(program)
    given = ["run", "--nproc-per-node", "1", "--summary", "json", "program.py", *words]
    return running.run(given, program.parent)


def without_server(monkeypatch):
    """Let no process start by a fork server."""

    def start(self):
        raise BrokenPipeError

    monkeypatch.setattr(ForkServerProcess, "start", start)


@pytest.mark.parametrize("has_server", [True, False])
def test_a_command_is_as_if_a_user_had_started_it(program, monkeypatch, has_server):
    """Its arguments, folder and files, and what it does at its end."""
    if not has_server:
        without_server(monkeypatch)
    ended = run(program, "word")
    assert ended.status == 0, ended.said
    assert ended.said.splitlines()[-1].startswith('{"constants"')
    assert (program.parent / "seen").read_text() == f"['program.py', 'word'] '' {program.parent}"
    found = [(program.parent / name).read_text() for name in ("kept", "at_exit")]
    assert found == ["kept", "called"]


def test_one_command_leaves_nothing_for_the_next(program):
    """Modules, variables of the environment and attributes of modules."""
    program.write_text(
        "import math, os, sys\nassert 'HERE' not in os.environ and not hasattr(math, 'mine')\n"
        "assert 'wave' not in sys.modules\nimport wave\nos.environ['HERE'], math.mine = '1', 2\n"
    )
    for _ in range(2):
        ended = run(program)
        assert ended.status == 0, ended.said


def test_a_machine_on_which_no_server_starts_runs_commands_all_the_same(program, monkeypatch):
    """As one without a folder for its socket."""

    def fail():
        raise FileNotFoundError

    monkeypatch.setattr(commands.forkserver, "ensure_running", fail)
    assert run(program, "word").status == 0
    assert (program.parent / "at_exit").read_text() == "called"


@pytest.mark.parametrize("has_server", [True, False])
def test_statuses_and_signals_are_those_of_the_command(program, monkeypatch, has_server):
    """A failure's report and status; a kill is negative, as of `subprocess`."""
    if not has_server:
        without_server(monkeypatch)
    program.write_text("raise ValueError('bad batch')\n")
    failed = run(program)
    assert failed.status == 1
    assert "ValueError: bad batch" in failed.said
    program.write_text("import ctypes\nctypes.CDLL(None)['raise'](9)\n")
    assert run(program).status == -signal.SIGKILL
    assert ForkedCommands(program).run(["run", "none.py"], program.parent).status == 2


def test_commands_run_at_once_in_threads(program):
    """Each with its own output."""
    program.write_text("import sys\nprint(sys.argv[1], file=sys.stderr)\n")
    said = {}

    def call(word):
        said[word] = run(program, word).said

    threads = [threading.Thread(target=call, args=(f"word{n}",)) for n in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert all(word in text and text.count("word") == 1 for word, text in said.items())
    assert len(said) == 3


def test_those_that_run_end_with_an_error_of_who_waits(program):
    """As at Ctrl-C."""
    program.write_text("from pathlib import Path\nPath('begun').touch()\nwhile True: pass\n")
    running, found = ForkedCommands(program), []
    words = ["run", "--nproc-per-node", "1", "program.py"]
    waiting = threading.Thread(target=lambda: found.append(running.run(words, program.parent)))
    waiting.start()
    with pytest.raises(KeyboardInterrupt), running.ended():
        while not (program.parent / "begun").exists():
            time.sleep(0.01)
        raise KeyboardInterrupt
    waiting.join()
    assert found[0].status == -signal.SIGKILL


def test_the_modules_of_torch_that_a_program_names_are_imported_once(tmp_path):
    """And of ours those of torch's programs, only for these."""
    path = tmp_path / "train.py"
    path.write_text(
        "import torch.nn as nn\ndef f():\n    from torch.optim import SGD\n# torch.fx\n"
    )
    named = commands.preloaded(path)
    assert {"torch.nn", "torch.optim", "simrank.torch.groups.group"} <= {*named}
    assert "torch.fx" not in named
    path.write_text("import simrank\n")
    assert not [name for name in commands.preloaded(path) if "torch" in name]
    assert commands.preloaded(tmp_path / "none.py") == commands.preloaded(path)
