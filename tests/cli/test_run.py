"""`simrank run`: a script once per rank, where torchrun would."""

from __future__ import annotations

import errno
import io
import json
import re
import signal
import subprocess
import sys
import types

import pytest

from simrank.cli import main, rank_output
from simrank.cli.rank_output import Logs

SCRIPT = """
import argparse, os, sys
import helper
import simrank as torch
import simrank.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=1)
parser.add_argument("--fail-on", type=int, default=-1)
args = parser.parse_args()
dist.init_process_group("nccl")
rank = dist.get_rank()
assert __name__ == "__main__" and rank == int(os.environ["RANK"])
if rank == args.fail_on:
    raise ValueError("asked to fail")
counter = 0
for _ in range(args.steps):
    x = torch.ones(4, dtype=torch.bfloat16)
    dist.all_reduce(x)
    counter += 1
assert counter == args.steps
if rank == 0:
    print(helper.WORD, x.tolist(), dist.get_world_size(), sys.argv[1:])
dist.destroy_process_group()
"""


@pytest.fixture
def simrank_run(tmp_path, capsys):
    """Run the command line on the script; returns (status, stdout, stderr)."""
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "helper.py").write_text("WORD = 'helped'\n")

    def run_cli(*options, script="train.py", args=()):
        with pytest.raises(SystemExit) as stop:
            main(["run", *options, str(tmp_path / script), *args])
        captured = capsys.readouterr()
        return stop.value.code or 0, captured.out, captured.err

    return run_cli


def test_a_script_runs_once_per_rank_with_its_arguments(simrank_run):
    """Own argv, environment and globals; modules beside the script are found."""
    status, out, err = simrank_run("--nproc_per_node", "2", args=["--steps", "3"])
    assert status == 0
    assert out == "[rank0]: helped [2.0, 2.0, 2.0, 2.0] 2 ['--steps', '3']\n"
    assert err.startswith("simulated time: ")
    assert "ranks 0-1: compute" in err


def test_ranks_of_a_script_may_be_threads(simrank_run):
    """The same output, times and summary; another carrier is bad usage, with the choices."""
    options = ["--nproc-per-node", "2"]
    assert simrank_run(*options, "--carrier", "thread") == simrank_run(*options)
    status, _, err = simrank_run(*options, "--carrier", "fiber")
    assert status == 2
    assert "--carrier: expected one of auto, greenlet, thread, got fiber" in err


def test_nodes_and_ranks_are_spelled_as_torchruns(simrank_run):
    """--nnodes and --nproc-per-node."""
    options = ["--cluster", "h100_ib", "--nnodes", "3", "--nproc-per-node", "8"]
    _, out, err = simrank_run(*options, "--summary", "none")
    assert " 24 []" in out
    assert err == ""


def test_the_summary_can_be_json(simrank_run):
    """On standard error, so that the script keeps its output."""
    _, _, err = simrank_run("--nproc-per-node", "2", "--summary", "json")
    document = json.loads(err)
    assert document["ranks"][0]["ranks"] == [0, 1]
    assert document["collectives"][0]["name"] == "all_reduce"


def test_a_failing_script_gives_status_1_and_its_traceback(simrank_run):
    """The user's line, and no traceback of simrank's own."""
    status, _, err = simrank_run("--nproc-per-node", "2", args=["--fail-on", "1"])
    assert status == 1
    assert "-- Process 1 terminated with the following error:" in err
    assert "ValueError: asked to fail" in err
    assert "simrank/multiprocessing" not in err


def test_an_option_behind_the_script_of_a_failed_run_is_named(simrank_run, tmp_path):
    """It went to the script, which may have taken it for its own."""
    (tmp_path / "fails.py").write_text("raise ValueError\n")
    late = ["--divergence", "--seed=3", "--own"]
    status, _, err = simrank_run("--nproc-per-node", "2", script="fails.py", args=late)
    assert status == 1
    said = "simrank: --divergence, --seed=3 went to the program: options of simrank go before it"
    assert said in err


