"""Tests marked with ranks on real processes: `--ranks-on=processes`, which needs no torch."""

import asyncio  # noqa: F401 - once, as what follows: pytester forgets what its sessions import

import pytest

import simrank.suites.on_processes  # noqa: F401
from simrank.errors import TooFewDevicesError
from simrank.validate import WorkerPool

pytest_plugins = ["pytester"]

HEADER = "import os, sys, time, unittest, warnings\nimport pytest\nfrom simrank import validate\n"
REAL = "--ranks-on=processes"


@pytest.fixture
def outcome(pytester, monkeypatch):
    """Run a test file in a pytest of its own."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(body, *options):
        pytester.makepyfile(HEADER + body)
        return pytester.runpytest_inprocess("-p", "no:cacheprovider", *options)

    return run


def test_every_test_runs_once_on_each_place_and_its_id_says_where(outcome):
    """`-k` selects by it; a marker with on= is not run elsewhere."""
    body = """
@pytest.mark.ranks(2)
@pytest.mark.parametrize("value", [1])
def test_it(rank, world_size, value, ranks_on):
    assert (world_size, value) == (2, 1)
    assert rank in (0, 1)
    assert ranks_on in ("simrank", "processes")
    assert ("SIMRANK_WORKER" in os.environ) == (ranks_on == "processes")

@pytest.mark.ranks(2, on="simrank", seeds=2)
def test_there(rank):
    pass

def test_plain():
    pass
"""
    result = outcome(body, "-v", "--ranks-on=simrank", REAL)
    result.assert_outcomes(passed=4)
    names = {line.split()[0].partition("::")[2] for line in result.outlines if "PASSED" in line}
    assert names == {"test_it[simrank-1]", "test_it[processes-1]", "test_there[simrank]",
                     "test_plain"}  # fmt: skip
    result = outcome(body, "-k", "processes", "--ranks-on=simrank", REAL)
    result.assert_outcomes(passed=1, deselected=3)


def test_with_one_place_ids_are_as_they_were_and_options_of_the_simulator_are_ignored(outcome):
    """And what the marker keeps elsewhere is skipped; what describes the simulator is ignored."""
    result = outcome(
        """
@pytest.mark.ranks(2, cluster="hgx_a100", seed=3)
def test_it(rank):
    pass

@pytest.mark.ranks(2, on=["simrank", "gloo"])
def test_there(rank):
    pass
""",
        "-v",
        REAL,
    )
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(
        ["*::test_it PASSED*", "*the marker says on=simrank|gloo, and this is processes*"]
    )


OUTCOMES = """
counter = 0

def setup_module():
    global counter
    counter = 5

class StubbornError(Exception):
    def __init__(self, first, second):
        super().__init__("stubborn")

class TestMethods:
    @classmethod
    def setup_class(cls):
        cls.base = 10

    def setup_method(self):
        self.value = self.base + counter

    @pytest.mark.ranks(2)
    @pytest.mark.parametrize("more", [1, 2])
    def test_state_of_setup_functions_is_there(self, rank, more, tmp_path):
        assert self.value + more == 15 + more
        assert counter == 5
        (tmp_path / str(rank)).touch()

class TestOfUnittest(unittest.TestCase):
    def setUp(self):
        self.base = 10

    @pytest.mark.ranks(2)
    def test_method(self):
        self.assertEqual(self.base, 10)

@pytest.mark.xfail(raises=StubbornError, strict=True)
@pytest.mark.ranks(2)
def test_expected(rank):
    raise StubbornError(1, 2)

@pytest.mark.xfail(raises=ValueError)
@pytest.mark.ranks(2)
def test_unexpected(rank):
    raise KeyError("not that")

@pytest.mark.xfail(strict=True)
@pytest.mark.ranks(2)
def test_passes_though_marked(rank):
    pass

@pytest.mark.ranks(2)
def test_imperative(rank):
    pytest.xfail("on all")

@pytest.mark.ranks(2)
def test_skipped_on_one(rank):
    if rank:
        pytest.skip("on purpose")

@pytest.mark.ranks(2)
def test_imports(rank):
    pytest.importorskip("a_module_that_nobody_has")

@pytest.mark.ranks(2)
def test_raises(rank):
    with pytest.raises(ValueError, match="as expected"):
        raise ValueError("as expected")

@pytest.mark.ranks(2)
async def test_async(rank):
    import asyncio
    await asyncio.sleep(0)
    assert rank == 0

@pytest.mark.ranks(2)
def test_returns(rank):
    return rank == 5

