"""Races that the simulation's barriers hide: found on wrong programs, silent on right ones (D5)."""

import linecache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import simrank
import simrank.distributed as dist
from simrank.device import races
from simrank.device.clocks import join
from simrank.errors import RaceError, SpawnException


def line_of(text):
    with open(__file__) as file:
        return next(number for number, line in enumerate(file, 1) if line.rstrip().endswith(text))


def race_of(program, nprocs=2):
    """Run a wrong program with races as errors and return the one of rank 0."""
    with pytest.raises(SpawnException) as caught, simrank.Context("hgx_h100", races="error") as ctx:
        ctx.multiprocessing.spawn(program, (ctx,), nprocs=nprocs)
    error = caught.value.errors[0]
    assert isinstance(error, RaceError)
    return error


def clean(program, nprocs=2, **options):
    """Run a right program with races as errors."""
    with simrank.Context("hgx_h100", races="error", **options) as ctx:
        ctx.multiprocessing.spawn(program, (ctx,), nprocs=nprocs)
    assert ctx.races == []


def test_a_read_before_the_wait_names_both_accesses_streams_and_lines():
    """The host reads an output of a collective that it has not waited for."""

    def program(rank, ctx):
        dist.init_process_group()
        x = ctx.ones(4)
        work = dist.all_reduce(x, async_op=True)  # runs
        x.tolist()  # too early
        work.wait()

    error = race_of(program)
    assert error.rank == 0
    assert error.first.name == "all_reduce #1 on group 'default_pg'"
    assert (error.first.verb, error.second.name, error.second.verb) == (
        "writes", "host read", "reads",
    )  # fmt: skip
    assert error.first.line == line_of("# runs")
    assert error.second.line == line_of("# too early")
    assert error.first.stream == "default_pg (async)"
    assert "race (proved)" in str(error)
    assert "tensor made at test_races.py" in str(error)


def test_a_write_under_a_running_collective_is_a_race():
    """The input of an asynchronous collective is changed before its wait."""

    def program(rank, ctx):
        dist.init_process_group()
        x = ctx.ones(4)
        work = dist.all_reduce(x, async_op=True)
        x.add_(1)
        work.wait()

    error = race_of(program)
    assert (error.first.name.split()[0], error.second.name) == ("all_reduce", "add_")


def test_use_on_another_stream_without_an_event_is_a_race():
    """Both orders of reading and writing."""

    def write_then_read(rank, ctx):
        x = ctx.ones(4)
        with ctx.stream(ctx.Stream()):
            x + 1

    def read_then_write(rank, ctx):
        x = ctx.ones(4)
        ctx.synchronize()
        x + 1
        with ctx.stream(ctx.Stream()):
            x.fill_(0)

    assert race_of(write_then_read, 1).second.verb == "reads"
    error = race_of(read_then_write, 1)
    assert (error.first.verb, error.second.verb) == ("reads", "writes")


def test_an_event_waited_for_on_the_wrong_stream_orders_nothing():
    """The classic mistake: record on one stream, wait on a third."""

    def program(rank, ctx):
        first, second, third = ctx.Stream(), ctx.Stream(), ctx.Stream()
        with ctx.stream(first):
            x = ctx.ones(4)
            event = first.record_event()
        third.wait_event(event)
        with ctx.stream(second):
            x.add_(1)

    race_of(program, 1)


def test_report_collects_each_pair_of_places_once_and_goes_on():
    """ctx.races has the errors; the program ends as without."""

    def program(rank, ctx):
        dist.init_process_group()
        x = ctx.ones(4)
        for _ in range(5):
            work = dist.all_reduce(x, async_op=True)
            x.add_(1)
            work.wait()

    with simrank.Context("hgx_h100", races="report") as ctx:
        ctx.multiprocessing.spawn(program, (ctx,), nprocs=2)
    names = {
        (race.first.name.split(" #")[0], race.second.name.split(" #")[0]) for race in ctx.races
    }
    assert names == {("all_reduce", "add_")}


