"""The timeline: a file that Perfetto opens, with processes, tracks and flows."""

import json
from itertools import pairwise

import pytest

import simrank
import simrank.distributed as dist
from simrank.trace import Timeline


def program(rank, ctx):
    dist.init_process_group()
    x = ctx.ones(1000)
    dist.all_reduce(x)
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    x.tolist()


def traced(path, ranks=None, seed=0):
    timeline = Timeline(ranks)
    with simrank.Context("hgx_h100", seed=seed) as ctx:
        ctx.observe(timeline)
        ctx.multiprocessing.spawn(program, (ctx,), nprocs=3)
    timeline.write(path)
    return json.loads(path.read_text())["traceEvents"]


def test_one_process_per_rank_and_one_track_per_stream_and_host(tmp_path):
    """Names say which."""
    events = traced(tmp_path / "t.json")
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    tracks = {e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] == 1}
    assert processes == {0: "rank 0", 1: "rank 1", 2: "rank 2"}
    assert tracks == {"host", "default", "default_pg (async)"}


def test_slices_carry_algorithm_bytes_and_simulated_microseconds(tmp_path):
    """One slice per operation."""
    events = traced(tmp_path / "t.json")
    (first,) = [e for e in events if e["ph"] == "X" and e["pid"] == 0
                and e["name"] == "all_reduce #1 on group 'default_pg'"]  # fmt: skip
    assert first["args"]["bytes"] == 4000
    assert first["args"]["algorithm"] in ("one_shot", "two_shot", "ring", "halving_doubling")
    assert 1 < first["dur"] < 100


def test_flows_join_the_ranks_of_a_collective(tmp_path):
    """Each collective has a start, a step and an end on three ranks."""
    events = traced(tmp_path / "t.json")
    flows = [(e["id"], e["ph"]) for e in events if e.get("cat") == "collective"]
    assert flows == [(0, "s"), (0, "t"), (0, "f"), (1, "s"), (1, "t"), (1, "f")]


def test_trace_ranks_limits_the_processes(tmp_path):
    """Only what was asked for."""
    assert {e["pid"] for e in traced(tmp_path / "t.json", ranks=[1])} == {1}


@pytest.mark.parametrize("seed", [0, 7])
def test_the_same_seed_gives_a_byte_identical_trace(tmp_path, seed):
    """Two runs, the same bytes."""
    traced(tmp_path / "a.json", seed=seed)
    traced(tmp_path / "b.json", seed=seed)
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_sections_follow_one_another(tmp_path):
    """A second run starts where the first ended, and its slices name it."""
    timeline = Timeline()
    for name in ("first", "second"):
        timeline.begin_section(name)
        with simrank.Context("hgx_h100") as ctx:
            ctx.observe(timeline)
            ctx.multiprocessing.spawn(program, (ctx,), nprocs=2)
    slices = [e for e in timeline.events() if e["ph"] == "X"]
    ends = [e["ts"] + e["dur"] for e in slices if e["args"]["run"] == "first"]
    starts = [e["ts"] for e in slices if e["args"]["run"] == "second"]
    assert max(ends) <= min(starts)


def test_slices_of_a_track_do_not_overlap(tmp_path):
    """Neither on streams nor on hosts: a host waits after what it was charged for."""
    tracks = {}
    for event in traced(tmp_path / "t.json"):
        if event["ph"] == "X":
            span = (event["ts"], event["ts"] + event["dur"])
            tracks.setdefault((event["pid"], event["tid"]), []).append(span)
    assert len(tracks) == 9
    for spans in tracks.values():
        ordered = sorted(spans)
        assert all(second[0] >= first[1] - 1e-9 for first, second in pairwise(ordered))


def test_flow_ends_lie_on_slices_of_their_track(tmp_path):
    """Perfetto binds a flow to the slice that starts there."""
    events = traced(tmp_path / "t.json")
    starts = {(e["pid"], e["tid"], e["ts"]) for e in events if e["ph"] == "X"}
    flows = [e for e in events if e["ph"] in "stf"]
    assert flows
    assert all((e["pid"], e["tid"], e["ts"]) in starts for e in flows)
