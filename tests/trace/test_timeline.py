"""The timeline: a file that Perfetto opens, with processes, tracks and flows."""

import json
from itertools import pairwise

import pytest

import simrank
import simrank.distributed as dist
from simrank.trace import Timeline
from simrank.trace.timeline import Counters


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
    assert processes == {0: "rank 0", 1: "rank 1", 2: "rank 2", 1 << 30: "links"}
    assert tracks == {"host", "default", "default_pg (async)"}


def test_slices_carry_algorithm_bytes_and_simulated_microseconds(tmp_path):
    """One slice per operation; equal calls have one name, by which Perfetto groups them."""
    events = traced(tmp_path / "t.json")
    first, second = [
        e for e in events if e["ph"] == "X" and e["pid"] == 0 and e["name"] == "all_reduce"
    ]
    assert (first["args"]["number"], second["args"]["number"]) == (1, 2)
    assert first["args"]["group"] == "default_pg"
    assert first["args"]["bytes"] == 4000
    assert first["args"]["algorithm"] in ("one_shot", "two_shot", "ring", "halving_doubling")
    assert 1 < first["dur"] < 100


def test_slices_say_which_line_of_the_program_they_are_of(tmp_path):
    """Operations, launches and waits; a wait says what for."""
    events = traced(tmp_path / "t.json")
    first = program.__code__.co_firstlineno
    lines = {}
    for event in events:
        if event["ph"] == "X" and event["pid"] == 0:
            file, _, line = event["args"]["at"].partition(":")
            assert file == "test_timeline.py"
            lines.setdefault(event["name"], []).append(int(line) - first)
    assert lines == {
        "launch fill_": [2],
        "launch all_reduce": [3, 4],
        "fill_": [2],
        "all_reduce": [3, 4],
        "wait: all_reduce": [6, 6],
    }
    waits = [e["args"]["for"] for e in events if e["name"].startswith("wait: ") and e["pid"] == 1]
    assert waits == [f"all_reduce #{number} on group 'default_pg'" for number in (1, 2)]


def test_equal_programs_of_two_files_have_lines_of_their_own(tmp_path):
    """Python holds their code for equal."""
    timeline = Timeline()
    functions = []
    for name in ("one.py", "two.py"):
        names = {"simrank": simrank}
        exec(compile("def make():\n    simrank.ones(4)\n", name, "exec"), names)  # noqa: S102
        functions.append(names["make"])
    with simrank.Context("hgx_h100") as ctx:
        ctx.observe(timeline)
        ctx.multiprocessing.spawn(lambda rank: functions[rank](), nprocs=2)
    places = {e["args"]["at"] for e in timeline.events() if e["ph"] == "X"}
    assert places == {"one.py:2", "two.py:2"}


def test_what_ranks_send_is_counted_on_the_links_that_it_crosses(tmp_path):
    """Rate x time is the bytes of the copy; nothing is left at the end."""
    timeline = Timeline()

    def sends(rank):
        dist.init_process_group()
        x = simrank.ones(1 << 20)
        if rank < 2:
            (dist.send if rank == 0 else dist.recv)(x, 1 - rank)
        dist.all_reduce(x)
        simrank.cuda.synchronize()

    with simrank.Context("hgx_h100") as ctx:
        ctx.observe(timeline)
        ctx.multiprocessing.spawn(sends, nprocs=4)
    sent = {}
    for event in timeline.events():
        if event["ph"] == "C" and event["pid"] == 1 << 30:
            track = sent.setdefault(event["name"], [])
            track.append((event["ts"], event["args"]["GB/s"]))
    assert set(sent) == {
        name
        for rank in range(4)
        for name in (f"node 0: gpu{rank} -> nvswitch", f"node 0: nvswitch -> gpu{rank}")
    }
    sizes = {
        name: sum(
            rate * (after[0] - before[0]) * 1e3
            for before, after in pairwise(track)
            for rate in (before[1],)
        )
        for name, track in sent.items()
    }
    reduced = sizes["node 0: gpu3 -> nvswitch"]
    assert sizes["node 0: gpu0 -> nvswitch"] - reduced == pytest.approx(4 << 20, rel=1e-4)
    assert sizes["node 0: nvswitch -> gpu1"] - reduced == pytest.approx(4 << 20, rel=1e-4)
    assert all(track[-1][1] == 0 for track in sent.values())


