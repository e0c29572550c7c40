"""`pytest --simrank=N`: suites written for torchrun, on ranks with sessions of their own."""

import re
import shutil
import signal
import textwrap
import time
from functools import partial
from unittest import mock

import pytest

import simrank.suites.driver
import simrank.suites.session
from simrank.suites.driver import merged, skip_text
from simrank.suites.session import text_of_copy

assert simrank.suites.driver  # Here: pytester forgets what its runs import.

pytest_plugins = ["pytester"]

HEAD = """
import os
import unittest

import pytest

import simrank
import simrank.distributed as dist

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
"""


def without_torch(monkeypatch):
    """Let ranks not import torch before they start: other tests are about greenlets."""
    monkeypatch.setattr(simrank.suites.session, "find_spec", lambda _: None)


@pytest.fixture
def suite(pytester, monkeypatch):
    """Run a test file on ranks in a pytest of its own; return what it shows and its outcomes."""
    monkeypatch.setenv("COLUMNS", "200")
    without_torch(monkeypatch)

    def run(body, *options, num_ranks=3, **files):
        for name, text in files.items():
            (pytester.path / f"{name}.py").write_text(HEAD + textwrap.dedent(text))
        (pytester.path / "test_it.py").write_text(HEAD + textwrap.dedent(body))
        return pytester.runpytest_inprocess(f"--simrank={num_ranks}", *options)

    return run


FIXTURES = """
@pytest.fixture(scope="session", autouse=True)
def group():
    dist.init_process_group("gloo")
    yield
    dist.destroy_process_group()
"""


def test_tests_run_on_all_ranks_with_torchrun_s_environment(suite):
    """At import, in fixtures and in bodies; module globals are each rank's own."""
    result = suite(
        """
        seen = []

        @pytest.fixture
        def mine():
            return simrank.full((2,), float(RANK))

        def test_sum(mine):
            seen.append(RANK)
            dist.all_reduce(mine)
            assert mine.tolist() == [3.0, 3.0]

        @pytest.mark.parametrize("n", [1, 2])
        class TestInAClass:
            @classmethod
            def setup_class(cls):
                cls.rank = RANK

            def setup_method(self):
                self.doubled = 2 * self.rank

            def test_method(self, n):
                assert (self.doubled, dist.get_rank()) == (2 * RANK, RANK)
                assert seen == [RANK]

        class TestCase(unittest.TestCase):
            def setUp(self):
                self.x = simrank.ones(1)

            def test_method(self):
                dist.all_reduce(self.x)
                self.assertEqual(self.x.item(), WORLD)

        def test_environment(request):
            names = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
            assert all(name in os.environ for name in names)
            assert os.environ["PYTEST_CURRENT_TEST"].endswith("test_environment (call)")
        """,
        conftest=FIXTURES,
    )
    result.assert_outcomes(passed=5)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*simrank: every test runs on 3 simulated rank(s)*"])


def test_a_rank_that_fails_ends_the_others_and_the_next_test_starts_clean(suite):
    """With its own assertion explained, and where the others were."""
    result = suite(
        """
        def test_one_fails():
            assert [RANK, 0] != [2, 0]
            dist.barrier()

        def test_next():
            dist.barrier()
        """,
        "-rA",
        conftest=FIXTURES,
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        ["on rank 2:", "*assert [[]2, 0[]] != [[]2, 0[]]", "ended there:",
         "  ranks 0-1: barrier #? on group 'default_pg' at *test_it.py:*"]
    )  # fmt: skip
    result.stdout.fnmatch_lines(["FAILED test_it.py::test_one_fails - rank 2: *assert*"])


def test_equal_failures_are_told_once_and_others_by_their_message(suite):
    """The first at a line in full."""
    result = suite(
        """
        def test_it():
            half = RANK // 2
            assert half == 5
        """
    )
    text = result.stdout.str()
    assert "on ranks 0-1:" in text
    assert "on rank 2, at the same line as on ranks 0-1:\nE   assert 1 == 5" in text
    assert text.count("half = RANK") == 1


def test_a_hang_is_the_tests_failure_with_its_report(suite):
    """Ranks that have ended the test do not count as waiting; the next test runs."""
    result = suite(
        """
        def test_hang():
            if RANK:
                dist.barrier()

        def test_next():
            dist.barrier()
        """,
        conftest=FIXTURES,
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        ["DeadlockError: deadlock (proved) at t=*: 2 rank(s) wait forever",
         "  ranks 1-2: barrier #? on group 'default_pg' at *test_it.py:*",
         "  rank 0: has ended the test"]
    )  # fmt: skip


