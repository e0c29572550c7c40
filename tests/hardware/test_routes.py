"""Routes of a whole cluster from those of one and two nodes; more are in `test_cluster`."""

from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import simrank
import simrank.distributed as dist
from simrank.errors import ConfigError, ProcessExitedException, UnsupportedError
from simrank.formats.astra_sim import network_yaml
from simrank.hardware import load_cluster
from simrank.hardware import routes as module
from simrank.hardware.routes import Edge, ShortestRoutes


def test_routes_do_not_depend_on_what_was_asked_before():
    """Next edges are looked up as they are needed; asking for others in between changes nothing."""
    reference, cluster = (load_cluster({"name": "h100_ib", "nodes": 3}) for _ in range(2))
    src, dst = (part.ravel() for part in np.indices((24, 24)))
    whole = reference.paths(src, dst)
    for seed in range(3):
        some = np.random.default_rng(seed).permutation(len(src))[:40]
        found = cluster.paths(src[some], dst[some])
        width = found.links.shape[1]
        assert np.array_equal(found.links, whole.links[some, :width])
        assert np.array_equal(found.latency_ps, whole.latency_ps[some])


def test_a_large_ring_knows_its_neighbours():
    """A thousand devices without a switch: either way around, the shorter one."""
    links = [
        {"between": [f"gpu{i}", f"gpu{(i + 1) % 1000}"], "bandwidth": "1 GB/s", "latency": "1 us"}
        for i in range(1000)
    ]
    device = {"like": "hgx_h100", "count": 1000}
    cluster = load_cluster({"name": "r", "source": "assumed", "device": device, "links": links})
    assert cluster.paths([0, 0, 999], [1, 999, 9]).latency_ps.tolist() == [10**6, 10**6, 10**7]


# ---- shortest next edges on a graph ----


def shortest_next_edges(edges, num_vertices, targets):
    """Return the edge to take at each vertex towards each target."""
    vertex, column = np.indices((num_vertices, len(targets)))
    routes = ShortestRoutes(edges, num_vertices, targets)
    found = routes.next_edges(vertex.ravel(), column.ravel())
    return found.reshape(num_vertices, len(targets))


def both_ways(*pairs):
    """Return edges of latency 1 in both directions between pairs of vertices."""
    edges = []
    for number, (first, second) in enumerate(pairs):
        edges.append(Edge(first, second, 0, 2 * number, 1))
        edges.append(Edge(second, first, 0, 2 * number + 1, 1))
    return edges


def test_each_vertex_points_towards_each_target():
    """Along a chain, everything flows to the target, which points nowhere."""
    edges = both_ways((0, 1), (1, 2))
    found = shortest_next_edges(edges, 3, np.array([0, 2]))

    assert found.tolist() == [[-1, 0], [1, 2], [3, -1]]


def test_without_a_route_there_is_no_next_edge():
    """An unreachable vertex is marked, not walked from."""
    found = shortest_next_edges(both_ways((0, 1)), 3, np.array([0]))

    assert found[:, 0].tolist() == [-1, 1, -1]


def test_the_lower_vertex_wins_a_tie():
    """Whatever the order of the edges."""
    edges = both_ways((0, 2), (0, 1), (1, 3), (2, 3))
    found = shortest_next_edges(edges, 4, np.array([3]))

    assert edges[found[0, 0]].head == 1


@st.composite
def graphs(draw):
    """Draw a directed graph with few different costs, so that there are ties."""
    num_vertices = draw(st.integers(2, 8))
    pairs = [(a, b) for a in range(num_vertices) for b in range(num_vertices) if a != b]
    chosen = draw(st.lists(st.sampled_from(pairs), min_size=1, unique=True))
    costs = draw(st.lists(st.integers(0, 3), min_size=len(chosen), max_size=len(chosen)))
    return num_vertices, [
        Edge(a, b, 0, number, cost)
        for number, ((a, b), cost) in enumerate(zip(chosen, costs, strict=True))
    ]


def cheapest(edges, num_vertices):
    """Return (latency, hops) between all vertices, by Floyd and Warshall's algorithm."""
    far = (10**6, 10**6)
    found = {(a, b): far for a in range(num_vertices) for b in range(num_vertices)}
    found |= {(edge.tail, edge.head): (edge.latency_ps, 1) for edge in edges}
    found |= {(a, a): (0, 0) for a in range(num_vertices)}
    for via in range(num_vertices):
        for a, b in found:
            left, right = found[a, via], found[via, b]
            found[a, b] = min(found[a, b], (left[0] + right[0], left[1] + right[1]))
    return {pair: cost for pair, cost in found.items() if cost < far}