@pytest.mark.filterwarnings("error:on purpose")
@pytest.mark.ranks(2)
def test_warning_that_is_an_error(rank):
    warnings.warn("on purpose")

@pytest.mark.ranks(2)
def test_warning(rank):
    warnings.warn("told once")

@pytest.mark.ranks(2)
def test_exit(rank):
    sys.exit(0)
"""


def test_outcomes_are_pytests_on_real_ranks_too(outcome):
    """The same numbers as on simulated ones: classes, xfail, skips, warnings, async bodies."""
    places = (REAL, "--ranks-on=simrank")
    found = [outcome(OUTCOMES, where, "-W", "default").parseoutcomes() for where in places]
    assert found[0] == found[1]
    assert found[0] == {"passed": 7, "failed": 4, "xfailed": 2, "skipped": 2, "warnings": 2}


@pytest.mark.slow
def test_a_failure_looks_as_on_simulated_ranks(outcome):
    """By rank, with pytest's explanation of the user's own lines, equal ones once."""
    body = """
def helper(rank):
    assert [rank] == [0], "as it was"

@pytest.mark.ranks(4)
def test_it(rank):
    if rank != 1:
        helper(min(rank, 2))
"""

    def shown(where):
        lines = outcome(body, where).outlines
        start = next(i for i, line in enumerate(lines) if "rank(s) failed" in line)
        end = next(i for i, line in enumerate(lines) if "short test summary" in line)
        reported = [line for line in lines[start:end] if "simrank: raised by" not in line]
        return lines[start], reported[1:]

    head, reported = shown(REAL)
    assert "rank(s) failed on processes: rank 2: AssertionError: as it was" in head
    head_simulated, told_simulated = shown("--ranks-on=simrank")
    assert "rank(s) failed at t=0.000 us: rank 2: AssertionError: as it was" in head_simulated
    assert reported[1:] == told_simulated[1:]
    assert "E       AssertionError: as it was" in reported


@pytest.mark.slow
def test_after_every_kind_of_failure_the_rest_runs_on_fresh_workers(outcome):
    """An exception, a hang, a crash, an exit: as many failures as there are, and not status 0."""
    body = """
def wait():
    with validate.collective("all_reduce"):
        time.sleep(600)

def test_before():
    pass

@pytest.mark.ranks(2)
def test_raises(rank):
    if rank == 1:
        raise ValueError("bad shard")
    wait()

@pytest.mark.ranks(2)
def test_hangs(rank):
    if rank == 0:
        wait()

@pytest.mark.ranks(2)
def test_takes_too_long(rank):
    time.sleep(600 * rank)

@pytest.mark.timeout(0.5, method="signal")
@pytest.mark.ranks(2)
def test_takes_longer_than_it_asked_for(rank):
    time.sleep(600)

@pytest.mark.timeout(60)
@pytest.mark.ranks(2)
def test_asked_for_longer(rank):
    time.sleep(1.6)

@pytest.mark.ranks(2)
def test_crashes(rank):
    if rank == 1:
        print("last words")
        sys.stdout.flush()
        os.kill(os.getpid(), 11)

@pytest.mark.ranks(2)
def test_exits(rank):
    if rank == 0:
        os._exit(7)

@pytest.mark.ranks(2)
def test_after(rank):
    assert os.environ["PYTEST_CURRENT_TEST"].endswith("test_after (call)")
"""
    result = outcome(body, REAL, "--ranks-timeout=1.5")
    result.assert_outcomes(passed=3, failed=6)
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        [
            "1 rank(s) failed on processes: rank 1: ValueError: bad shard",
            "*ended there:",
            "  rank 0: all_reduce #1 on group 'workers' at *:6",
            "the workers were killed; the next test has fresh ones",
            "RanksPartedError: case *: 1 of 2 rank(s) hang",
            "  rank 0 waits for rank 1",
            "WorkerTimeoutError: case *: 1 of 2 rank(s) did not answer within 1.5 s",
            "WorkerTimeoutError: case *: 2 of 2 rank(s) did not answer within 0.5 s",
            "WorkerDiedError: case *: rank 1 died: killed by SIGSEGV",
            "*Captured output of rank 1 call*",
            "last words",
            "WorkerDiedError: case *: rank 0 died: exited with code 7",
            "*simrank: workers that were replaced*",
            "2 ranks on processes were started 7 times",
        ]
    )


@pytest.mark.slow
def test_workers_that_were_replaced_in_processes_of_xdist_are_told_by_the_one_that_reports(
    outcome, pytester
):
    """Its hooks are called here as it calls them, in one process: it need not be installed."""
    pytester.makeconftest("""
