"""Streams in order and beside each other, events, what an operation waits for."""

import pytest

import simrank
from simrank.errors import DeadlockError


def test_operations_of_a_stream_run_in_order(ctx):
    """Each operation sees what the one before it left."""
    x = ctx.zeros(4)
    x.add_(1)
    x.mul_(10)
    x.add_(5)
    assert x.tolist() == [15.0] * 4


def test_an_operation_takes_effect_at_its_end(ctx):
    """Before its simulated end the numbers are the old ones (D6)."""
    x = ctx.zeros(4)
    ctx.drain()
    x.fill_(7)
    assert x.array[0] == 0
    ctx.drain()
    assert x.array[0] == 7


def test_two_streams_overlap_and_share_the_device(shapes):
    """Two equal kernels on two streams take less than one after the other, more than one."""

    def time_ps(streams):
        start = shapes.now_ps
        tensors = [shapes.empty(64 * 2**20, dtype="uint8") for _ in streams]
        for stream, tensor in zip(streams, tensors, strict=True):
            with shapes.stream(stream):
                tensor.fill_(1)
        shapes.drain()
        return shapes.now_ps - start

    one = time_ps([shapes.Stream()])
    two = time_ps([shapes.Stream(), shapes.Stream()])
    assert one < two <= 2 * one


def test_an_event_orders_two_streams(ctx):
    """Work after wait_event starts when the event has happened."""
    first, second = ctx.Stream(), ctx.Stream()
    x = ctx.zeros(4)
    ctx.synchronize()
    with ctx.stream(first):
        x.add_(1)
        event = first.record_event()
    with ctx.stream(second):
        second.wait_event(event)
        x.mul_(10)
    assert x.tolist() == [10.0] * 4


def test_wait_stream_waits_for_everything_issued_so_far(ctx):
    """Later work of the waiting stream follows, later work of the other does not matter."""
    first, second = ctx.Stream(), ctx.Stream()
    x = ctx.zeros(4)
    ctx.synchronize()
    with ctx.stream(first):
        x.add_(2)
    second.wait_stream(first)
    with ctx.stream(second):
        x.mul_(3)
    assert x.tolist() == [6.0] * 4


def test_elapsed_time_is_simulated_milliseconds(shapes):
    """Two events around a kernel measure it, launch included."""
    start, end = shapes.Event(enable_timing=True), shapes.Event(enable_timing=True)
    x = shapes.empty(29 * 10**8, dtype="uint8")  # 2.9 GB at 2.9 TB/s
    start.record()
    x.fill_(0)
    end.record()
    end.synchronize()
    assert start.elapsed_time(end) == pytest.approx(1.0, rel=0.01)


def test_elapsed_time_of_an_event_that_has_not_happened_is_an_error(run):
    """As in torch: record, then synchronize, then ask."""

    def program(_, ctx):
        start, end = ctx.Event(), ctx.Event()
        with pytest.raises(RuntimeError, match="recorded"):
            start.elapsed_time(end)
        start.record()
        ctx.ones(4)
        end.record()
        with pytest.raises(RuntimeError, match="completed"):
            start.elapsed_time(end)

    run(program, 1)


def test_an_event_never_recorded_holds_nobody(ctx):
    """As in CUDA."""
    event = ctx.Event()
    event.wait()
    assert event.query()
    assert ctx.ones(1).item() == 1


def test_query_turns_true_when_the_work_has_ended(run):
    """A polling loop ends, and its negative polls cost simulated time."""

    def program(_, ctx):
        x = ctx.ones(1000)
        polls = 0
        while not ctx.current_stream().query():
            polls += 1
        assert polls > 0
        assert x.array[0] == 1

    assert run(program, 1).now_ps > 0


def test_a_stream_that_waits_for_nothing_possible_is_a_deadlock(ctx):
    """A host that synchronizes behind a wait that nothing completes is told at once."""
    from simrank.engine import Handle

    x = ctx.ones(4)
    ctx.current_stream().wait_for(Handle())
    x.add_(1)
    with pytest.raises(DeadlockError, match=r"deadlock \(proved\)"):
        x.item() if x.numel() == 1 else x.tolist()
    ctx.current_stream().drop()


