"""Races that the simulation's barriers hide: found on wrong programs, silent on right ones (D5)."""

import pytest

import simrank
import simrank.distributed as dist
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
    for races in ("off", "report"):
        with simrank.Context("hgx_h100", races=races) as ctx:
            ctx.multiprocessing.spawn(program, (ctx,), nprocs=3)
        times.append(ctx.now_ps)
    assert times[0] == times[1]


def test_an_unknown_mode_is_an_error_with_the_choices():
    """off, report, error."""
    with pytest.raises(ValueError, match="choices: off, report, error"):
        simrank.Context("hgx_h100", races="on")