from types import SimpleNamespace

def pytest_configure(config):
    config.workeroutput = {}

def pytest_unconfigure(config):
    assert list(config.workeroutput) == ["simrank_replaced"]

def pytest_terminal_summary(config):
    node = SimpleNamespace(config=config, gateway=SimpleNamespace(id="gw1"))
    config.hook.pytest_testnodedown(node=node, error="it crashed before it could send any")
    node.workeroutput = config.workeroutput
    config.hook.pytest_testnodedown(node=node, error=None)
""")
    body = "@pytest.mark.ranks(2)\n@pytest.mark.parametrize('turn', [0, 1])\n"
    result = outcome(body + "def test_it(turn, rank):\n    os._exit(7)\n", REAL)
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        ["[[]gw1] 2 ranks on processes were started 2 times", "[[]gw1]   case 2: rank * died: *"]
    )


@pytest.mark.slow
def test_there_is_one_pool_for_each_number_of_ranks_and_it_starts_when_it_is_needed(
    outcome, monkeypatch
):
    """Not for tests that are skipped; its workers stay from test to test, and go at the end."""
    pools = []
    start = WorkerPool.start

    def note(pool):
        start(pool)
        if pool not in pools:
            pools.append(pool)

    monkeypatch.setattr(WorkerPool, "start", note)
    body = """
@pytest.mark.skip
@pytest.mark.ranks(7)
def test_skipped(rank):
    pass

@pytest.mark.ranks(2)
@pytest.mark.parametrize("turn", [0, 1])
def test_two(rank, turn):
    os.environ["PASSED"] = os.environ.get("PASSED", "") + "1"
    assert os.environ["PASSED"] == "1"

@pytest.mark.ranks(1)
def test_one(rank):
    pass
"""
    outcome(body, REAL).assert_outcomes(passed=3, skipped=1)
    assert sorted(pool.num_workers for pool in pools) == [1, 2]
    assert [pool.num_starts for pool in pools] == [1, 1]
    assert [pool.pids for pool in pools] == [[], []]


@pytest.mark.slow
def test_what_a_body_does_to_its_arguments_is_gone_in_the_next_test(outcome):
    """TransformerEngine copies configurations: one that was changed in place leaked."""
    body = """
CONFIG = {"steps": [1]}

@pytest.mark.ranks(2)
@pytest.mark.parametrize("config", [CONFIG])
def test_first(config):
    config["steps"].append(2)
    assert config == {"steps": [1, 2]}

@pytest.mark.ranks(2)
@pytest.mark.parametrize("config", [CONFIG])
def test_second(config):
    config["steps"].append(2)
    assert config == {"steps": [1, 2]}
"""
    outcome(body, REAL).assert_outcomes(passed=2)


def test_a_session_that_collects_nothing_says_so_as_pytest_does(outcome):
    """No worker is started for it; its status is pytest's own."""
    assert outcome("", REAL).ret == pytest.ExitCode.NO_TESTS_COLLECTED


@pytest.mark.slow
def test_with_x_the_first_failure_is_the_last_test_and_lf_runs_it_again(pytester):
    """As of any other tests."""
    pytester.makepyfile(
        HEADER
        + """
@pytest.mark.ranks(2)
def test_first(rank):
    pass

@pytest.mark.ranks(2)
def test_second(rank):
    assert rank == 0

@pytest.mark.ranks(2)
def test_third(rank):
    pass
"""
    )
    pytester.runpytest_inprocess(REAL, "-x").assert_outcomes(passed=1, failed=1)
    result = pytester.runpytest_inprocess(REAL, "--lf")
    result.assert_outcomes(failed=1)


@pytest.mark.parametrize("mode", ["prepend", "importlib"])
@pytest.mark.slow
def test_modules_are_imported_in_workers_as_pytest_imports_them(pytester, mode):
    """Beside conftests, in packages and with helpers; comparisons are explained there, too."""
    package = pytester.mkpydir("package")
    (package / "helpers.py").write_text("class Value:\n    number = 3\n")
    (package / "conftest.py").write_text(
        "import pytest\nfrom package.helpers import Value\n"
        "class Own(Value):\n    pass\n"
        "@pytest.fixture\ndef value():\n    return Own()\n"
        "def pytest_assertrepr_compare(op, left, right):\n    return ['compared by the conftest']\n"
    )
    (package / "test_it.py").write_text(
        "import pytest\nfrom . import helpers\n"
        "@pytest.mark.ranks(2)\n"
        "def test_values(value, rank):\n    assert isinstance(value, helpers.Value)\n"
        "@pytest.mark.ranks(2)\n"
        "def test_compared(value, rank):\n    assert value == rank\n"
    )
    pytester.makeini("[pytest]\npythonpath = .\n")
    result = pytester.runpytest_inprocess(REAL, f"--import-mode={mode}", "package")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*E *compared by the conftest*"])