def test_a_test_that_a_signal_cuts_off_is_a_failure_and_the_next_one_runs(suite):
    """As pytest-timeout does it, whose handler raises in the session that drives."""

    def cut_off(*_):
        pytest.fail("Timeout (>1.0s)")

    before = signal.signal(signal.SIGALRM, cut_off)
    try:
        result = suite(
            """
            import signal

            def test_long():
                if RANK == 1:
                    signal.raise_signal(signal.SIGALRM)
                for _ in range(100):
                    dist.barrier()

            def test_next():
                dist.barrier()
            """,
            conftest=FIXTURES,
        )
    finally:
        signal.signal(signal.SIGALRM, before)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        ["*Failed: Timeout (>1.0s)", "*simrank: interrupted at t=*", "*  rank*: barrier #*"]
    )


def test_skips_and_expected_failures_are_judged_over_all_ranks(suite):
    """A test skipped on some ranks has passed, and says so; strict marks hold for all together."""
    result = suite(
        """
        @pytest.mark.skip(reason="why not")
        def test_skip():
            raise AssertionError

        @pytest.mark.skipif(RANK > 0, reason="first only")
        def test_skip_on_some():
            pass

        @pytest.mark.xfail(strict=True)
        def test_fails_on_one():
            assert RANK == 0

        @pytest.mark.xfail(strict=True)
        def test_unexpected():
            pass

        @pytest.mark.xfail
        def test_expected_hang():
            if RANK:
                dist.barrier()

        def test_raises():
            with pytest.raises(ValueError, match="of rank"):
                raise ValueError(f"of rank {RANK}")
        """,
        "-v",
        conftest=FIXTURES,
    )
    result.assert_outcomes(passed=2, skipped=1, xfailed=2, failed=1)
    result.stdout.fnmatch_lines(
        ["*test_skip_on_some PASSED (skipped on ranks 1-2: first only)*",
         "FAILED test_it.py::test_unexpected*"]
    )  # fmt: skip


def test_what_a_rank_patches_prints_and_writes_is_its_own(suite):
    """monkeypatch, capsys, caplog, tmp_path and warnings, while ranks take turns."""
    result = suite(
        """
        import logging, random, warnings

        def test_it(monkeypatch, capsys, caplog, tmp_path):
            monkeypatch.setattr(random, "mark", RANK, raising=False)
            monkeypatch.setitem(os.__dict__, "other_mark", RANK)
            print("hello", RANK)
            logging.getLogger("x").warning("from %d", RANK)
            (tmp_path / "file").write_text(str(RANK))
            with pytest.warns(UserWarning, match=f"from {RANK}"):
                dist.barrier()
                warnings.warn(f"from {RANK}")
            assert (random.mark, os.other_mark) == (RANK, RANK)
            assert capsys.readouterr().out == f"hello {RANK}\\n"
            assert [record.getMessage() for record in caplog.records] == [f"from {RANK}"]
            assert (tmp_path / "file").read_text() == str(RANK)

        def test_nothing_is_left():
            assert not hasattr(random, "mark")
            assert not hasattr(os, "other_mark")
        """,
        conftest=FIXTURES,
    )
    result.assert_outcomes(passed=2)


def test_pytest_s_own_options_select_and_stop(suite):
    """`-k`, node ids, `-x`, `--lf`, `--collect-only`, and options of the suite's conftest."""
    body = """
        def test_a():
            assert RANK != 1

        def test_b(request):
            assert request.config.getoption("--flavour") == "sweet"
        """
    options = "def pytest_addoption(parser):\n    parser.addoption('--flavour')\n"
    run = partial(suite, body, "--flavour", "sweet", num_ranks=2)
    run(conftest=options).assert_outcomes(passed=1, failed=1)
    run("-k", "test_b").assert_outcomes(passed=1, deselected=1)
    run("-x").assert_outcomes(failed=1)
    run("test_it.py::test_b").assert_outcomes(passed=1)
    run("-p", "cacheprovider", "--lf").assert_outcomes(failed=1, deselected=1)
    result = run("--collect-only", "-q")
    result.stdout.fnmatch_lines(["test_it.py::test_a", "test_it.py::test_b"])
    assert run("nothere.py").ret == 4


def test_what_cannot_be_collected_on_a_rank_is_an_error_of_that_rank(suite):
    """And so are tests that some ranks have and others do not."""
    result = suite("if RANK == 1: raise ValueError('at import')\ndef test_a(): pass")
    assert result.ret == 2
    result.stdout.fnmatch_lines(["on rank 1:", "E   ValueError: at import"])
    result = suite("if RANK == 1:\n    def test_b(): pass\ndef test_a(): pass")
    assert result.ret == 2
    text = re.sub(r"\s+", " ", result.stdout.str())
    assert "ranks have collected different tests" in text
    assert "rank 1: also test_it.py::test_b" in text


