"""The cost level nccl: programs take what NCCL would, and its schedules say who waits for whom."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simrank
from simrank.collectives import Problem, build
from simrank.collectives.choice import chooser_of
from simrank.collectives.cost import ScheduleCost, Stretch
from simrank.collectives.data import NOT_ARRIVED, NOT_KNOWN
from simrank.collectives.nccl.cost_level import NO_SWITCH, NcclLevel, Tuning, size_bytes
from simrank.errors import ConfigError
from simrank.hardware import load_cluster

FIXED = settings(derandomize=True, deadline=None, database=None, max_examples=25)
CLUSTERS = {
    name: load_cluster(name if nodes == 1 else {"name": name, "nodes": nodes})
    for name, nodes in (("hgx_h100", 1), ("hgx_b200", 1), ("h100_ib", 4), ("mi300x", 1))
}
EVERY = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce",
         "gather", "scatter")  # fmt: skip


def chosen(cluster, collective, num_ranks, count, **how):
    problem = Problem(collective, num_ranks, count)
    return chooser_of(cluster).choose(problem, devices=np.arange(num_ranks), **how)


def ends(cluster, choice, arrivals_ps):
    assert choice.stretch is not None
    return choice.stretch.completions(
        ScheduleCost(cluster),
        choice.schedule,
        arrivals_ps,
        devices=np.arange(choice.schedule.world_size),
        itemsize=4,
    )


@pytest.mark.parametrize("name", CLUSTERS)
@pytest.mark.parametrize("collective", EVERY)
def test_together_a_collective_takes_what_nccl_is_predicted_to_take(name, collective):
    """To the picosecond, whichever schedule moves the data."""
    cluster = CLUSTERS[name]
    for num_ranks in (3, cluster.num_devices):
        for count in (1, 70_000, 1 << 24):
            choice = chosen(cluster, collective, num_ranks, count)
            size = size_bytes(Problem(collective, num_ranks, count))
            done = ends(cluster, choice, np.full(num_ranks, 10**9))
            assert choice.level == "nccl"
            assert done.max() - 10**9 == choice.stretch.duration_ps
            if collective not in ("gather", "scatter"):
                own = {"name": name, "nodes": cluster.num_nodes} if cluster.num_nodes > 1 else name
                found = simrank.predict(collective, size, num_ranks, own)
                assert choice.stretch.duration_ps == pytest.approx(found.time_us[0] * 1e6, abs=1)
                assert (choice.algorithm, choice.protocol) == (
                    found.algorithm[0],
                    found.protocol[0],
                )


@FIXED
@given(
    late=st.lists(st.integers(0, 10**9), min_size=8, max_size=8),
    count=st.integers(1, 1 << 22),
    collective=st.sampled_from(["all_reduce", "all_gather", "reduce_scatter"]),
)
def test_the_last_rank_decides_where_all_depend_on_all(late, count, collective):
    """Nobody ends before the last arrival, and the last end is at most a collective after it."""
    cluster = CLUSTERS["hgx_h100"]
    choice = chosen(cluster, collective, 8, count)
    done = ends(cluster, choice, np.array(late))
    took = done - max(late)
    assert (took > 0).all()
    assert took.max() <= choice.stretch.duration_ps + 1


@FIXED
@given(
    late=st.lists(st.integers(0, 10**9), min_size=8, max_size=8),
    algorithm=st.sampled_from(["ring", "tree", "nvls", "two_shot"]),
    absent=st.sets(st.integers(0, 7), max_size=2),
)
def test_what_takes_as_long_as_its_schedule_ends_with_it(late, algorithm, absent):
    """A stretch of one changes no end by a picosecond; where all have come, they end together."""
    cost, devices = ScheduleCost(CLUSTERS["hgx_h100"]), np.arange(8)
    schedule = build(Problem("all_reduce", 8, 1000), algorithm)
    arrivals = np.array(late)
    arrivals[list(absent)] = NOT_ARRIVED
    plain = cost.completions(schedule, arrivals, devices=devices, itemsize=4)
    stretched = Stretch(12345, 12345).completions(
        cost, schedule, arrivals, devices=devices, itemsize=4
    )
    if not absent:
        plain[:] = plain.max()
    assert np.array_equal(plain, stretched)


def test_nobody_waits_for_ranks_that_it_does_not_depend_on():
    """The root of a broadcast ends without the others; they do not without it."""
    cluster = CLUSTERS["hgx_h100"]
    choice = chosen(cluster, "broadcast", 4, 256)
    arrivals = np.array([5, NOT_ARRIVED, NOT_ARRIVED, NOT_ARRIVED])
    done = ends(cluster, choice, arrivals)
    assert 5 < done[0] < NOT_KNOWN
    assert (done[1:] == NOT_KNOWN).all()


def test_nothing_is_known_of_a_collective_that_nobody_has_called():
    """Whatever it costs."""
    cluster = CLUSTERS["hgx_h100"]
    choice = chosen(cluster, "all_reduce", 4, 256)
    assert (ends(cluster, choice, np.full(4, NOT_ARRIVED)) == NOT_KNOWN).all()


@pytest.mark.parametrize(
    ("name", "size", "algorithm", "protocol"),
    [
        ("hgx_h100", 1 << 10, "ring", "LL"),
        ("hgx_h100", 1 << 30, "nvls", "Simple"),
        ("h100_ib", 1 << 14, "tree", "LL"),
        ("h100_ib", 1 << 30, "nvls_tree", "Simple"),
        ("mi300x", 1 << 30, "ring", "Simple"),
    ],
)
def test_auto_is_what_nccl_would_choose(name, size, algorithm, protocol):
    """Never a kernel that it has not; the schedule of that name moves the data."""
    cluster = CLUSTERS[name]
    choice = chosen(cluster, "all_reduce", cluster.num_devices, size // 4)
    assert (choice.algorithm, choice.protocol) == (algorithm, protocol)
    assert choice.schedule.algorithm == algorithm
    assert choice.reason.startswith(f"{algorithm} {protocol}: fastest at nccl level of ")
    assert choice.estimates[0].algorithm == f"{algorithm} {protocol}"
    assert not choice.is_forced


def test_a_name_forces_as_nccl_algo_does():
    """The protocol is still the tuner's; a name that NCCL has not costs what its schedule does."""
    cluster = CLUSTERS["hgx_h100"]
    forced = chosen(cluster, "all_reduce", 8, 1 << 28, algorithm="ring")
    predicted = simrank.predict("all_reduce", 1 << 30, nccl_algo="Ring")
    assert forced.stretch.duration_ps == pytest.approx(predicted.time_us[0] * 1e6, abs=1)
    assert forced.is_forced
    own = chosen(cluster, "all_reduce", 8, 1 << 28, algorithm="one_shot")
    assert (own.level, own.stretch, own.protocol) == ("schedule", None, None)
    pair = chosen(cluster, "all_reduce", 2, 64, algorithm="nvls")  # A switch of two ranks: none.
    assert (pair.level, pair.schedule.algorithm) == ("schedule", "nvls")
    shaped = chosen(
        cluster, "all_reduce", 8, 1 << 20, algorithm="ring", options={"num_channels": 2}
    )
    assert shaped.level == "schedule"