def test_bad_usage_gives_status_2_and_a_message(simrank_run, tmp_path):
    """Ranks that do not fit, an unknown summary."""
    assert simrank_run("--nproc-per-node", "9")[0] == 2
    assert simrank_run("--summary", "long")[0] == 2
    assert simrank_run("--default-device", "8")[0] == 2


def test_a_program_that_is_missing_is_bad_usage_with_a_guess_at_what_was_meant(simrank_run):
    """Not a failure of a program; a folder is none either."""
    status, out, err = simrank_run(script="trian.py")
    assert (status, out) == (2, "")
    assert "trian.py (No such file or directory)\n  to fix: write `" in err
    assert "/train.py`" in err
    status, _, err = simrank_run(script=".")
    assert status == 2
    assert "run it as a module: `-m`" in err
    assert "to fix" not in simrank_run(script="else.txt")[2]


def test_a_script_that_is_no_python_fails_with_pythons_own_text(simrank_run, tmp_path):
    """Status 1: nothing is wrong with simrank; so with modules that it imports."""
    (tmp_path / "wrong.py").write_text("x = 1\ndef f(:\n")
    status, _, err = simrank_run(script="wrong.py")
    assert status == 1
    assert err == f'  File "{tmp_path}/wrong.py", line 2\n    def f(:\n          ^\n' + (
        "SyntaxError: invalid syntax\n"
    )
    (tmp_path / "imports.py").write_text("import wrong\n")
    status, _, err = simrank_run("--nproc-per-node", "2", script="imports.py")
    assert status == 1
    assert 'wrong.py", line 2' in err
    assert "bug in simrank" not in err
    (tmp_path / "raises.py").write_text("1 / 0\n")
    (tmp_path / "imports.py").write_text("import raises\n")
    status, _, err = simrank_run("--nproc-per-node", "2", script="imports.py")
    assert status == 1
    assert "ZeroDivisionError" in err
    assert "bug in simrank" not in err


def test_lines_of_several_ranks_have_a_prefix_unless_none_is_asked_for(simrank_run, tmp_path):
    """Of stderr, too; a single rank has none; other words are bad usage."""
    (tmp_path / "hello.py").write_text("import sys\nprint(1)\nprint(2, file=sys.stderr)\n")
    quiet = ["--summary", "none", "--nproc-per-node"]
    several = (0, "[rank0]: 1\n[rank1]: 1\n", "[rank0]: 2\n[rank1]: 2\n")
    assert simrank_run(*quiet, "2", script="hello.py") == several
    assert simrank_run(*quiet, "1", script="hello.py") == (0, "1\n", "2\n")
    plain = (0, "1\n1\n", "2\n2\n")
    assert simrank_run("--prefix", "none", *quiet, "2", script="hello.py") == plain
    status, _, err = simrank_run("--prefix", "all", script="hello.py")
    assert status == 2
    assert "--prefix: expected one of rank, none, got all" in err


def test_races_are_shown_before_the_failure_that_follows_them(simrank_run, tmp_path):
    """What was found so far may be its cause."""
    (tmp_path / "leaky.py").write_text(LEAKY + "torch.cuda.synchronize()\nraise ValueError(5)\n")
    options = ["--nproc-per-node", "2", "--races", "report"]
    status, _, err = simrank_run(*options, script="leaky.py")
    assert status == 1
    assert err.startswith("simrank: found before the failure:\nrace (proved) at t=")
    assert "ValueError: 5" in err
    _, _, err = simrank_run("--nproc-per-node", "2", "--races", "error", script="leaky.py")
    assert err.count("race (proved) at t=0.000 us: nothing orders two accesses of rank 0") == 1


class Closed(io.StringIO):
    """A pipe whose other end is closed."""

    def write(self, text):
        """Refuse."""
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")


def test_a_reader_that_ends_early_is_no_failure_of_a_rank(tmp_path, monkeypatch, capsys):
    """`simrank run x.py | head -1` ends without a word; other broken pipes are failures."""
    script = tmp_path / "prints.py"
    script.write_text("print('hello')\n")
    stderr = sys.stderr
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", Closed())
        patch.setattr(sys, "stderr", stderr)  # typer puts wrappers there.
        with pytest.raises(SystemExit) as stop:
            main(["run", str(script)])
    assert (stop.value.code, capsys.readouterr().err) == (1, "")
    script.write_text("raise BrokenPipeError(32, 'of a child')\n")
    with pytest.raises(SystemExit) as stop:
        main(["run", str(script)])
    assert "BrokenPipeError: [Errno 32] of a child" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(("num_lines", "ends"), [(20_000, "while it writes"), (3, "at its end")])