def test_tests_that_start_ranks_themselves_run_in_the_main_program(pytester, monkeypatch):
    """Between others that do not; plain pytest has no ranks in its environment."""
    without_torch(monkeypatch)
    pytester.makepyfile("""
import os, pytest
import simrank.distributed as dist

WORLD = int(os.environ.get("WORLD_SIZE", 0))

def test_before():
    assert WORLD == 3

@pytest.mark.ranks(2)
def test_marked(rank, world_size):
    dist.init_process_group("gloo")
    assert (dist.get_rank(), dist.get_world_size(), WORLD) == (rank, 2, 0)

def test_after():
    assert WORLD == 3
""")
    pytester.runpytest_inprocess("--simrank=3").assert_outcomes(passed=3)


def test_a_number_of_ranks_below_one_is_refused(suite):
    """As bad usage."""
    result = suite("def test_a(): pass", num_ranks=0)
    assert result.ret == 4
    result.stderr.fnmatch_lines(["*--simrank=0: expected 1 or more ranks*"])


def test_what_a_test_spawns_has_modules_of_its_own(suite):
    """The test's file, found as pytest has found it, and packages beside it."""
    result = suite(
        """
        import simrank.multiprocessing as mp
        import launch
        from state import Model

        def check(rank, expected):
            import state

            assert isinstance(state.model, Model) and state.model.rank == rank
            assert type(expected) is Model and state.seen == [rank]

        def test_spawn():
            launch.run(check, Model(None))
            assert launch.state.seen == []
        """,
        "--import-mode=importlib",
        "-o", "pythonpath=.",
        num_ranks=1,
        launch="""
        import simrank.multiprocessing as mp
        import state

        def worker(rank, fn, model):
            state.model = state.Model(rank)
            state.seen.append(rank)
            fn(rank, model)

        def run(fn, model):
            mp.spawn(worker, args=(fn, model), nprocs=2)
        """,
        state="""
        class Model:
            def __init__(self, rank):
                self.rank = rank

        seen, model = [], Model(None)
        """,
    )  # fmt: skip
    result.assert_outcomes(passed=1)


COUNTS_IMPORTS = """
with open("imports.txt", "a") as file:
    file.write(f"{__name__} {RANK}\\n")
"""


def imports_of(pytester, name):
    """Return how often ranks have imported a file."""
    text = (pytester.path / "imports.txt").read_text()
    return sum(line.split()[0] == name for line in text.splitlines())


def test_a_failure_that_leaves_nothing_behind_starts_no_rank_anew(suite, pytester):
    """A broken fixture, or a wrong result after equal calls: as under torchrun, ranks go on."""
    result = suite(
        COUNTS_IMPORTS
        + """
@pytest.fixture
def broken():
    raise RuntimeError("no server")

@pytest.mark.parametrize("number", range(4))
def test_errors(broken, number):
    pass

def test_fails():
    dist.barrier()
    assert WORLD == 0

def test_passes():
    dist.barrier()
""",
        conftest=FIXTURES,
    )
    result.assert_outcomes(passed=1, failed=1, errors=4)
    assert imports_of(pytester, "test_it") == 3


def test_ranks_that_start_anew_import_the_file_of_the_next_test_alone(suite, pytester):
    """Other files when their tests are due; what took long is told."""
    result = suite(
        COUNTS_IMPORTS
        + """
def test_hangs():
    if RANK == 1:
        raise RuntimeError("no server")
    dist.barrier()

def test_passes():
    dist.barrier()
""",
        conftest=FIXTURES,
        test_before=COUNTS_IMPORTS + "\ndef test_before():\n    dist.barrier()\n",
        test_later=COUNTS_IMPORTS + "\ndef test_later():\n    dist.barrier()\n",
    )
    result.assert_outcomes(passed=3, failed=1)
    assert imports_of(pytester, "test_before") == 3
    assert imports_of(pytester, "test_it") == 6
    assert imports_of(pytester, "test_later") == 6


def test_restarted_ranks_apply_the_fixtures_of_a_folder_to_all_its_files(suite, pytester):
    """Its conftest is read once; the second file is collected after the first has run."""
    folder = pytester.mkdir("folder")
    (folder / "conftest.py").write_text(
        HEAD
        + textwrap.dedent(
            """
            @pytest.fixture(autouse=True)
            def marked(monkeypatch):
                monkeypatch.setenv("MARKED", "1")
            """
        )
    )
    for name in ("test_one", "test_two", "test_three"):
        (folder / f"{name}.py").write_text(
            HEAD + f"\n\ndef {name}():\n    assert os.environ['MARKED'] == '1'\n"
        )
    result = suite(
        """
        def test_hangs():
            if RANK == 1:
                raise RuntimeError("no server")
            dist.barrier()
        """,
        "test_it.py",
        "folder",
        conftest=FIXTURES,
    )
    result.assert_outcomes(passed=3, failed=1)