def correct_programs():  # noqa: C901 - a list of programs
    """Programs that order everything they do, in every way there is."""

    def waits_for_work(rank, ctx):
        dist.init_process_group()
        x = ctx.ones(4)
        for _ in range(3):
            work = dist.all_reduce(x, async_op=True)
            y = ctx.ones(4) + 1
            work.wait()
            x.add_(y)
        x.tolist()

    def synchronous(rank, ctx):
        dist.init_process_group()
        x, out = ctx.ones(4), ctx.empty(8)
        dist.all_reduce(x)
        dist.all_gather_into_tensor(out, x)
        part = out[4 * rank : 4 * rank + 4]
        dist.all_gather_into_tensor(out, part)
        dist.broadcast(x, 0)
        dist.barrier()
        assert out.sum().item() == 16
        x.zero_()

    def events(rank, ctx):
        side = ctx.Stream()
        x = ctx.ones(4)
        side.wait_event(ctx.current_stream().record_event())
        with ctx.stream(side):
            x.add_(1)
        ctx.current_stream().wait_stream(side)
        x.mul_(2)
        event = ctx.Event()
        event.record()
        event.synchronize()
        with ctx.stream(side):
            x.add_(1)
        side.synchronize()
        assert x.tolist() == [5] * 4

    def event_that_has_long_happened(rank, ctx):
        side = ctx.Stream()
        with ctx.stream(side):
            x = ctx.ones(4)
            event = side.record_event()
        ctx.engine.sleep(10**9)
        event.wait()
        assert x.tolist() == [1] * 4

    def host_in_between(rank, ctx):
        x = ctx.ones(4)
        ctx.synchronize()
        with ctx.stream(ctx.Stream()):
            x.add_(1)
            assert x.tolist() == [2] * 4
        x.add_(1)
        assert x.cpu().tolist() == [3] * 4

    def messages(rank, ctx):
        dist.init_process_group()
        x, y = ctx.full((4,), float(rank)), ctx.empty(4)
        if rank == 0:
            dist.send(x, 1)
            x.fill_(7)
        else:
            dist.recv(y, 0)
            y.add_(1)
            assert y.tolist() == [1] * 4

    def long_after(rank, ctx):
        dist.init_process_group()
        x = ctx.ones(4) + rank
        ctx.engine.sleep(10**10)  # Everything has ended: only program order orders.
        work = dist.all_reduce(x, async_op=True)
        ctx.engine.sleep(10**10)
        work.wait()
        y = x.to(f"cuda:{1 - rank}")
        ctx.engine.sleep(10**10)
        y.add_(1)
        assert y.tolist() == [4] * 4

    def polls(rank, ctx):
        dist.init_process_group()
        x = ctx.ones(4)
        work = dist.all_reduce(x, async_op=True)
        while not work.is_completed():
            pass
        x.add_(1)
        side = ctx.Stream()
        while not ctx.current_stream().query():
            pass
        with ctx.stream(side):
            x.add_(1)
        ctx.wait(side)
        assert x.tolist() == [4] * 4

    def disjoint_halves(rank, ctx):
        x = ctx.zeros(8)
        ctx.synchronize()
        with ctx.stream(ctx.Stream()):
            x[:4].fill_(1)
        with ctx.stream(ctx.Stream()):
            x[4:].fill_(2)
        ctx.synchronize()
        assert x.tolist() == [1] * 4 + [2] * 4

    def readers_beside_each_other(rank, ctx):
        x = ctx.ones(4)
        ctx.synchronize()
        for _ in range(3):
            with ctx.stream(ctx.Stream()):
                x + 1
        x.tolist()

    return {name: value for name, value in locals().items() if callable(value)}


@pytest.mark.parametrize("name", correct_programs())
def test_correct_programs_raise_no_alarm(name):
    """Whatever orders them: waits, events, synchronize, host reads, polls."""
    clean(correct_programs()[name])


def test_the_main_program_may_read_what_ranks_wrote():
    """After spawn everything has ended."""
    tensors = {}

    def program(rank, ctx):
        tensors[rank] = ctx.ones(4) * rank

    with simrank.Context("hgx_h100", races="error") as ctx:
        ctx.multiprocessing.spawn(program, (ctx,), nprocs=2)
        assert tensors[1].tolist() == [1] * 4
        tensors[1].add_(1)
        assert tensors[1].tolist() == [2] * 4


def test_looking_for_races_changes_no_time():
    """The checker is an observer of the program, not a part of it."""

    def program(rank, ctx):
        dist.init_process_group()
        x = ctx.ones(1000)
        for _ in range(3):
            dist.all_reduce(x, async_op=True).wait()
        x.tolist()

    times = []
    for mode in ("off", "report"):
        with simrank.Context("hgx_h100", races=mode) as ctx:
            ctx.multiprocessing.spawn(program, (ctx,), nprocs=3)
        times.append(ctx.now_ps)
    assert times[0] == times[1]


