"""The marker `ranks`: bodies on every rank, fixtures, failures by rank, options, seeds."""

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