@pytest.mark.slow
def test_fixtures_are_set_up_once_and_their_environment_goes_along(outcome):
    """Variables, the folder, what is captured and patched; `monkeypatch` is each rank's own."""
    result = outcome(
        """
@pytest.fixture
def surroundings(monkeypatch, tmp_path):
    monkeypatch.setenv("OF_FIXTURE", "1")
    monkeypatch.setenv("RANK", "77")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "made").touch()
    yield tmp_path
    assert sorted(os.listdir()) == ["made", "rank0", "rank1"]

@pytest.mark.ranks(2)
def test_it(surroundings, monkeypatch, capsys, rank):
    assert os.environ["OF_FIXTURE"] == "1"
    assert os.environ["RANK"] == str(rank)
    open(f"rank{rank}", "w").close()
    monkeypatch.setattr(time, "time", lambda: rank)
    assert time.time() == rank
    print(rank)
    assert capsys.readouterr().out == f"{rank}\\n"

@pytest.fixture
def changed():
    global VALUE
    before, VALUE = VALUE, "of the fixture"
    yield
    VALUE = before

VALUE = "of the module"

@pytest.mark.ranks(2)
def test_next(rank, changed):
    assert "OF_FIXTURE" not in os.environ
    assert time.time() > 2
    assert VALUE == "of the fixture"

@pytest.mark.ranks(2)
def test_with_fresh_workers(rank, surroundings):
    os._exit(rank)

@pytest.mark.ranks(2)
def test_started_in_surroundings(rank, surroundings):
    open(f"rank{rank}", "w").close()

@pytest.mark.ranks(2)
def test_last(rank):
    assert "OF_FIXTURE" not in os.environ
    assert VALUE == "of the module"
""",
        REAL,
    )
    result.assert_outcomes(passed=4, failed=1, errors=1)


REFUSED = """
M = pytest.mark.ranks

@M(2)
def test_context(ctx): pass

@M(2, races="error", seeds=3)
def test_options(): pass

@M(2, sead=1)
def test_misspelt(): pass

@M(2, on="moon")
def test_moon(): pass

@M(2)
def test_request(request): pass

@M(2)
def test_logs(caplog): pass

@pytest.mark.parametrize("f", [lambda: 1])
@M(2)
def test_lambda(f): pass

class TestMethod:
    def setup_method(self):
        self.lock = threading.Lock()

    @M(2)
    def test_lock(self): pass

@pytest.fixture
def patched(monkeypatch):
    monkeypatch.setattr(os, "strerror", list)

@M(2)
def test_patched(patched): pass

@M(2)
def test_simulated_calls():
    import simrank.distributed as dist
    dist.init_process_group("gloo")
"""


def test_what_a_real_rank_cannot_have_is_refused_by_name(outcome):
    """With the cure; nothing runs on a guess."""
    result = outcome("import threading\n" + REFUSED, REAL)
    result.assert_outcomes(errors=4, failed=6)
    shown = result.stdout.str()
    for text in (
        "test_context asks for the fixture ctx, which only the simulator has",
        'to fix: ranks(2, ..., on="simrank") keeps the test there',
        "test_options asks for the option seeds= and the option races=, which only",
        "no option `sead`",
        "expected one of simrank, gloo, nccl, processes",
        "test_request asks for the fixture request, which belongs to the main program",
        "test_logs asks for the fixture caplog, which belongs to the main program",
        "needs the value of f (a function), which cannot go to another process",
        "needs self.lock (a lock), which cannot go to another process",
        "has patched strerror in the main program, which workers do not see",
        "this rank is a real process (processes), not a simulated one",
    ):
        assert text in shown


def test_a_method_of_a_test_case_on_two_places_is_refused(outcome):
    """It has no parameters that could tell its two runs apart."""
    body = "class TestIt(unittest.TestCase):\n  @pytest.mark.ranks(2)\n  def test_it(self): pass"
    result = outcome(body, REAL, "--ranks-on=simrank")
    result.stdout.fnmatch_lines(["*runs on one of processes, simrank*", "*to fix: give one*"])