def test_an_unknown_mode_is_an_error_with_the_choices():
    """off, report, error."""
    with pytest.raises(ValueError, match="choices: off, report, error"):
        simrank.Context("hgx_h100", races="on")


HOST_MISTAKES = {
    "reads a gloo result": lambda x, wait: (dist.all_reduce(x, async_op=True), x.tolist()),
    "computes with it": lambda x, wait: (dist.all_reduce(x, async_op=True), x + 1),
    "writes over it": lambda x, wait: (dist.all_reduce(x, async_op=True), x.zero_()),
    "writes in place": lambda x, wait: (dist.all_reduce(x, async_op=True), x.add_(1)),
    "writes an element": lambda x, wait: (dist.all_reduce(x, async_op=True), x.__setitem__(0, 1.0)),
    "writes what is sent": lambda x, wait: (
        dist.isend(x, 1) if dist.get_rank() == 0 else dist.irecv(x, 0),
        x.zero_(),
    ),
}


@pytest.mark.parametrize("name", HOST_MISTAKES)
def test_host_memory_that_gloo_uses_is_no_exception(name):
    """Neither reads nor writes of the host come before the wait."""

    def program(rank, ctx):
        dist.init_process_group("gloo")
        work, _ = HOST_MISTAKES[name](ctx.ones(4, device="cpu"), None)
        work.wait()

    error = race_of(program)
    assert error.second.stream == "host"
    assert error.second.name in ("host read", "host write")


def test_host_memory_that_a_copy_still_fills_is_no_exception():
    """A copy to the host that does not block needs a synchronize before the host looks."""

    def program(rank, ctx, waits):
        there = ctx.ones(1 << 20).to("cpu", non_blocking=True)
        if waits:
            ctx.cuda.synchronize()
        assert there[0].item() == 1

    def right(rank, ctx):
        program(rank, ctx, True)

    clean(right)
    error = race_of(lambda rank, ctx: program(rank, ctx, False), 1)
    assert error.second.name == "host read"


def test_correct_programs_on_host_memory_raise_no_alarm():
    """Waits of every kind; copies to a device have read their source when they return."""

    def program(rank, ctx):
        dist.init_process_group("gloo")
        x = ctx.ones(4, device="cpu")
        dist.all_reduce(x)
        x.add_(1)
        work = dist.all_reduce(x, async_op=True)
        while not work.is_completed():
            pass
        x.zero_()
        future = dist.all_reduce(x, async_op=True).get_future()
        future.then(lambda done: done.value()[0].add_(1)).wait()
        x.fill_(2.0)
        device = x.to("cuda", non_blocking=True)
        x.zero_()
        assert device.tolist() == [2.0] * 4
        x.copy_(device)
        assert x.tolist() == device.cpu().tolist()
        if rank == 0:
            dist.send(x, 1)
        else:
            dist.recv(x, 0)
        x.zero_()
        works = [dist.isend(x, 1 - rank), dist.irecv(y := ctx.empty(4, device="cpu"), 1 - rank)]
        for work in works:
            work.wait()
        assert y.tolist() == [0.0] * 4
        x.fill_(1.0)
        dist.all_reduce(x, async_op=True)
        dist.destroy_process_group()
        assert x.tolist() == [2.0] * 4

    clean(program)


def test_the_root_of_a_broadcast_may_read_what_it_sends():
    """It is only read there; whoever else reads, or writes it, races."""

    def program(rank, ctx, reader, action):
        dist.init_process_group()
        x = ctx.ones(4)
        work = dist.broadcast(x, 0, async_op=True)
        if rank == reader:
            action(x)
        work.wait()

    def spawn(*args):
        with simrank.Context("hgx_h100", races="report") as ctx:
            ctx.multiprocessing.spawn(program, (ctx, *args), nprocs=2)
        return len(ctx.races)

    assert spawn(0, lambda x: x * 2) == 0
    assert spawn(0, lambda x: x.tolist()) == 0
    assert spawn(0, lambda x: x.add_(1)) == 1
    assert spawn(1, lambda x: x * 2) == 1
    assert spawn(1, lambda x: x.tolist()) == 1


