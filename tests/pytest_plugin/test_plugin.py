"""The marker `ranks`: bodies on every rank, fixtures, failures by rank, options, seeds."""

import sys

import pytest

import simrank
import simrank.distributed as dist

pytest_plugins = ["pytester"]


@pytest.fixture
def base():
    """A fixture of the user's, shared by all ranks."""
    return [1.0, 2.0]


@pytest.mark.ranks(8)
def test_the_body_runs_on_every_rank(rank, world_size, ctx, base):
    """With the rank, the number of ranks, the Context, and other fixtures."""
    dist.init_process_group("nccl")
    assert dist.get_rank() == rank
    assert world_size == dist.get_world_size() == 8
    x = ctx.tensor(base)
    dist.all_reduce(x)
    assert x.tolist() == [8.0, 16.0]


@pytest.mark.ranks(16)
def test_more_than_eight_ranks_get_more_nodes(ctx):
    """As spawn without a Context does."""
    assert ctx.cluster.num_nodes == 2


@pytest.mark.ranks(4, cluster="hgx_a100", seed=3, strict=True)
def test_other_arguments_are_the_contexts(ctx):
    """Cluster, seed, races, strict, faults and the others."""
    assert ctx.cluster.name == "hgx_a100"
    assert ctx.seed == 3


@pytest.mark.ranks(2)
@pytest.mark.parametrize("value", [1, 2])
class TestInAClass:
    """Methods and parameters work as everywhere."""

    def test_a_method_gets_its_parameter(self, rank, value):
        """On each rank."""
        assert rank in (0, 1)
        assert value in (1, 2)


@pytest.mark.ranks(3)
def test_without_ctx_the_factories_of_the_package_work(rank):
    """`simrank.zeros` is on the rank's own device."""
    assert simrank.zeros(1).device.index == rank


@pytest.mark.ranks(2)
def test_a_skip_on_all_ranks_is_a_skip():
    """Not a failure."""
    pytest.skip("on purpose")


def outcome(pytester, body, *options):
    """Run a test file in a pytest of its own."""
    pytester.makepyfile("import pytest, simrank, time\nimport simrank.distributed as dist\n" + body)
    return pytester.runpytest_inprocess("-p", "no:cacheprovider", *options)


def test_failures_are_grouped_by_rank_with_the_users_lines(pytester):
    """Equal ones once, with the ranks that had them; no frame of simrank's own."""
    result = outcome(
        pytester,
        """
@pytest.mark.ranks(8)
def test_it(rank):
    assert rank % 4 != 2, "a quarter"
""",
    )
    result.assert_outcomes(failed=1)
    text = result.stdout.str()
    assert "2 rank(s) failed at t=" in text
    assert "on ranks 2, 6" in text or "on rank 2:" in text
    assert "a quarter" in text
    assert "simrank/engine" not in text