def test_a_pipe_may_be_closed(tmp_path, num_lines, ends):
    """A real one: nothing is said on stderr, whenever that is noticed."""
    script = tmp_path / "prints.py"
    script.write_text(f"for number in range({num_lines}):\n    print(number)\n")
    words = [sys.executable, "-m", "simrank", "run", "--summary", "none", str(script)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        run.stdout.close()
        assert (run.stderr.read(), run.wait()) == (b"", 1), ends


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package in the current folder."""
    folder = tmp_path / "steps"
    folder.mkdir()
    (folder / "__init__.py").write_text("import os\nFIRST = os.environ['RANK']\n")
    (folder / "__main__.py").write_text("print('main')\n")
    (folder / "train.py").write_text(
        "import sys\nfrom . import FIRST\n"
        "print(FIRST, __name__, __package__, __spec__.name, sys.argv[1:])\n"
        "assert sys.argv[0] == __file__\n"
    )
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("package")
def test_a_module_runs_as_python_does(cli):
    """`-m`: its package is imported on a rank; a package runs its `__main__`."""
    options = ["run", "--nproc-per-node", "2", "--summary", "none"]
    status, out, _ = cli(*options, "-m", "steps.train", "--lr", "1")
    assert status == 0
    line = "0 __main__ steps steps.train ['--lr', '1']"
    assert out == f"[rank0]: {line}\n[rank1]: {line}\n"
    assert cli(*options, "--prefix", "none", "-m", "steps")[1] == "main\nmain\n"
    assert not [name for name in sys.modules if name.startswith("steps")]
    for module in ("steps.trian", "steps.train.deeper", "nowhere", "nowhere.at_all"):
        status, _, err = cli(*options, "-m", module)
        assert status == 2
        assert f"-m: expected a module, or a package with a __main__, got {module}" in err
    assert "leave `-m` out" in cli(*options, "-m", "train.py")[2]


def test_scripts_of_one_process_have_modules_of_their_own(simrank_run, tmp_path, monkeypatch):
    """Also where a module of that name was imported before, from elsewhere."""
    other = types.ModuleType("helper")
    other.__file__ = str(tmp_path / "elsewhere" / "helper.py")
    monkeypatch.setitem(sys.modules, "helper", other)
    assert simrank_run("--nproc-per-node", "2")[0] == 0
    assert sys.modules["helper"] is other


def test_the_device_at_first_can_be_torchs(simrank_run, tmp_path):
    """--default-device 0: every rank's until it calls set_device."""
    (tmp_path / "where.py").write_text("import simrank\nprint(simrank.cuda.current_device())\n")
    options = ["--nproc-per-node", "2", "--summary", "none", "--prefix", "none"]
    assert simrank_run(*options, script="where.py")[1] == "0\n1\n"
    options += ["--default-device", "0"]
    assert simrank_run(*options, script="where.py")[1] == "0\n0\n"


def test_a_trace_is_written_even_if_the_script_fails(simrank_run, tmp_path):
    """What happened until then is what one wants to see."""
    path = tmp_path / "t.json"
    status, _, _ = simrank_run("--trace", str(path), args=["--fail-on", "3"])
    assert status == 1
    assert json.loads(path.read_text())["traceEvents"] is not None


LEAKY = """
import simrank as torch, simrank.distributed as dist
dist.init_process_group()
x = torch.ones(4)
work = dist.all_reduce(x, async_op=True)
x.add_(1)
"""


def test_a_timeline_of_ranks_that_the_run_lacks_is_refused(simrank_run):
    """Before the script runs."""
    words = ["--nproc-per-node", "2", "--trace", "t.json", "--trace-ranks", "0,99,2"]
    status, out, err = simrank_run(*words)
    assert (status, out) == (2, "")
    assert err == "command line: --trace-ranks: expected ranks of the run, 0 to 1, got 99,2\n"


def test_races_and_leaks_are_listed_at_the_end_or_are_errors(simrank_run, tmp_path):
    """--races and --strict."""
    (tmp_path / "leaky.py").write_text(LEAKY)
    options = ["--nproc-per-node", "2", "--races", "report"]
    status, _, err = simrank_run(*options, script="leaky.py")
    assert status == 0
    assert "never waited for at leaky.py:5" in err
    assert "race (proved)" in err
    asked = simrank_run(*options, "--summary", "none", script="leaky.py")[2]
    assert asked.startswith("race (proved)")
    assert "simulated time" not in asked
    found = json.loads(simrank_run(*options, "--summary", "json", script="leaky.py")[2])["findings"]
    assert any("never waited for at leaky.py:5" in line for line in found)
    assert any(line.startswith("race (proved)") for line in found)
    assert simrank_run("--nproc-per-node", "2", "--strict", script="leaky.py")[0] == 1
    assert simrank_run("--races", "error", "--nproc-per-node", "2", script="leaky.py")[0] == 1
    assert simrank_run("--races", "maybe", script="leaky.py")[0] == 2


@pytest.mark.slow
def test_a_script_that_computes_for_ever_ends_at_the_time_limit(simrank_run, tmp_path):
    """Status 1 and the line of each rank; with --watchdog it is told of before."""
    script = "import os\nstuck = os.environ['RANK'] == '2'\nwhile stuck:\n    pass\n"
    (tmp_path / "stuck.py").write_text(script)
    options = ("--time-limit", "0.3", "--watchdog", "0.1")
    status, _, err = simrank_run(*options, script="stuck.py")
    assert status == 1
    assert "the limit of 0.3 s of wall-clock time passed at t=" in err
    assert "rank 2: running at stuck.py:" in err


def test_ctrl_c_ends_the_script_with_status_130_and_says_where_each_rank_is(simrank_run, tmp_path):
    """On stderr; the trace is written."""
    (tmp_path / "turns.py").write_text(
        "import os, signal\nif os.environ['RANK'] == '0':\n    signal.raise_signal(signal.SIGINT)\n"
        "while True: pass\n"
    )
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        trace = str(tmp_path / "trace.json")
        options = ("--nproc-per-node", "4", "--trace", trace)
        status, _, err = simrank_run(*options, script="turns.py")
    finally:
        signal.signal(signal.SIGINT, before)
    assert status == 130
    assert "simrank: interrupted at t=0.000 us\n  rank 0: running at turns.py:4\n" in err
    assert "ranks 1-3: not started" in err
    assert "traceEvents" in json.loads((tmp_path / "trace.json").read_text())


def test_a_run_leaves_a_page_also_where_it_fails(simrank_run, tmp_path):
    """Equal runs leave equal bytes; a failed one says why; an odd path is refused before."""
    page, options = tmp_path / "p.html", ["--nproc-per-node", "2", "--summary", "none"]
    contents = []
    for _ in range(2):
        status, out, err = simrank_run(*options, "--html", str(page), args=["--steps", "2"])
        assert (status, err) == (0, "")
        contents.append(page.read_text())
    assert contents[0] == contents[1]
    assert "all_reduce of 8 B on" in contents[0]
    assert "2 calls, " in contents[0]
    assert "Partial" not in contents[0]
    status, _, _ = simrank_run(*options, "--html", str(page), args=["--fail-on", "1"])
    assert status == 1
    assert '<p class="partial">Partial: SpawnException: rank 1: ' in page.read_text()
    body = page.read_text().partition("<main>")[2]
    assert re.match(r'<h1>[^<]*</h1><pre class="report">-- Process 1 terminated with', body)
    status, out, err = simrank_run(*options, "--html", str(tmp_path))
    assert (status, out) == (2, "")
    assert "expected a file that can be written, got a folder" in err


LIBRARY_FAILS = """
import simrank.distributed as dist

dist.init_process_group("gloo")
dist.new_group([7])
"""


@pytest.mark.parametrize("is_full", [False, True])
def test_frames_of_the_library_are_counted_unless_asked_for(simrank_run, tmp_path, is_full):
    """The program's own frames, the report and what to do are what is read first."""
    (tmp_path / "program.py").write_text(LIBRARY_FAILS)
    options = ["--full-traceback"] * is_full
    _, _, err = simrank_run(*options, "--nproc-per-node", "2", script="program.py")
    assert "dist.new_group([7])" in err
    assert ("frames of torch and simrank (--full-traceback shows them)" in err) is not is_full
    assert ("simrank/distributed/" in err) is is_full


# ---- `--tee`, `--redirects`, `--log-dir` and `--local-ranks-filter`: as torchrun's ----


@pytest.fixture
def run(cli, tmp_path):
    """Run a script that writes to both streams; returns status, stdout, stderr."""
    script = tmp_path / "says.py"
    script.write_text("import sys\nprint('out')\nprint('err', file=sys.stderr)\n")

    def run_says(*options):
        return cli("run", "--summary", "none", "--nproc-per-node", 2, *options, script)

    return run_says


OUT, ERR = "[rank0]: out\n[rank1]: out\n", "[rank0]: err\n[rank1]: err\n"
FILES = {f"{rank}/std{name}.log": f"{name}\n" for rank in "01" for name in ("out", "err")}


def written(folder):
    """Return the text of every file of a folder, by its path there."""
    return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("options", [[], ["--tee", "3"]])
def test_a_folder_gets_the_lines_of_each_rank_without_prefix(run, tmp_path, options):
    """Both streams, shown too; a folder alone means that; it may be there already."""
    folder = tmp_path / "logs"
    for _ in range(2):
        assert run("--log-dir", folder, *options) == (0, OUT, ERR)
        assert written(folder) == FILES


def test_what_is_redirected_is_not_shown(run, tmp_path):
    """By stream, and by rank."""
    folder = tmp_path / "logs"
    assert run("--log_dir", folder, "-r", "1") == (0, "", ERR)
    assert written(folder) == {name: text for name, text in FILES.items() if "out" in name}
    some = tmp_path / "some"
    assert run("--log-dir", some, "-r", "0:3", "-t", "1:2") == (0, OUT[13:], ERR[13:])
    assert set(written(some)) == {"0/stdout.log", "0/stderr.log", "1/stderr.log"}


def test_without_a_folder_one_is_made_and_named(run, tmp_path, monkeypatch):
    """As torchrun makes one."""
    monkeypatch.setattr(rank_output.tempfile, "mkdtemp", lambda prefix: str(tmp_path / prefix))
    status, out, err = run("-t", "3")
    assert (status, out) == (0, OUT)
    assert err == f"simrank: logs of ranks are in {tmp_path}/simrank_\n{ERR}"
    assert written(tmp_path / "simrank_") == FILES


def test_only_some_ranks_may_be_shown(run, tmp_path):
    """Their logs are whole."""
    folder = tmp_path / "logs"
    options = ["--local-ranks-filter", "1", "--log-dir", folder]
    assert run(*options) == (0, OUT[13:], ERR[13:])
    assert written(folder) == FILES


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tee", "4"], "--tee: expected 0 none, 1 stdout, 2 stderr or 3 both"),
        (["-r", "0:1,x"], "--redirects: expected 0 none"),
        (["--local-ranks-filter", "all"], "--local-ranks-filter: expected ranks such as 0,8"),
        (["--log-dir", __file__], "--log-dir: expected a folder that can be made"),
    ],
)
def test_what_is_written_wrongly_is_bad_usage(run, options, message):
    """Before anything runs."""
    status, out, err = run(*options)
    assert (status, out) == (2, "")
    assert message in err


def test_more_ranks_than_files_may_be_open_have_whole_logs(tmp_path, monkeypatch):
    """Files that were closed meanwhile go on where they ended."""
    monkeypatch.setattr(rank_output, "_MAX_OPEN", 2)
    logs = Logs(tmp_path)
    for turn in range(2):
        for rank in range(4):
            logs.file(rank, "stdout").write(f"{turn}\n")
    logs.close()
    assert written(tmp_path) == {f"{rank}/stdout.log": "0\n1\n" for rank in range(4)}