@pytest.mark.parametrize(("backend", "num_races"), [("nccl", 0), ("gloo", 1)])
def test_the_others_of_an_nccl_reduce_may_read_what_they_give(backend, num_races):
    """Gloo may use their tensor as a scratch pad."""

    def program(rank, ctx):
        dist.init_process_group(backend)
        x = ctx.ones(4, device="cuda")
        work = dist.reduce(x, 0, async_op=True)
        if rank == 1:
            x * 2
        work.wait()

    with simrank.Context("hgx_h100", races="report") as ctx:
        ctx.multiprocessing.spawn(program, (ctx,), nprocs=2)
    assert len(ctx.races) == num_races


VIEWS = {  # Parts of an 8 x 8 matrix, and whether they have an element in common.
    "columns": (lambda x: x[:, :4], lambda x: x[:, 4:], False),
    "columns that overlap": (lambda x: x[:, :5], lambda x: x[:, 4:], True),
    "even and odd": (lambda x: x.view(64)[::2], lambda x: x.view(64)[1::2], False),
    "every third and every second": (lambda x: x.view(64)[::3], lambda x: x.view(64)[1::2], True),
    "a column and a row": (lambda x: x[:, 0], lambda x: x[0], True),
    "a column and a part of a row": (lambda x: x[:, 0], lambda x: x[3, 1:], False),
    "transposed": (lambda x: x.T[:3], lambda x: x[:, 3:], False),
    "blocks": (lambda x: x[:4, :4], lambda x: x[2:6, 4:], False),
}


@pytest.mark.parametrize(("one", "other", "overlaps"), VIEWS.values(), ids=VIEWS)
def test_what_is_really_touched_is_compared_strides_included(one, other, overlaps):
    """Not the hulls of bytes: halves of a matrix on two streams are no race."""

    def program(rank, ctx):
        x = ctx.zeros(8, 8)
        side = ctx.cuda.Stream()
        side.wait_stream(ctx.cuda.current_stream())
        with ctx.cuda.stream(side):
            one(x).add_(1)
        other(x).add_(2)

    with simrank.Context("hgx_h100", races="report") as ctx:
        ctx.multiprocessing.spawn(program, (ctx,), nprocs=1)
    assert len(ctx.races) == overlaps


def test_a_strided_write_does_not_hide_an_earlier_one_between_its_elements():
    """It covers the hull, and not what lies in it."""

    def program(rank, ctx):
        x = ctx.zeros(64)
        first, second = ctx.cuda.Stream(), ctx.cuda.Stream()
        first.wait_stream(ctx.cuda.current_stream())
        with ctx.cuda.stream(first):
            x[1::2].add_(1)
            x[::2].add_(1)  # ordered behind it, and elsewhere
        with ctx.cuda.stream(second):
            x[1::2].add_(1)

    with simrank.Context("hgx_h100", races="report") as ctx:
        ctx.multiprocessing.spawn(program, (ctx,), nprocs=1)
    lines = [linecache.getline(race.first.file, race.first.line) for race in ctx.races]
    assert any("[1::2]" in line for line in lines)


@given(st.data())
def test_two_views_share_bytes_if_marking_them_says_so(data):
    """Whether numpy solves it, or gives up."""
    size = data.draw(st.integers(1, 40))
    values = np.zeros(size, dtype=data.draw(st.sampled_from(["u1", "f4"])))
    views = []
    for _ in range(2):
        start, stop = sorted(data.draw(st.tuples(st.integers(0, size), st.integers(0, size))))
        view = values[start : stop : data.draw(st.integers(1, 5))]
        views.append(view[::-1] if data.draw(st.booleans()) else view)
    expected = False
    if views[0].size and views[1].size:
        sets = []
        for view in views:
            first = (view.__array_interface__["data"][0] - values.ctypes.data) // values.itemsize
            step = view.strides[0] // values.itemsize
            sets.append({first + step * index for index in range(view.size)})
        expected = bool(sets[0] & sets[1])
        assert races._share_marks(*views) == expected
    assert races.share_bytes(*views) == expected


# ---- vector clocks ----

CLOCKS = st.dictionaries(st.integers(0, 5), st.integers(1, 9))


@given(one=CLOCKS, other=CLOCKS)
def test_a_joined_clock_is_behind_all_that_both_were_behind(one, other):
    """The later step counts, of each; the other clock stays as it is."""
    joined, kept = dict(one), dict(other)
    join(joined, other)
    assert other == kept
    assert joined == {n: max(one.get(n, 0), other.get(n, 0)) for n in {*one, *other}}