def test_restarted_ranks_make_fixtures_of_the_session_once(suite, pytester):
    """Not once per file: the next file is collected before the last test of a file ends."""
    for name in ("test_one", "test_two"):
        (pytester.path / f"{name}.py").write_text(
            HEAD + f"\n\ndef {name}(folder):\n    assert folder.name == 'common'\n"
        )
    result = suite(
        """
        def test_hangs():
            if RANK == 1:
                raise RuntimeError("no server")
            dist.barrier()
        """,
        "test_it.py",
        "test_one.py",
        "test_two.py",
        conftest=FIXTURES
        + textwrap.dedent(
            """
            @pytest.fixture(scope="session")
            def folder(tmp_path_factory):
                return tmp_path_factory.mktemp("common", numbered=False)
            """
        ),
    )
    result.assert_outcomes(passed=2, failed=1)


def test_restarts_that_take_long_are_told(suite, monkeypatch):
    """With the file that ranks have imported longest."""
    monkeypatch.setattr(simrank.suites.driver, "_SLOW_S", 0.0)
    result = suite(
        """
        def test_hangs():
            if RANK == 1:
                raise RuntimeError("no server")
            dist.barrier()

        def test_passes():
            dist.barrier()
        """,
        conftest=FIXTURES,
    )
    result.stdout.fnmatch_lines(
        [
            "simrank: 3 ranks were restarted 1 time(s): conftests took *s, "
            "test files *s, of which test_it.py *s"
        ]
    )


def test_a_hang_names_the_line_at_which_ranks_parted_where_asked_for(suite):
    """And offers to, where it is not."""
    body = """
        def test_parts():
            if RANK != 1:
                dist.barrier()

        def test_next():
            dist.barrier()
        """
    offered = suite(body, conftest=FIXTURES)
    offered.stdout.fnmatch_lines(["simrank: `--checks all`*--simrank-checks=all*"])
    reported = suite(body, "--simrank-divergence", conftest=FIXTURES)
    reported.stdout.fnmatch_lines(["  diverged at test_it.py:* `if RANK != 1:`: *"])
    reported.assert_outcomes(passed=1, failed=1)


# ---- reports of ranks, merged ----


def report(outcome, longrepr=None, when="call", **more):
    made = pytest.TestReport(
        "test_it.py::test_it", ("test_it.py", 0, "test_it"), {}, outcome, longrepr, when
    )
    vars(made).update(more)
    return made


SKIP = ("test_it.py", 1, "Skipped: no device")


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        (["passed", "passed"], "passed"),
        (["passed", "failed"], "failed"),
        (["skipped", "failed"], "failed"),
        (["skipped", "passed"], "passed"),
        (["skipped", "skipped"], "skipped"),
    ],
)
def test_a_phase_fails_where_a_rank_does_and_is_skipped_where_all_are(outcomes, expected):
    """Else it has passed."""
    reports = {rank: report(outcome, SKIP) for rank, outcome in enumerate(outcomes)}
    assert merged("call", reports, 2).outcome == expected


def test_a_strict_mark_is_no_failure_of_ranks_that_pass_where_another_fails_as_expected():
    """But where all pass it is."""
    passes = report("failed", "[XPASS(strict)] why")
    fails = report("skipped", "as expected", wasxfail="why")
    both = merged("call", {0: passes, 1: fails}, 2)
    assert (both.outcome, both.wasxfail) == ("skipped", "why")
    assert merged("call", {0: passes, 1: passes}, 2).failed


def test_which_ranks_have_skipped_is_told_unless_all_have():
    """With the reason of the first."""
    skipped, passed = [report("skipped", SKIP, "setup")], [report("passed", None, "setup")]
    assert skip_text({0: passed, 1: skipped, 2: skipped}) == "skipped on ranks 1-2: no device"
    assert skip_text({0: skipped, 1: skipped}) is None
    assert skip_text({0: passed}) is None


def test_equal_output_of_ranks_is_told_once():
    """With the ranks whose it is."""
    name = "Captured stdout call"
    reports = {rank: report("passed", sections=[(name, text)]) for rank, text in enumerate("aab")}
    shown = merged("call", reports, 3).sections
    assert shown == [(f"{name} on ranks 0-1", "a"), (f"{name} on rank 2", "b")]


@pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler")
def test_reports_print_copies_of_tensors():
    """Printing a tensor on a device waits for each of its elements, some microseconds."""
    torch = pytest.importorskip("torch")

    def program(rank):
        shown = torch.arange(100.0, device="cuda")
        torch.cuda.synchronize()
        start_s = time.perf_counter()
        with mock.patch("torch._tensor_str._tensor_str", text_of_copy()):
            text = str(shown)
        after_s = time.perf_counter()
        assert text == str(shown)
        assert after_s - start_s < 50e-6
        assert time.perf_counter() - after_s > 500e-6

    with simrank.Context.for_ranks(1) as ctx:
        ctx.multiprocessing.spawn(program, nprocs=1)
