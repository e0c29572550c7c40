"""The page of a run: what the summary says, as bars."""

import re
import time
from types import SimpleNamespace

import pytest

import simrank
import simrank.distributed as dist
from simrank.ranks.folding import FoldedAxis, Folding
from simrank.trace import PeakMemory, Summary, Timeline
from simrank.trace.run_page import LinkBytes, Seen, run_page


def program(rank, ctx):
    dist.init_process_group()
    small = ctx.empty(2**20)
    dist.all_reduce(small)
    if rank == 3:
        ctx.empty((1024, 1024)).mul_(2.0)
    ctx.synchronize()


def seen_of(run):
    summary, links = Summary(), LinkBytes()
    with simrank.Context("hgx_h100", data=False) as ctx:
        ctx.observe(summary)
        ctx.observe(links)
        ctx.multiprocessing.spawn(run, (ctx,), nprocs=4)
    peaks = {device.index: PeakMemory(device.memory.peak_bytes) for device in ctx.devices}
    return Seen(summary, links, ctx.now_ps, peaks, ctx.cluster.provenance)


def rows(page):
    """Return the names of all bars."""
    return re.findall(r'<th scope="row">([^<]*)</th>', page)


def test_ranks_collectives_links_and_memory_have_bars():
    """Equal ranks, links and devices share one."""
    page = run_page("simrank run: a.py", {"seed": "0"}, seen_of(program))
    assert re.findall(r"<h2>([^<]*)</h2>", page) == [
        "Time per rank", "Costliest collectives", "Costliest kernels",
        "Bytes over the busiest links", "Peak memory per device",
    ]  # fmt: skip
    names = rows(page)
    assert names[:2] == ["ranks 0-2", "rank 3"]
    assert names[2].startswith("all_reduce of 4 MiB on 'default_pg' (")
    assert "devices 0-2" in names
    assert any(name.endswith(" more") for name in names)
    assert "<dt>constants of the cluster</dt>" in page


def test_equal_runs_give_equal_text():
    """To the byte."""
    one, other = (run_page("t", {}, seen_of(program)) for _ in range(2))
    assert one == other


def test_a_run_of_nothing_has_a_page():
    """No operation, no link, no memory, no time."""
    nothing = Seen(Summary(), LinkBytes(), 0, {}, ())
    page = run_page("t", {"x": "<b>"}, nothing, "interrupted")
    assert page.count("<li>None.</li>") == 4
    assert "Partial: interrupted" in page
    assert "&lt;b&gt;" in page
    idle = run_page("t", {}, nothing._replace(peaks={0: PeakMemory(0), 1: PeakMemory(0)}))
    assert rows(idle) == ["ranks 0-1", "devices 0-1"]
    assert "nan" not in idle


def test_many_rows_are_cut_and_said():
    """A hundred ranks that all differ."""
    many = Seen(Summary(), LinkBytes(), 0, {rank: PeakMemory(rank) for rank in range(100)}, ())
    page = run_page("t", {}, many)
    assert page.count("<li>60 more are not shown.</li>") == 2


def test_training_steps_and_kinds_of_memory_have_bars_and_a_curve():
    """The curve is of the device where tensors took most, beside its memory."""
    summary = Summary()
    for rank in range(2):
        for start, phase in enumerate(("forward", "backward", "optimizer")):
            summary.on_operation(computed(rank, start * 10**6, 10**6, phase))
    kinds = {"parameters": 2**30, "activations": 2**29}
    peaks = {
        0: PeakMemory(2**31, kinds, 3 * 2**30, (2**30, 2**31, 2**30), 2**36),
        1: PeakMemory(2**31, kinds, 3 * 2**30, tuple(range(10**4)), 2**36),
    }
    page = run_page("t", {}, Seen(summary, LinkBytes(), 3 * 10**6, peaks, ()))
    heads = re.findall(r"<h2>([^<]*)</h2>", page)
    assert heads[1] == "Last of 1 training steps"
    assert heads[-2:] == ["Peak memory by kind", "Memory over allocations"]
    assert "ranks 0-1: forward 1 us" in page
    assert "ranks 0-1: reserved beyond that 1 GiB" in page
    assert "tensors on device 0" in page
    assert "2 GiB after 2" in page
    assert "the device&#x27;s memory, 64 GiB" in page or "the device's memory, 64 GiB" in page
    long = run_page("t", {}, Seen(summary, LinkBytes(), 3 * 10**6, {1: peaks[1]}, ()))
    assert 300 < long.count(" GiB after ") <= 400


def computed(rank, start_ps, took_ps, phase):
    """Return a kernel of a training step."""
    return SimpleNamespace(
        rank=rank, kind="compute", name="mm", details=None, start_ps=start_ps,
        complete_ps=start_ps + took_ps, phase=phase, flops=0, basis="",
    )  # fmt: skip


# ---- bytes of links: collectives once, messages and copies as they cross ----