def test_a_deadlock_is_the_tests_failure(pytester):
    """With the report."""
    result = outcome(
        pytester,
        """
@pytest.mark.ranks(4)
def test_it(rank):
    dist.init_process_group("nccl")
    if rank:
        dist.barrier()
""",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*DeadlockError: deadlock (proved)*"])


def test_seeds_look_for_bugs_of_order_and_say_how_to_replay(pytester):
    """The body passes without delays."""
    result = outcome(
        pytester,
        """
roll = []

@pytest.mark.ranks(3, seeds=100)
def test_it(rank):
    if rank == 0:
        roll.clear()
    time.sleep((rank + 1) * 1e-5)
    roll.append(rank)
    dist.init_process_group("gloo")
    dist.barrier()
    assert roll == [0, 1, 2]
""",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*seed * fails*", "*to replay: ranks(3, delays='*"])


def test_every_timing_finds_the_other_end_and_says_how_to_replay(pytester):
    """A test passes if every timing does; else it fails with the one that does not."""
    result = outcome(
        pytester,
        """
def receive(rank, ctx):
    dist.init_process_group("gloo")
    if rank:
        dist.send(ctx.ones(1, device="cpu"), 0)
    return [dist.recv(ctx.zeros(1, device="cpu")) for _ in range(2)] if rank == 0 else []

@pytest.mark.ranks(3, every_timing=True)
def test_all(rank, ctx):
    receive(rank, ctx)

@pytest.mark.ranks(3, every_timing=True)
def test_order(rank, ctx):
    assert receive(rank, ctx) in ([], [1, 2])
""",
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*not proved: 2 different ends*", "*TimingRun.parse('1')*"])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("@pytest.mark.ranks\ndef test_it(): pass", "write ranks(n)"),
        ("@pytest.mark.ranks('8')\ndef test_it(): pass", "write ranks(n)"),
        ("@pytest.mark.ranks(0)\ndef test_it(): pass", "expected 1 or more"),
        ("def test_it(rank): pass", "for tests marked with ranks"),
        ("@pytest.mark.ranks(2, sead=1)\ndef test_it(): pass", "sead"),
    ],
)
def test_a_marker_written_wrongly_says_what_was_expected(pytester, body, message):
    """Nothing runs on a guess."""
    result = outcome(pytester, body)
    assert message in result.stdout.str() + result.stderr.str()
    assert result.ret != 0


def test_timelines_are_written_where_asked(pytester):
    """One file per test."""
    result = outcome(
        pytester,
        "@pytest.mark.ranks(2)\ndef test_it(ctx):\n    ctx.ones(4).sum().item()\n",
        "--simrank-trace",
        "traces",
    )
    result.assert_outcomes(passed=1)
    (path,) = (pytester.path / "traces").iterdir()
    assert "traceEvents" in path.read_text()


def test_an_async_body_runs_on_every_rank(pytester):
    """It is no test that passes because nothing of it ran."""
    result = outcome(
        pytester,
        """
import asyncio

@pytest.mark.ranks(4)
async def test_it(rank):
    dist.init_process_group()
    await asyncio.sleep(1e-3)
    x = simrank.ones(1)
    dist.all_reduce(x)
    assert x.item() == 5
""",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*4 rank(s) failed at t=*: rank 0: AssertionError: assert 4.0 == 5*"]
    )


def test_a_body_that_yields_is_refused(pytester):
    """Nothing of it would run."""
    result = outcome(
        pytester,
        """
@pytest.mark.ranks(2)
def body(rank):
    yield 1

@pytest.mark.ranks(2)
async def test_it(rank):
    assert False
    yield
""",
    )
    result.assert_outcomes(failed=1)


TEST_CASE = """
import unittest

class TestIt(unittest.TestCase):
    def setUp(self):
        self.base = 10.0

    @pytest.mark.ranks(4)
    def test_sum(self):
        dist.init_process_group()
        x = simrank.full((1,), self.base)
        dist.all_reduce(x)
        self.assertEqual(x.item(), {expected})

    @pytest.mark.ranks(2)
    def test_skip(self):
        self.skipTest("on purpose")

    def test_plain(self):
        assert dist.is_available()
"""


@pytest.mark.parametrize(("expected", "failed"), [(40, 0), (41, 1)])
def test_a_method_of_a_test_case_runs_on_every_rank(pytester, expected, failed):
    """With setUp before and tearDown after it, once."""
    result = outcome(pytester, TEST_CASE.replace("{expected}", str(expected)))
    result.assert_outcomes(passed=2 - failed, failed=failed, skipped=1)
    if failed:
        result.stdout.fnmatch_lines(["*4 rank(s) failed at t=*: rank 0: AssertionError: 40.0*"])


def test_the_first_line_of_a_failure_says_what_a_rank_raised(pytester, monkeypatch):
    """It is all that a summary and JUnit show."""
    monkeypatch.setenv("COLUMNS", "200")
    result = outcome(
        pytester,
        """
@pytest.mark.ranks(4)
def test_it(rank):
    if rank > 1:
        raise ValueError("wrong shape\\nand more")
""",
        "--junit-xml=report.xml",
    )
    line = "2 rank(s) failed at t=0.000 us: rank 2: ValueError: wrong shape"
    result.stdout.fnmatch_lines([f"FAILED *::test_it - Failed: {line}"])
    assert line in (pytester.path / "report.xml").read_text()


@pytest.mark.slow
def test_post_mortem_lands_in_the_rank_s_frame(pytester):
    """With its variables, not in the plugin's."""
    pytester.makepyfile("""
import pytest
import simrank.distributed as dist

@pytest.mark.ranks(2)
def test_it(rank):
    secret = 4711 + rank
    dist.init_process_group()
    assert secret < 0
""")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--pdb"]
    result = pytester.run(*command, stdin=b"p secret\nq\n")
    result.stdout.fnmatch_lines(["*test_it()", "-> assert secret < 0", "(Pdb) 4711"])


def test_timelines_are_written_with_seeds_too(pytester):
    """Of the run without delays, or of the failure that was found."""
    body = """
@pytest.mark.ranks(2, seeds=3)
def test_it(rank, ctx):
    dist.init_process_group()
    dist.all_reduce(ctx.ones(4))
"""
    outcome(pytester, body, "--simrank-trace=traces").assert_outcomes(passed=1)
    (written,) = (pytester.path / "traces").iterdir()
    assert "all_reduce" in written.read_text()


def test_yaml_files_are_looked_for_beside_the_test(pytester):
    """Wherever pytest was started."""
    folder = pytester.mkdir("deep")
    (folder / "faults.yaml").write_text("faults: [{kill: 1, at: 1 us}]\n")
    (folder / "test_deep.py").write_text(
        "import pytest, time\n"
        "@pytest.mark.ranks(2, faults='faults.yaml')\n"
        "def test_it(rank):\n    time.sleep(1)\n"
    )
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", str(folder))
    result.stdout.fnmatch_lines(["*signal SIGKILL*"])


def test_outcomes_of_pytest_are_outcomes_on_ranks_too(pytester):
    """What `xfail` expects, and `pytest.xfail`; a mark that names no exception as well."""
    result = outcome(
        pytester,
        """
@pytest.mark.xfail(raises=ValueError, strict=True)
@pytest.mark.ranks(2)
def test_expected(rank):
    raise ValueError("as expected")

@pytest.mark.xfail(raises=ValueError)
@pytest.mark.ranks(2)
def test_unexpected(rank):
    raise KeyError("not that")

@pytest.mark.ranks(2)
def test_imperative(rank):
    pytest.xfail("on all")

@pytest.mark.xfail
@pytest.mark.ranks(2)
def test_any(rank):
    assert rank > 5
""",
    )
    result.assert_outcomes(xfailed=3, failed=1)


def test_what_a_fixture_makes_of_the_context_is_the_ranks(pytester):
    """Though the test itself does not ask for `ctx`."""
    result = outcome(
        pytester,
        """
@pytest.fixture
def x(ctx):
    return ctx.ones(3)

@pytest.mark.ranks(2)
def test_it(x, rank):
    assert x[0].item() == 1
""",
    )
    result.assert_outcomes(passed=1)


def test_slips_in_the_marker_and_the_body_are_told(pytester):
    """A misspelt option with what was meant; a comparison that is returned, not asserted."""
    result = outcome(
        pytester,
        """
@pytest.mark.ranks(2, clutser="hgx_h100")
def test_marker(rank):
    pass

@pytest.mark.ranks(2)
def test_return(rank):
    return rank == 5
""",
        "-W",
        "error",
    )
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*no option `clutser`*", "*write `cluster`*"])
    result.stdout.fnmatch_lines(["*PytestReturnNotNoneWarning*"])


def test_a_marked_test_whose_file_has_taken_what_is_private_is_each_ranks_own(pytester):
    """As on real ranks, each of which imports the file: functions and methods, with fixtures."""
    pytester.makepyfile(
        accelerate="""
        class State:
            known = {}
            def __init__(self, rank):
                self.rank = self.known.setdefault("rank", rank)
        """,
        test_taker="""
        import os
        import unittest
        import pytest
        from accelerate import State

        pytestmark = pytest.mark.ranks(2, carrier="thread")

        @pytest.fixture
        def five():
            return 5

        def test_function(rank, five):
            assert State(rank).rank == rank
            assert five == 5

        class TestClass:
            def setup_method(self):
                self.six = 6

            def test_method(self, rank):
                assert self.state(rank).rank == rank
                assert self.six == 6

            def state(self, rank):
                assert isinstance(self, TestClass)
                return State(rank)

        class TestCase(unittest.TestCase):
            def setUp(self):
                self.seven = 7

            def test_case(self):
                rank = int(os.environ["RANK"])
                self.assertEqual((State(rank).rank, self.seven), (rank, 7))

        def test_failure(rank):
            assert State(rank).rank == 1
        """,
    )
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(["*rank 0*", "*assert*State(rank).rank == 1*"])
    sys.modules.pop("accelerate", None)


FAILING = """
import pytest
import simrank
import simrank.distributed as dist


def helper(x):
    dist.all_reduce(x)


def hangs(rank):
    dist.init_process_group("nccl")
    if rank == 0:
        helper(simrank.ones(2))


def differs(rank):
    dist.init_process_group("nccl")
    helper(simrank.ones(2 + rank))


@pytest.mark.ranks(2)
def test_marked_hang(rank):
    hangs(rank)


@pytest.mark.ranks(2)
def test_marked_mismatch(rank):
    differs(rank)


def test_hang():
    with simrank.Context("hgx_h100") as ctx:
        ctx.multiprocessing.spawn(hangs, nprocs=2)


def test_mismatch():
    with simrank.Context("hgx_h100") as ctx:
        ctx.multiprocessing.spawn(differs, nprocs=2)


def test_of_the_library():
    simrank.Context("no such cluster")


@pytest.mark.ranks(1)
def test_skipped():
    pytest.skip("on purpose")
"""


def test_a_failure_shows_the_suite_s_own_lines_and_the_report(pytester):
    """Frames of simrank are shown by `--full-trace` alone."""
    pytester.makepyfile(test_it=FAILING)
    result = pytester.runpytest("-q")
    result.assert_outcomes(failed=5, skipped=1)
    text = result.stdout.str()
    assert "simrank/" not in text
    assert text.count("deadlock (proved)") == 2
    result.stdout.fnmatch_lines(
        [
            ">           ctx.multiprocessing.spawn(hangs, nprocs=2)",
            "E           simrank.errors.DeadlockError: deadlock (proved)*",
            "E             rank 0: *all_reduce #1 on group 'default_pg' *at test_it.py:7",
            "E             rank 1: returned*",
            "test_it.py:33: DeadlockError",
        ]
    )
    assert len(result.outlines) < 90  # 18 for each.
    full = pytester.runpytest("-q", "--full-trace", "-k", "test_hang")
    assert "simrank/engine/loop.py" in full.stdout.str()