def test_without_torch_its_backends_are_a_usage_error_in_one_line(outcome, monkeypatch):
    """Before anything is collected."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name, package=None: None)
    result = outcome("", "--ranks-on=gloo")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert result.errlines == ["ERROR: --ranks-on=gloo needs torch, which is not installed", ""]


def test_too_few_gpus_are_a_skip_that_says_how_many(outcome, monkeypatch):
    """Not a failure."""
    started = []

    def start(pool):
        started.append(pool)
        raise TooFewDevicesError("nccl", pool.num_workers, 1)

    monkeypatch.setattr(WorkerPool, "start", start)
    body = """
@pytest.mark.ranks(4)
def test_four(rank):
    pass

@pytest.mark.ranks(2)
def test_two(rank):
    pass
"""
    result = outcome(body, REAL, "-rs")
    result.assert_outcomes(skipped=2)
    result.stdout.fnmatch_lines(["*SKIPPED * needs 4 GPUs, found 1"])
    result.stdout.fnmatch_lines(["*SKIPPED * needs 2 GPUs, found 1"])
    assert len(started) == 1  # Workers need not start to say so again.


@pytest.mark.parametrize("text", ["soon", "-1", "0.0", "inf"])
def test_a_time_limit_that_is_none_is_refused(outcome, text):
    """In one line."""
    result = outcome("", REAL, f"--ranks-timeout={text}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert f"ranks_timeout: expected a number of seconds, got '{text}'" in result.stderr.str()


LIMITED = """
from simrank.validate.testing import test_every_test_on_real_ranks_has_an_outer_time_limit

@pytest.mark.ranks(1)
def test_it(rank, request_limit):
    pass

@pytest.fixture
def request_limit(request):
    assert request.node.get_closest_marker("timeout").args == ({seconds},)
    pytest.skip("no process is needed")

@pytest.mark.skip
@pytest.mark.timeout(999)
@pytest.mark.ranks(1)
def test_own(rank):
    pass
"""


@pytest.mark.parametrize(
    ("ini", "variable", "seconds"),
    [("", "", 60.0), ("", "SIMRANK_TIMEOUT_FACTOR=2", 90.0),
     ("ranks_timeout = 100", "CUDA_PYTHON_UNDER_SANITIZER=1", 430.0),
     ("", "CUDA_PYTHON_UNDER_SANITIZER=1", 150.0)],
)  # fmt: skip
def test_the_outer_timeout_marker_is_applied(
    outcome, pytester, monkeypatch, ini, variable, seconds
):
    """A child's limit and a margin: 60 s, or 150 under compute-sanitizer; the meta-test agrees."""
    if variable:
        monkeypatch.setenv(*variable.split("="))
    pytester.makeini(f"[pytest]\n{ini}\n")
    outcome(LIMITED.replace("{seconds}", str(seconds)), REAL).assert_outcomes(passed=1, skipped=2)


@pytest.mark.slow
def test_output_of_ranks_is_shown_with_failures_and_as_it_comes_with_s(outcome):
    """Equal texts once."""
    body = """
@pytest.mark.ranks(3)
def test_it(rank):
    print("even" if rank % 2 == 0 else "odd")
    assert rank > 5
"""
    result = outcome(body, REAL)
    result.stdout.fnmatch_lines(
        ["*Captured output of ranks 0, 2 call*", "even", "*Captured output of rank 1 call*", "odd"]
    )
    result = outcome(body, REAL, "-s")
    result.stdout.fnmatch_lines(["*[[]rank 1[]] odd"])
    assert "Captured output" not in result.stdout.str()


@pytest.mark.slow
def test_examples_of_hypothesis_run_on_real_ranks(outcome):
    """A failing one shrinks; `assume` is none."""
    result = outcome(
        """
from hypothesis import assume, given, settings, strategies as st
settings.register_profile("fixed", derandomize=True, database=None)
settings.load_profile("fixed")

@pytest.mark.ranks(2)
@settings(max_examples=20)
@given(n=st.integers(0, 99))
def test_it(rank, n):
    assume(n != 98)
    assert n < 10 or rank == 0

@pytest.mark.ranks(2)
@settings(max_examples=5)
@given(n=st.integers(0, 9))
def test_passes(rank, world_size, n):
    assert world_size == 2
""",
        REAL,
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["1 rank(s) failed on processes: rank 1: *", "*n=10*"])