def test_the_memory_of_each_device_is_counted(tmp_path):
    """Its peak is the device's, and what was there before is in it."""
    timeline = Timeline()

    def allocates(rank):
        x = simrank.ones(1 << 20)
        for _ in range(2):
            y = x + 1
            y.tolist()
        del x, y

    with simrank.Context("hgx_h100") as ctx:
        kept = ctx.ones(1 << 18, device="cuda:1")
        ctx.observe(timeline)
        ctx.multiprocessing.spawn(allocates, nprocs=2)
        peaks = [device.memory.peak_bytes for device in ctx.devices]
        del kept
    values = {}
    for event in timeline.events():
        if event["ph"] == "C":
            assert event["name"] == f"memory of device {event['pid']}"
            values.setdefault(event["pid"], []).append(event["args"]["bytes"])
    assert [max(values[device]) for device in range(2)] == peaks
    assert values[1][0] == (1 << 20) + (4 << 20)
    assert [values[device][-1] for device in range(2)] == [0, 0]


def test_sections_begin_with_empty_memory(tmp_path):
    """A run that follows has devices of its own."""
    timeline, kept = Timeline(), []
    for size in (1 << 18, 1 << 19):
        timeline.begin_section(str(size))
        with simrank.Context("hgx_h100") as ctx:
            ctx.observe(timeline)
            kept.append(ctx.ones(size))
            ctx.synchronize()
            del kept[:-1]
    sizes = [e["args"]["bytes"] for e in timeline.events() if e["ph"] == "C"]
    assert sizes == [1 << 20, 1 << 21]


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
    assert max(ends) <= min(starts) + 1e-9  # Rounded sums.


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


# ---- counter tracks: values added up from their changes, whatever order these are told in ----


def shown(counters):
    """Return (process, name, time in us, value) of each event."""
    return [
        (e["pid"], e["name"], e["ts"], e["args"]["bytes"])
        for e in counters.events()
        if e["ph"] == "C"
    ]


def test_values_are_sums_of_changes_by_time():
    """One event where the value has changed; what cancels out shows nothing."""
    counters = Counters()
    for time_us, change in ((3, -1), (1, 2), (2, 5), (2, -5), (3, 4)):
        counters.add(0, "memory", "bytes", time_us * 10**6, change)
    assert shown(counters) == [(0, "memory", 1.0, 2), (0, "memory", 3.0, 5)]


def test_spans_that_overlap_add_up_and_leave_nothing():
    """Also where the sums of rates are not exact."""
    counters = Counters()
    counters.span(0, "link", "bytes", (0, 4 * 10**6), 0.1)
    counters.span(0, "link", "bytes", (2 * 10**6, 6 * 10**6), 0.2)
    counters.span(1, "link", "bytes", (0, 10**6), 7.0)
    assert shown(counters) == [
        (0, "link", 0.0, 0.1),
        (0, "link", 2.0, 0.3),
        (0, "link", 4.0, 0.2),
        (0, "link", 6.0, 0.0),
        (1, "link", 0.0, 7.0),
        (1, "link", 1.0, 0.0),
    ]
    assert counters.processes() == {0, 1}


def test_everything_may_end():
    """A copy goes on without the original."""
    counters = Counters()
    counters.add(0, "memory", "bytes", 0, 5)
    copied = counters.copy()
    copied.end_all(10**6)
    assert shown(copied) == [(0, "memory", 0.0, 5), (0, "memory", 1.0, 0)]
    assert shown(counters) == [(0, "memory", 0.0, 5)]
    assert counters.is_known(0, "memory")
    assert not counters.is_known(0, "other")
