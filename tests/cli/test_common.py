"""What the commands share: exit statuses, version, help, options that are checked."""

import json
import os
import signal
import subprocess
import sys

import pytest

from simrank.cli.common import ended_by_sigterm

FAST = ["-b", "1K", "-e", "4K", "-n", "2"]


@pytest.mark.parametrize(
    "args",
    [
        ["bench", "no_such_thing"],
        ["bench", "all_reduce", "-b", "8X"],
        ["bench", "all_reduce", "--cluster", "nowhere"],
        ["bench", "all_reduce", "-d", "float99"],
        ["bench", "all_reduce", "-o", "median"],
        ["bench", "all_reduce", "--algorithm", "rign"],
        ["bench", "all_reduce", "-g", "9"],
        ["bench", "all_reduce", "--trace-ranks", "a", "--trace", "x.json"],
        ["bench", "all_reduce", "-g", "4", "--trace-ranks", "0,4", "--trace", "x.json"],
        ["bench", "all_reduce", "-f", "1"],
        ["check", "no_such_file.yaml"],
        ["frobnicate"],
        ["bench"],
    ],
)
def test_bad_usage_gives_status_2_and_one_message(cli, args):
    """Whatever is wrong on the command line."""
    status, out, err = cli(*args)
    assert status == 2
    assert err
    assert "Traceback" not in out + err


def test_ranks_of_a_timeline_that_is_not_written_are_refused(cli, tmp_path):
    """Before a run: --trace-ranks needs --trace."""
    program, trace = tmp_path / "program.py", tmp_path / "ring.goal"
    program.write_text("print('run')\n")
    trace.write_text("num_ranks 1\nrank 0 {\nl1: calc 5\n}\n")
    for words in (["run", program], ["bench", "all_reduce"], ["replay", trace]):
        command, target = words
        status, out, err = cli(command, "--trace-ranks", "0", target)
        assert (status, out) == (2, "")
        assert "--trace-ranks: expected --trace FILE with it, got 0\n  to fix: name" in err


def test_a_result_file_that_cannot_be_written_is_an_error_before_the_run(cli, tmp_path):
    """Nothing is lost: the benchmark has not run yet."""
    path = tmp_path / "missing" / "r.json"
    status, out, err = cli("bench", "all_reduce", *FAST, "--json", path)
    assert status == 2
    assert str(path) in err
    assert "# Out of bounds" not in out


def test_version_and_help(cli):
    """Both end with success."""
    assert cli("--version")[1].startswith("simrank 0.")
    assert "exit status" in cli("bench", "--help")[1]


def test_short_help_is_helped_everywhere(cli):
    """`-h` is `--help`, of the program and of each command."""
    for command in ([], ["run"], ["bench"], ["kernels", "coverage"]):
        assert cli(*command, "-h") == cli(*command, "--help")


@pytest.mark.parametrize(
    ("args", "suggestion"),
    [
        (["rnu"], "Did you mean 'run'?"),
        (["train.py"], "To run it: simrank run train.py"),
        (["mine.yaml", "--json", "x"], "To run it: simrank bench mine.yaml"),
        (["frobnicate"], "No such command 'frobnicate'."),
    ],
)
def test_a_mistyped_command_gets_a_suggestion(cli, args, suggestion):
    """Also a file where a command is missing."""
    status, _, err = cli(*args)
    assert status == 2
    assert err.rstrip().endswith(suggestion)


def test_shells_can_complete_commands(cli, monkeypatch):
    """As typer's programs do; `--install-completion` sets that up."""
    monkeypatch.setenv("_SIMRANK_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "simrank ru")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert cli()[1] == "run\n"


def test_sigterm_ends_a_block_in_order():
    """With the status of shells; the handler before it is back, and Ctrl-C stays Ctrl-C."""
    before, ended = signal.getsignal(signal.SIGTERM), []
    with pytest.raises(SystemExit) as caught, ended_by_sigterm():
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            ended.append("in order")
    assert (caught.value.code, ended) == (143, ["in order"])
    assert signal.getsignal(signal.SIGTERM) == before
    with pytest.raises(KeyboardInterrupt), ended_by_sigterm():
        raise KeyboardInterrupt


def _terminated(words, folder, until):
    """Return the status and output of a command that gets SIGTERM as `until` of it returns."""
    folder.joinpath("temporary").mkdir()
    environment = {**os.environ, "TMPDIR": str(folder / "temporary"), "PYTHONUNBUFFERED": "1"}
    environment.pop("PYTHONHASHSEED", None)
    command = [sys.executable, "-m", "simrank", *words]
    with subprocess.Popen(
        command, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE
    ) as run:
        until(run)
        run.terminate()
        return run.communicate()[0], run.returncode


@pytest.mark.slow
def test_sigterm_keeps_finished_rows(tmp_path):
    """As Ctrl-C does."""

    def row(run):
        while run.stdout.readline().split()[:1] != ["8"]:
            pass

    out, status = _terminated(["bench", "all_reduce", "--json", "rows.json"], tmp_path, row)
    assert status == 143
    assert ", then interrupted" in out
    assert json.loads((tmp_path / "rows.json").read_text())["rows"]


WAITING = """
import os
import torch.distributed as dist
dist.init_process_group("gloo")
if IS_WAITING:
    os.open("begun", os.O_WRONLY)
    os.open("never", os.O_RDONLY)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "is_waiting"),
    [
        (["compare"], "os.readlink('/proc/self') == str(os.getpid())"),  # A real one.
        (["run", "--checks", "all"], "os.environ.get('PYTHONHASHSEED') == '1'"),
    ],
)
def test_sigterm_leaves_no_folder_of_a_process_that_is_compared(words, is_waiting, tmp_path):
    """Of a real process, and of a run under another hash seed; the process has ended, too."""
    for name in ("begun", "never"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "program.py").write_text(WAITING.replace("IS_WAITING", is_waiting))
    folders = []

    def begun(_):
        os.open(tmp_path / "begun", os.O_RDONLY)
        folders.extend((tmp_path / "temporary").iterdir())

    command = [*words, "--nproc-per-node", "2", "program.py"]
    assert _terminated(command, tmp_path, begun)[1] == 143
    assert folders
    assert not any(folder.exists() for folder in folders)
    with pytest.raises(OSError, match="No such device"):  # No process waits for it.
        os.open(tmp_path / "never", os.O_WRONLY | os.O_NONBLOCK)


@pytest.mark.slow
@pytest.mark.parametrize("module", ["simrank", "simrank.cli"])
def test_the_package_can_be_run_as_a_module(module):
    """Where the command is not on the path."""
    words = [sys.executable, "-m", module, "--version"]
    shown = subprocess.run(words, capture_output=True, text=True, check=True)
    assert shown.stdout.startswith("simrank 0.")


def test_a_bug_of_ours_has_its_own_status(cli, monkeypatch):
    """3, with the traceback and a word on whose fault it is."""
    monkeypatch.setattr("simrank.cli.configs.builtin_clusters", lambda: 1 / 0)
    status, _, err = cli("clusters")
    assert status == 3
    assert "ZeroDivisionError" in err
    assert "bug in simrank" in err