def test_other_libraries_and_shared_devices_cost_what_their_schedules_do():
    """Gloo is not NCCL, which refuses two ranks on one device; one rank only copies."""
    cluster = CLUSTERS["hgx_h100"]
    assert chosen(cluster, "all_reduce", 8, 64, tuning=None).level == "schedule"
    assert chosen(cluster, "all_reduce", 1, 64).level == "schedule"
    shared = chooser_of(cluster).choose(
        Problem("all_reduce", 4, 64), devices=np.array([0, 0, 1, 1])
    )
    assert shared.level == "schedule"


def test_what_a_switch_cannot_reduce_goes_through_rings_and_trees():
    """A product, or 8-bit integers; and what a user leaves is all that is chosen from."""
    cluster = CLUSTERS["hgx_h100"]
    assert chosen(cluster, "all_reduce", 8, 1 << 28).algorithm == "nvls"
    assert chosen(cluster, "all_reduce", 8, 1 << 28, tuning=NO_SWITCH).algorithm == "ring"
    trees = Tuning(frozenset(["tree"]), frozenset(["LL128"]))
    choice = chosen(cluster, "all_reduce", 8, 1 << 28, tuning=trees)
    assert (choice.algorithm, choice.protocol) == ("tree", "LL128")
    with pytest.raises(ConfigError, match="what NCCL has for this collective and reduction here"):
        chosen(cluster, "all_gather", 8, 1 << 28, tuning=trees)