class Call:
    """A collective of two ranks that sends 100 bytes over link 7."""

    def __init__(self):
        self.link_bytes = {7: 100}


def counted(program, nprocs=2):
    links = LinkBytes()
    with simrank.Context("hgx_h100", data=False) as ctx:
        ctx.observe(links)
        ctx.multiprocessing.spawn(program, (ctx,), nprocs=nprocs)
    return links


def test_a_collective_counts_once_for_all_its_ranks():
    """An all_gather of two ranks: each sends its block to the other."""

    def gather(rank, ctx):
        dist.init_process_group()
        for _ in range(3):
            dist.all_gather_into_tensor(ctx.empty(2048), ctx.empty(1024))
        ctx.synchronize()

    assert counted(gather).busiest() == [
        ("node 0: gpu0 -> nvswitch", 3 * 4096),
        ("node 0: gpu1 -> nvswitch", 3 * 4096),
        ("node 0: nvswitch -> gpu0", 3 * 4096),
        ("node 0: nvswitch -> gpu1", 3 * 4096),
    ]


def test_a_message_counts_on_its_way():
    """Only in its direction; the busiest link comes first."""

    def send(rank, ctx):
        dist.init_process_group()
        for size in (1024, 256):
            if rank == 0:
                dist.send(ctx.empty(size), 1)
            else:
                dist.recv(ctx.empty(size), 0)
        if rank == 1:
            dist.send(ctx.empty(1), 0)
        else:
            dist.recv(ctx.empty(1), 1)
        ctx.synchronize()

    assert counted(send).busiest() == [
        ("node 0: gpu0 -> nvswitch", 5120),
        ("node 0: nvswitch -> gpu1", 5120),
        ("node 0: gpu1 -> nvswitch", 4),
        ("node 0: nvswitch -> gpu0", 4),
    ]


def test_a_collective_that_was_cut_off_counts_too():
    """What one of two ranks has ended is not lost."""
    cluster = SimpleNamespace(link_name=lambda link: f"link {link}")
    stream = SimpleNamespace(device=SimpleNamespace(network=SimpleNamespace(cluster=cluster)))
    operation = SimpleNamespace(call=Call(), stream=stream)
    links = LinkBytes()
    links.on_operation(operation)
    assert links.busiest() == links.busiest() == [("link 7", 100)]
    links.on_operation(operation)
    assert links.busiest() == [("link 7", 100)]
    links.on_operation(object())
    assert links.busiest() == [("link 7", 100)]


@pytest.mark.parametrize("observer", [LinkBytes, Summary, Timeline])
@pytest.mark.parametrize("folding", [None, Folding(8, [FoldedAxis("world", 8, 1)])])
def test_an_observer_keeps_no_tensor(observer, folding):
    """Of a collective that is over: the memory of devices is as without it, folded or not."""

    def reduce(rank, ctx):
        dist.init_process_group()
        for _ in range(3):
            x = ctx.empty(2**20)
            dist.all_reduce(x)
            del x
            ctx.synchronize()
        assert ctx.devices[rank].memory.used_bytes == 0

    with simrank.Context("hgx_h100", data=False, folding=folding) as ctx:
        ctx.observe(observer())
        ctx.multiprocessing.spawn(reduce, (ctx,), nprocs=8)


# ---- exposed communication: waiting for a late rank, and wire time ----


def titles(page, part):
    """Return the labels and numbers of the bars of a part."""
    return dict(re.findall(rf"<title>([^<:]*): {part} ([\d.e+-]+) ", page))


def test_the_page_names_the_late_rank_its_line_and_what_was_waited():
    """Rank 2 sleeps for 5 ms before an all_reduce."""

    def late(rank, ctx):
        dist.init_process_group()
        if rank == 2:
            time.sleep(0.005)
        dist.all_reduce(ctx.empty(2**20))
        ctx.synchronize()

    page = run_page("t", {}, seen_of(late))
    assert titles(page, "waiting for late ranks") == {"ranks 0-1, 3": "5", "rank 2": "0"}
    wire = titles(page, "wire time")
    assert wire["ranks 0-1, 3"] == wire["rank 2"] != "0"
    line = late.__code__.co_firstlineno + 4
    (name,) = [name for name in rows(page) if "waited" in name]
    assert name == f"rank 2 at test_run_page.py:{line}: 1 call, ranks 0-1, 3 waited"
    assert f"{name}</th>" in page
    assert "<td>5000.000 us</td>" in page


def test_a_page_without_late_ranks_has_no_part_of_them():
    """All exposed communication is wire time."""

    def punctual(rank, ctx):
        dist.init_process_group()
        dist.all_reduce(ctx.empty(2**20))
        ctx.synchronize()

    page = run_page("t", {}, seen_of(punctual))
    assert titles(page, "waiting for late ranks") == {"ranks 0-3": "0"}
    assert "<h2>Late ranks</h2>" not in page