@pytest.mark.parametrize(("dense", "block"), [(0, 10), (10**6, 10), (8, 4_000_000)])
def test_next_edges_are_the_first_on_a_shortest_route(monkeypatch, dense, block):
    """Relaxed by what changed or as a whole, at once or in blocks."""
    monkeypatch.setattr(module, "_DENSE", dense)
    monkeypatch.setattr(module, "_BLOCK", block)

    @settings(derandomize=True, deadline=None, database=None, max_examples=15)
    @given(graph=graphs())
    def check(graph):
        num_vertices, edges = graph
        costs = cheapest(edges, num_vertices)
        found = shortest_next_edges(edges, num_vertices, np.arange(num_vertices))
        for vertex in range(num_vertices):
            for target in range(num_vertices):
                expected = [
                    (edge.head, number)
                    for number, edge in enumerate(edges)
                    if edge.tail == vertex != target
                    and (edge.head, target) in costs
                    and costs[vertex, target]
                    == (
                        edge.latency_ps + costs[edge.head, target][0],
                        1 + costs[edge.head, target][1],
                    )
                ]
                assert found[vertex, target] == min(expected, default=(0, -1))[1]

    check()


# ---- pods: routes over uplinks, how flows spread over them, and what NCCL's times make of it ----

CLUSTERS = Path(__file__).resolve().parents[2] / "configs" / "clusters"
FLAT = yaml.safe_load((CLUSTERS / "h100_ib.yaml").read_text())
UPLINK = {"bandwidth": "47 GB/s", "latency": "0.4 us", "source": "assumed"}
FIXED = settings(derandomize=True, deadline=None, database=None, max_examples=15)
SIZE = 64 << 20


def podded(num_nodes=8, **pods):
    """Return eight nodes in two pods, unless told otherwise."""
    pods = {"nodes": 4, "uplinks": 4} | UPLINK | pods
    return FLAT | {"nodes": num_nodes, "fabric": FLAT["fabric"] | {"pods": pods}}


def route(cluster, src, dst):
    """Return the names of the links from one device to another."""
    links = cluster.paths(src, dst).links[0]
    return [cluster.link_name(int(index)) for index in links if index < cluster.num_links]


def took_ps(program, cluster, nprocs=64, **options):
    """Return the simulated time of a program on shape-only data."""
    with simrank.Context(cluster, data=False, **options) as ctx:
        ctx.multiprocessing.spawn(program, (ctx,), nprocs=nprocs)
        return ctx.now_ps


def called(name, size=SIZE, ranks=None):
    """Return a program that calls a collective once."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        group = dist.new_group(ranks)
        if ranks is None or rank in ranks:
            x = ctx.empty(size)
            if name == "all_to_all":
                dist.all_to_all_single(ctx.empty(size), x, group=group)
            else:
                dist.all_reduce(x, group=group)

    return program


def test_routes_within_a_pod_are_those_without_pods():
    """Also between nodes, and for many pairs at once."""
    flat, cluster = load_cluster(FLAT | {"nodes": 8}), load_cluster(podded())
    devices = np.arange(32)
    src, dst = (each.ravel() for each in np.meshgrid(devices, devices))
    for first in (0, 32):
        theirs, ours = (each.paths(src + first, dst + first) for each in (flat, cluster))
        assert ours.latency_ps.tolist() == theirs.latency_ps.tolist()
        assert [set(row[row < cluster.num_links]) for row in ours.links] == [
            set(row[row < flat.num_links]) for row in theirs.links
        ]


def test_a_route_to_another_pod_goes_up_to_a_spine_and_down_from_the_same():
    """On the rail that it comes to; its latency is in the route's."""
    cluster = load_cluster(podded(uplinks=1))
    assert route(cluster, 0, 32) == [
        "node 0: gpu0 -> nic0",
        "node 0: nic0 -> rail0",
        "pod 0: rail0 -> spine0",
        "pod 1: spine0 -> rail0",
        "node 4: rail0 -> nic0",
        "node 4: nic0 -> gpu0",
    ]
    changing = route(cluster, 1, 39)
    assert changing[:2] == ["node 0: gpu1 -> nvswitch", "node 0: nvswitch -> gpu7"]
    assert changing[4:6] == ["pod 0: rail7 -> spine0", "pod 1: spine0 -> rail7"]
    within_ps, across_ps = cluster.paths([0, 0], [8, 32]).latency_ps
    assert across_ps - within_ps == 2 * 400_000