def test_the_busiest_rank_decides_uneven_messages():
    """An expert that everybody sends to takes as long as if all ranks got as much."""
    splits = np.ones((4, 4), dtype=np.int64) * 1000
    splits[:, 2] = 100_000
    uneven = Problem("all_to_all", 4, 0, splits=tuple(splits.ravel().tolist()))
    assert size_bytes(uneven) == 4 * 100_000 * 4
    even = Problem("all_to_all", 4, 100_000)
    level, devices = NcclLevel(CLUSTERS["hgx_h100"]), np.arange(4)
    times = [level.choose(each, devices, Tuning()).duration_ps for each in (uneven, even)]
    assert times[0] == times[1]


def test_a_cluster_without_network_cards_is_left_to_its_links():
    """Across nodes nothing is known of NCCL there; inside a node it is."""
    cluster = load_cluster({"name": "hgx_h100", "cost_level": "schedule"})
    assert cluster.nccl is None
    assert chooser_of(cluster).choose(
        Problem("all_reduce", 8, 64), devices=np.arange(8)
    ).level == "schedule"  # fmt: skip


def test_few_ranks_of_a_mesh_have_few_rings():
    """Two MI300X have one link, three two each; two were measured: 47.7 GB/s of bus bandwidth."""
    found = {
        size: simrank.predict("all_reduce", 1 << 32, size, "mi300x", calibration=None).busbw_GBps[0]
        for size in (2, 3, 8)
    }
    assert found[2] == pytest.approx(47.67, rel=0.02)
    assert found[3] == pytest.approx(2 * found[2], rel=0.03)
    assert found[8] == pytest.approx(312.9, rel=0.05)
    pair = simrank.predict("sendrecv", 1 << 32, 8, "mi300x", calibration=None)
    assert pair.busbw_GBps[0] < 48


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter"])
@pytest.mark.parametrize(("num_nodes", "algorithm"), [(2, "ring"), (128, "pat"), (96, "pat")])
def test_one_rank_per_node_takes_trees_where_a_ring_is_long(collective, num_nodes, algorithm):
    """NCCL's PAT, of 4 MiB here: so FSDP runs beside tensor parallelism."""
    cluster = load_cluster({"name": "h100_ib", "nodes": 128})
    problem = Problem(collective, num_nodes, (1 << 20) // num_nodes)
    choice = chooser_of(cluster).choose(problem, devices=np.arange(num_nodes) * 8)
    assert choice.algorithm == algorithm
    packed = chooser_of(cluster).choose(problem, devices=np.arange(num_nodes))
    assert packed.algorithm == "ring"


def test_trees_take_less_than_the_ring_would():
    """Five steps over the network instead of 31, and three quarters of its rate."""
    cluster = load_cluster({"name": "h100_ib", "nodes": 32})
    level, devices = NcclLevel(cluster), np.arange(32) * 8
    for count, factor in ((1 << 15, 0.6), (1 << 28, 1.4)):
        problem = Problem("all_gather", 32, count // 32)
        ring, pat = (
            level.choose(problem, devices, Tuning(frozenset([name]), frozenset(["Simple"])))
            for name in ("ring", "pat")
        )
        assert pat.duration_ps < factor * ring.duration_ps