def test_each_program_has_streams_of_its_own(run):
    """Two ranks of two spawns on one device do not wait in one queue."""

    def program(rank, ctx):
        def inner(_):
            streams.append(ctx.current_stream())

        streams = [ctx.current_stream()]
        ctx.multiprocessing.spawn(inner, nprocs=1)
        assert streams[0] is not streams[1]
        assert streams[0].device is streams[1].device or rank

    run(program, 1)


def test_an_operation_that_fails_on_the_stream_raises_in_its_rank(run):
    """Where the rank waits next; and in the main program if the rank has returned."""
    from simrank.device.stream import KernelOperation, stream_on
    from simrank.errors import SpawnException

    def fail(ctx):
        def effect():
            raise ArithmeticError("on the device")

        stream = stream_on(ctx.devices[0])
        stream.submit(KernelOperation(stream, "broken", effect, duration_ps=1000, demands=()))

    def waiting(rank, ctx):
        fail(ctx)
        ctx.wait(ctx.timer(10**9))

    with pytest.raises(SpawnException) as caught:
        run(waiting, 1)
    assert isinstance(caught.value.errors[0], ArithmeticError)
    assert any("broken" in note for note in caught.value.errors[0].__notes__)
    with pytest.raises(ArithmeticError, match="on the device"):
        run(lambda rank, ctx: fail(ctx), 1)


def test_thousands_of_operations_without_a_time_of_their_own_do_not_recurse(ctx):
    """Events and waits behind a kernel end in a loop."""
    side = ctx.Stream()
    x = ctx.ones(4)
    for _ in range(3000):
        event = ctx.current_stream().record_event()
        side.wait_event(event)
    with ctx.stream(side):
        x.add_(1)
    assert x.tolist() == [2] * 4


def test_a_stream_is_a_block_of_which_it_is_current(ctx):
    """Also within itself, and after an error; its device is the current one meanwhile."""
    default, side, other = ctx.current_stream(), ctx.Stream(), ctx.Stream("cuda:1")
    with side as entered:
        assert entered is side is ctx.current_stream()
        with pytest.raises(ZeroDivisionError), other:
            assert ctx.current_stream() is other
            assert ctx.zeros(1).get_device() == 1
            with side:
                assert ctx.zeros(1).get_device() == 0
            assert ctx.current_stream() is other
            raise ZeroDivisionError
        assert ctx.current_stream() is side
    assert ctx.current_stream() is default


def test_streams_of_a_device_have_numbers_and_the_default_stream_is_zero(ctx):
    """As CUDA's pointers: launchers hand them on, and tell streams apart by them."""
    streams = [ctx.current_stream(), ctx.Stream(), ctx.Stream(), simrank.Stream(name="mine")]
    assert streams[0].cuda_stream == 0
    assert len({stream.cuda_stream for stream in streams}) == 4
    assert streams[1].name == f"stream {streams[1].cuda_stream}"


def test_one_wait_stands_for_waits_for_later_operations_of_a_stream(ctx):
    """What follows them waits for the last; a stream that waited between them does not."""
    main, side, other = ctx.Stream(), ctx.Stream(), ctx.Stream()
    slow, fast, x = ctx.empty(16 * 2**20), ctx.empty(1), ctx.empty(1)
    ctx.synchronize()
    with ctx.stream(side):
        fast.fill_(1)
    main.wait_stream(side)
    other.wait_stream(main)
    with ctx.stream(other):
        x.fill_(2)
        early = other.record_event(ctx.Event(enable_timing=True))
    with ctx.stream(side):
        slow.fill_(3)
    main.wait_stream(side)
    with ctx.stream(main):
        fast.add_(1)
        late = main.record_event(ctx.Event(enable_timing=True))
    ctx.synchronize()
    assert early.elapsed_time(late) > 0.01
    assert fast.item() == 2


def test_a_stream_that_only_waits_for_another_does_not_hold_it(ctx):
    """Unless it was given work of its own meanwhile."""
    main, side = ctx.Stream(), ctx.Stream()
    x = ctx.zeros(2**20)
    ctx.synchronize()
    for own_work in (False, True):
        with ctx.stream(side):
            x.add_(1)
        main.wait_stream(side)
        if own_work:
            with ctx.stream(main):
                x.mul_(10)
        side.wait_stream(main)
        with ctx.stream(side):
            x.add_(1)
        ctx.synchronize()
    assert x[0].item() == 31