@FIXED
@given(
    nodes=st.integers(1, 9), of_pod=st.integers(1, 4), uplinks=st.integers(1, 5),
    routing=st.sampled_from(["ecmp", "adaptive"]), data=st.data(),
)  # fmt: skip
def test_a_route_crosses_uplinks_if_and_only_if_its_ends_are_of_two_pods(
    nodes, of_pod, uplinks, routing, data
):
    """One up from the source's pod, one down to the target's; whoever is asked for with it."""
    cluster = load_cluster(podded(nodes, nodes=of_pod, uplinks=uplinks, routing=routing))
    device = st.integers(0, cluster.num_devices - 1)
    pairs = data.draw(st.lists(st.tuples(device, device), min_size=1, max_size=6))
    found = cluster.paths(*np.array(pairs).T).links
    for (src, dst), links in zip(pairs, found, strict=True):
        names = [cluster.link_name(int(link)) for link in links if link < cluster.num_links]
        assert names == route(cluster, src, dst)
        pods = [device // 8 // of_pod for device in (src, dst)]
        crossed = [name for name in names if name.startswith("pod")]
        if pods[0] == pods[1]:
            assert crossed == []
        else:
            (up, down), (rail, spine) = crossed, crossed[0].split(": ")[1].split(" -> ")
            assert (up, down) == (
                f"pod {pods[0]}: {rail} -> {spine}", f"pod {pods[1]}: {spine} -> {rail}"
            )  # fmt: skip


def test_a_hash_spreads_pairs_evenly_over_uplinks_and_differently_for_neighbours():
    """As ECMP does: evenly in the mean only, so that some meet."""
    cluster = load_cluster(podded(64, nodes=32, uplinks=16))
    src = np.repeat(np.arange(0, 256, 8), 32)
    links = cluster.paths(src, np.tile(np.arange(256, 512, 8), 32)).links
    counts = np.bincount(links[:, 2] - links[:, 2].min())
    counts = counts[counts > 0]
    assert len(counts) == 16
    assert counts.sum() == 1024
    assert 40 <= counts.min() < 64 < counts.max() <= 90
    assert len(set(links[:32, 2].tolist())) > 8


def test_adaptive_routing_is_one_link_of_the_uplinks_joint_rate():
    """Packets take whatever is free."""
    cluster = load_cluster(podded(routing="adaptive"))
    assert route(cluster, 0, 32)[2] == "pod 0: rail0 -> spine0"
    up = cluster.link_index("rail0", "spine0", node=0)
    assert cluster.link_bandwidth_bytes_per_s[up] == 4 * 47e9


def test_every_uplink_is_found_by_its_name():
    """And what is none is said to be none."""
    cluster = load_cluster(podded(6, uplinks=3))
    for link in range(cluster.first_uplink, cluster.num_links):
        pod, ends = cluster.link_name(link).removeprefix("pod ").split(": ")
        assert cluster.link_index(*ends.split(" -> "), node=int(pod)) == link
    with pytest.raises(ValueError, match=r"pods are 0 to 1, got 2"):
        cluster.link_index("rail0", "spine0", node=2)
    with pytest.raises(ValueError, match=r"exists in every pod: say which, as in `pod 0: rail0"):
        cluster.link_index("rail0", "spine0")
    with pytest.raises(ValueError, match=r"has no link from rail0 to spine3"):
        cluster.link_index("rail0", "spine3", node=0)


@pytest.mark.parametrize("name", ["all_reduce", "all_to_all"])
def test_what_stays_in_a_pod_costs_what_it_does_without_pods(name):
    """To the picosecond, in either pod."""
    for first in (0, 32):
        program = called(name, ranks=list(range(first, first + 32)))
        assert took_ps(program, podded()) == took_ps(program, FLAT | {"nodes": 8})


def test_oversubscribed_spines_slow_an_all_to_all_and_no_ring():
    """Of four nodes on one uplink per rail, half of what they send goes over it."""
    flat = {
        name: took_ps(called(name), FLAT | {"nodes": 8}) for name in ("all_to_all", "all_reduce")
    }
    for uplinks, slower in ((4, 1.0), (1, 4 * 32 / 56)):
        cluster = podded(uplinks=uplinks, routing="adaptive")
        found = took_ps(called("all_to_all"), cluster) / flat["all_to_all"]
        assert found == pytest.approx(slower, rel=0.05)
        assert took_ps(called("all_reduce"), cluster) < 1.03 * flat["all_reduce"]


def test_flows_that_meet_on_an_uplink_make_ecmp_slower_than_adaptive_routing():
    """Four pairs of nodes on one rail, with an uplink for each: as slow as most of them meet."""
    pairs = [(8 * node, 32 + 8 * node) for node in range(4)]

    def program(rank, ctx):
        dist.init_process_group("nccl")
        for group in [dist.new_group(pair) for pair in pairs]:
            if dist.get_rank(group) >= 0:
                dist.all_reduce(ctx.empty(SIZE), group=group)

    ecmp = load_cluster(podded())
    ways = [route(ecmp, *ends)[2] for pair in pairs for ends in (pair, pair[::-1])]
    most_met = max(map(ways.count, ways))
    assert most_met > 1
    adaptive_ps, ecmp_ps = (took_ps(program, podded(routing=how)) for how in ("adaptive", "ecmp"))
    assert ecmp_ps == pytest.approx(most_met * adaptive_ps, rel=0.03)


def test_small_messages_take_the_uplinks_latency_longer():
    """Of a step between pods, once up and once down."""
    within, across = (
        took_ps(called("all_reduce", size=2, ranks=[0, other]), podded()) for other in (8, 32)
    )
    assert 2 * 400_000 <= across - within <= 8 * 400_000


def test_groups_share_the_uplink_that_their_rings_cross():
    """Two pairs of one rail, on different nodes: one uplink takes both in twice the time."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        pairs = [dist.new_group([0, 32]), dist.new_group([8, 40])]
        for pair in pairs:
            if dist.get_rank(pair) >= 0:
                dist.all_reduce(ctx.empty(SIZE), group=pair)

    wide, narrow = (took_ps(program, podded(uplinks=n, routing="adaptive")) for n in (4, 1))
    assert narrow == pytest.approx(2 * wide, rel=0.05)


def test_an_uplink_can_be_slow_or_down():
    """Who crosses it is slow, or hangs and is told of."""
    program = called("all_reduce", ranks=[0, 32])
    cluster = podded(uplinks=1)
    slow = [{"slow_link": "pod 0: rail0 -> spine0", "factor": 10}]
    assert took_ps(program, cluster, faults=slow) > 5 * took_ps(program, cluster)
    down = [{"drop_link": "pod 1: spine0 -> rail0"}]
    with pytest.raises((simrank.errors.DeadlockError, ProcessExitedException), match="all_reduce"):
        took_ps(program, cluster, faults=down)


def test_closed_forms_refuse_what_crosses_uplinks():
    """They know nothing of what meets there; within a pod they hold."""
    with pytest.raises(UnsupportedError, match="several pods of cluster h100_ib"):
        simrank.predict("all_reduce", 1 << 20, 64, podded())
    within, flat = (
        simrank.predict("all_reduce", 1 << 20, 32, each).time_us.tolist()
        for each in (podded(), FLAT | {"nodes": 8})
    )
    assert within == flat


@pytest.mark.parametrize(
    ("fabric", "text"),
    [
        ({"links": [*FLAT["fabric"]["links"], {"between": ["rail0", "rail1"]} | UPLINK]},
         "links to nodes alone: pods join their switches by spines"),
        ({"pods": {"nodes": 4, "uplinks": 0} | UPLINK}, "uplinks"),
        ({"pods": {"nodes": 4, "uplinks": 2, "routing": "random"} | UPLINK}, "ecmp, adaptive"),
        ({"pods": {"nodes": 4, "uplinks": 2, "bandwidth": "1 GB/s", "latency": "1 us"}},
         "a source for bandwidth, latency"),
    ],
)  # fmt: skip
def test_pods_that_cannot_be_are_refused_with_the_place(fabric, text):
    """And what is expected there."""
    cluster = podded()
    with pytest.raises(ConfigError, match=text):
        load_cluster(cluster | {"fabric": cluster["fabric"] | fabric})


def test_what_has_no_word_for_pods_is_not_written():
    """ASTRA-sim's network files have dimensions alone."""
    with pytest.raises(ConfigError, match="no pods"):
        network_yaml(load_cluster(podded()))


def test_devices_of_one_pod_stand_to_each_other_as_those_of_the_first_nodes():
    """So that groups alike share what is known of them; those of two pods stand for themselves."""
    cluster = load_cluster(podded(12))
    within, across = np.array([64, 65, 81]), np.array([24, 33])
    alike, nodes = cluster.first_alike(within)
    assert (alike.tolist(), nodes.tolist()) == ([0, 1, 9], [8, 10])
    links = [cluster.paths(each[0], each[2]).links[0] for each in (alike, within)]
    assert cluster.links_on(nodes, links[0].astype(np.int64)).tolist() == links[1].tolist()
    assert cluster.first_alike(across)[0].tolist() == across.tolist()
