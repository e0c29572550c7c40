"""One test or more per rule E1 ... E11 of the engine, named after it; read them as its contract."""

# E7 is about programs that read the clock.

import time
import tracemalloc

import pytest
from greenlet import greenlet
from hypothesis import given
from hypothesis import strategies as st

from simrank import Context
from simrank.engine import Activity, ActivityPool, Engine, Handle, Resource, Task, TaskGroup, limits
from simrank.errors import (
    DeadlockError,
    HubError,
    LivelockError,
    SpawnException,
    WaitTimeoutError,
)
from simrank.hardware.sharing import solve_rates


def start_group(engine, *bodies):
    """Start tasks as ranks of one group and return the group."""
    tasks = []
    for rank, body in enumerate(bodies):
        task = Task(engine, f"rank {rank}", rank)
        task.carry(body)
        tasks.append(task)
    group = TaskGroup(engine, "the program", tasks)
    group.start()
    return group


def test_e1_time_is_an_integer_number_of_picoseconds():
    """Every time that a run shows is an int, also where a rate or a fraction made it."""
    with Context("hgx_h100") as ctx:

        def body(_rank):
            (ctx.ones(1000) + 1).numpy()
            time.sleep(1e-7 / 3)

        ctx.multiprocessing.spawn(body, nprocs=2)

    assert type(ctx.now_ps) is int
    assert ctx.now_ps > 0


def test_e1_a_cost_is_rounded_up_once():
    """Three units of work at a rate of two take one and a half, so two, picoseconds."""
    engine = Engine()
    ends = []
    pool = ActivityPool(engine, solve_rates)
    pool.start(Activity(3.0, [(Resource("r", 2.0), 1.0)], lambda: ends.append(engine.now_ps)))
    engine.run()

    assert ends == [2]


@pytest.mark.parametrize("drive", [Engine.step, Engine.run])
def test_e2_only_the_hub_drives(drive):
    """A task that drives the engine is refused."""
    engine = Engine()
    group = start_group(engine, lambda: drive(engine))
    engine.run(group)

    assert type(group.tasks[0].error) is HubError


def test_e2_the_parent_of_every_task_is_the_hub():
    """Also of a task that another task started, so none is orphaned by another's death."""
    engine = Engine()
    made = []

    def outer():
        made.append(engine.start_task(lambda: engine.sleep(100), "inner"))
        inner = Task(engine, "nested", 0)
        inner.carry(lambda: None)
        made.append(inner)
        TaskGroup(engine, "nested", [inner]).start()

    made.extend(start_group(engine, outer).tasks)
    engine.run()

    assert [task.greenlet.parent for task in made] == [engine.hub] * 3
    assert engine.now_ps == 100  # The inner one went on after the outer one had ended.


def test_e2_a_bare_greenlet_that_waits_is_adopted_and_its_driver_goes_on():
    """Its parent becomes the hub; who switched into it is queued at the same time."""
    engine = Engine()
    log = []

    def bare():
        engine.sleep(50)
        log.append(("bare", engine.now_ps))

    def driver():
        made = greenlet(bare)
        made.switch()
        log.append(("driver", engine.now_ps, made.parent is engine.hub))

    engine.run(start_group(engine, driver))

    assert log == [("driver", 0, True), ("bare", 50)]


def test_e2_a_task_that_a_rank_starts_outlives_it():
    """Its parent is the hub, whoever asked; so it ends after the rank that started it."""
    ended, made = [], []

    def body(rank):
        def work():
            ctx.wait(ctx.timer(1000))
            ended.append((rank, ctx.now_ps))

        made.append(ctx.start(work, "kernel"))

    with Context("hgx_h100") as ctx:
        ctx.multiprocessing.spawn(body, nprocs=2)

    assert ended == [(0, 1000), (1, 1000)]
    assert all(task.greenlet.parent is ctx.engine.hub for task in made)


def test_e2_a_bare_greenlet_may_wait_beside_ranks():
    """One that nobody spawned uses `ctx.wait` like a rank."""
    log = []
    with Context("hgx_h100") as ctx:

        def bare(delay_ps):
            ctx.wait(ctx.timer(delay_ps))
            log.append(("bare", ctx.now_ps))

        greenlet(bare).switch(500)
        ctx.multiprocessing.spawn(lambda _rank: ctx.wait(ctx.timer(1000)), nprocs=1)
        log.append(("hub", ctx.now_ps))

    assert log == [("bare", 500), ("hub", 1000)]


def test_e2_from_the_hub_control_returns_there():
    """The main program goes on as soon as the greenlet it made waits."""
    engine = Engine()
    log = []
    made = greenlet(lambda: (engine.sleep(50), log.append(engine.now_ps)))
    made.switch()

    assert log == []
    engine.run()
    assert log == [50]


def test_e3_a_task_is_resumed_when_what_it_waits_for_is_complete():
    """At that simulated time, not in rounds; a wait on something complete does not switch."""
    engine = Engine()
    handle, switches = Handle(), []

    class Switches:
        def on_task_switch(self, _task, time_ps):
            switches.append(time_ps)

        def on_host(self, *_):
            pass

    engine.observers.append(Switches())

    def body():
        engine.wait(handle)
        assert handle.complete
        for _ in range(100):
            engine.wait(handle)

    group = start_group(engine, body)
    engine.call_at(777, lambda: handle.finish(engine))
    engine.run(group)

    assert switches == [0, 777]


def test_e3_a_wait_says_what_for_as_data():
    """While a task waits, its reason is the handle itself; while it runs, nothing."""
    engine = Engine()
    handle, seen = Handle(), []

    def body():
        task = engine.current_task()
        engine.call_at(5, lambda: (seen.append(task.waiting), handle.finish(engine)))
        seen.append(task.waiting)
        engine.wait(handle)
        seen.append(task.waiting)

    engine.run(start_group(engine, body))

    assert seen == [None, handle, None]


def order_of(seed, num_tasks=12):
    """Return the order in which tasks ran that were due at the same times."""
    engine = Engine(seed=seed)
    order = []

    def body(number):
        for _ in range(3):
            engine.sleep(10 * (number % 3 + 1))
            order.append((engine.now_ps, number))

    group = start_group(engine, *[lambda n=n: body(n) for n in range(num_tasks)])
    engine.run(group)
    return order


@given(seed=st.integers(0, 2**32))
def test_e4_order_is_a_function_of_the_seed_which_permutes_ties_only(seed):
    """The same seed gives the same order; another one the same times, ties in another order."""
    order = order_of(seed)

    assert order == order_of(seed)
    assert [t for t, _ in order] == sorted(t for t, _ in order)
    assert sorted(order) == sorted(order_of(0))


def test_e4_equal_times_run_in_queueing_order():
    """Seed 0 keeps the order of queueing; some other seed does not."""
    first = [n for t, n in order_of(0) if t == 10]

    assert first == sorted(first)
    assert any(order_of(seed) != order_of(0) for seed in range(1, 10))


def test_e5_nothing_strong_left_is_a_proved_deadlock_at_once():
    """The clock does not move on to anything else, and each wait is named."""
    engine = Engine()
    group = start_group(engine, lambda: engine.sleep(40), lambda: engine.wait(Handle()))

    with pytest.raises(DeadlockError) as caught:
        engine.run(group)

    assert caught.value.proved
    assert caught.value.time_ps == 40
    assert [(s.ranks, s.waits) for s in caught.value.waits] == [((1,), True), ((0,), False)]


def test_e5_the_earliest_explicit_time_limit_fires_with_the_report_as_a_note():
    """A pending time limit comes before the deadlock, as an error of its own type."""
    engine = Engine()
    never = Handle()

    def wait(timeout_ps):
        engine.wait(never, timeout_ps=timeout_ps)

    group = start_group(engine, lambda: wait(9000), lambda: wait(500), lambda: engine.wait(never))
    engine.run(group)

    (failed,) = group.failed
    assert failed.rank == 1
    assert type(failed.error) is WaitTimeoutError
    assert failed.error.time_ps == 500
    (note,) = failed.error.__notes__
    assert "ranks 0-1: a handle at test_rules.py:" in note
    assert "rank 2: a handle at test_rules.py:" in note


def test_e5_the_hub_that_waits_for_what_nothing_completes_is_told():
    """No task need be blocked for that."""
    with pytest.raises(DeadlockError, match="nothing can complete a handle"):
        Engine().wait(Handle())


def test_e5_ranks_that_returned_with_operations_incomplete_are_a_deadlock():
    """An asynchronous call that nobody joins is found when the queue is empty."""
    from simrank import distributed as dist

    def body(rank):
        dist.init_process_group()
        if rank == 0:
            dist.all_reduce(ctx.ones(4), async_op=True)

    ctx = Context("hgx_h100")
    with pytest.raises(DeadlockError, match="returned, but all_reduce") as caught, ctx:
        ctx.multiprocessing.spawn(body, nprocs=2)

    assert caught.value.waits[0].ranks == (0,)


def test_e6_a_task_that_raises_ends_its_group_in_rank_order():
    """Siblings get the abort where they wait; the root cause is the group's failure."""
    engine = Engine()
    ended = []

    def sibling(rank):
        try:
            engine.wait(Handle())
        except SystemExit:
            ended.append(rank)
            raise

    def failing():
        engine.sleep(10)
        raise ValueError("root cause")

    group = start_group(engine, lambda: sibling(0), failing, lambda: sibling(2))
    engine.run(group)

    assert ended == [0, 2]
    assert [task.rank for task in group.failed] == [1]
    assert not engine.tasks


def test_e6_failures_nest_and_surface_at_the_parents_join():
    """A spawn inside a rank is a wait; its failure is raised there and may be handled."""
    seen = []

    def inner(rank):
        if rank == 1:
            raise KeyError("inner")
        Context.wait(ctx, Handle())

    def outer(_rank):
        with pytest.raises(SpawnException) as caught:
            ctx.multiprocessing.spawn(inner, nprocs=2)
        seen.append(list(caught.value.errors))

    with Context("hgx_h100") as ctx:
        ctx.multiprocessing.spawn(outer, nprocs=1)

    assert seen == [[1]]


def test_e7_simulated_code_never_reads_the_wall_clock():
    """Sleeping and reading clocks in a rank pass and show simulated time only."""
    seen = []

    def body(_rank):
        time.sleep(10)
        seen.append(time.perf_counter())

    for _ in range(2):
        with Context("hgx_h100") as ctx:
            ctx.multiprocessing.spawn(body, nprocs=1)

    assert seen[0] == seen[1]
    assert 10 <= seen[0] < 10.001


def test_e8_charges_add_up_on_the_host_clock_without_a_switch():
    """The clock of one task runs ahead; it meets the engine's time at the next wait."""
    engine = Engine()
    seen = []

    def body():
        task = engine.current_task()
        for _ in range(3):
            engine.charge(1000, "launch")
        seen.append((engine.now_ps, task.clock_ps))
        engine.wait(engine.timer(10))
        seen.append((engine.now_ps, task.clock_ps))

    engine.run(start_group(engine, body))

    assert seen == [(0, 3000), (3000, 3000)]


def test_e8_a_negative_poll_costs_100_ns_and_doubles_to_1_ms():
    """Doing anything else starts over."""
    engine = Engine()
    clocks = []

    def body():
        task = engine.current_task()
        for _ in range(20):
            before_ps = task.clock_ps
            limits.poll(engine, "a flag")
            clocks.append(task.clock_ps - before_ps)
        engine.charge(0, "something")
        before_ps = task.clock_ps
        limits.poll(engine, "a flag")
        clocks.append(task.clock_ps - before_ps)

    engine.run(start_group(engine, body))

    assert clocks[:4] == [100_000, 200_000, 400_000, 800_000]
    assert clocks[-2:] == [10**9, 100_000]


def test_e8_polls_that_change_nothing_are_a_suspected_livelock():
    """Only polls remain, a whole round of them changes nothing: the report says who polls what."""
    engine = Engine()

    def body():
        while True:
            limits.poll(engine, "is_completed of all_reduce #7")

    with pytest.raises(LivelockError) as caught:
        engine.run(start_group(engine, body, body))

    assert not caught.value.proved
    (state,) = caught.value.waits
    assert (state.ranks, state.state) == ((0, 1), "is_completed of all_reduce #7")


def test_e9_observers_see_switches_operations_and_transfers():
    """One observer sees everything; without one nothing is kept."""
    seen = set()

    class Observer:
        def on_task_switch(self, _task, _time_ps):
            seen.add("switch")

        def on_host(self, _task, name, _start_ps, _end_ps):
            seen.add(name)

        def on_operation(self, operation):
            seen.add(operation.kind)

        def on_transfer(self, size_bytes, links, start_ps, end_ps):
            seen.add("transfer")
            assert links == ("node 0: gpu0 -> nvswitch", "node 0: nvswitch -> gpu1")
            assert end_ps > start_ps
            assert size_bytes > 0

    with Context("hgx_h100") as ctx:
        ctx.observe(Observer())

        def body(_rank):
            ctx.empty(1000, device="cuda:1").copy_(ctx.ones(1000))
            ctx.synchronize(1)
            ctx.synchronize(0)

        ctx.multiprocessing.spawn(body, nprocs=1)

    assert {"switch", "copy", "kernel", "transfer"} <= seen


def test_e10_memory_is_bounded_in_simulated_time():
    """Waits with time limits, timed joins and rate changes leave nothing behind."""
    engine = Engine()
    never = Handle()
    pool = ActivityPool(engine, solve_rates)
    link = Resource("link", 1.0)
    pool.start(Activity(1e15, [(link, 1.0)], lambda: None))

    def body(num_rounds):
        for _ in range(num_rounds):
            engine.wait(engine.timer(10), timeout_ps=10**15)
            engine.wait_at_most(never, 10)
            pool.change(link, capacity=2.0 if link.capacity == 1.0 else 1.0)

    engine.run(start_group(engine, lambda: body(300)))
    tracemalloc.start()
    engine.run(start_group(engine, lambda: body(600)))
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert len(engine._queue) < 1000
    assert not never._callbacks
    assert grown < 200_000


def test_e11_a_kernel_that_starts_midway_slows_the_first_from_there_on():
    """Two kernels that each want the whole device share it while both run."""
    spans = {}

    class Spans:
        def on_task_switch(self, *_):
            pass

        def on_host(self, *_):
            pass

        def on_operation(self, operation):
            if operation.kind == "kernel":
                spans[operation.name] = (operation.start_ps, operation.complete_ps)

        def on_transfer(self, *_):
            pass

    with Context("hgx_h100") as ctx:
        ctx.observe(Spans())
        device = ctx.devices[0]
        size = {"num_elements": 10**9, "bytes_moved": 10**9}

        def body(_rank):
            one, two = ctx.Stream(), ctx.Stream()
            first = device.launch(one, "first", None, **size)
            ctx.wait(ctx.timer(first.duration_ps // 2))
            device.launch(two, "second", None, **size)

        ctx.multiprocessing.spawn(body, nprocs=1)

    alone_ps = 10**9 / device.spec.memory_bandwidth_bytes_per_s * 1e12
    first, second = spans["first"], spans["second"]
    overlap_ps = first[1] - second[0]
    assert first[0] < second[0] < first[1] < second[1]
    # At half speed while both run: what is left of the first takes twice as long.
    done_ps = second[0] - first[0]
    assert done_ps + overlap_ps / 2 == pytest.approx(first[1] - first[0] - overlap_ps / 2)
    assert first[1] - first[0] == pytest.approx(done_ps + 2 * (duration(first, second) - done_ps))
    assert second[1] - second[0] == pytest.approx(first[1] - first[0], rel=1e-6)
    assert duration(first, second) == pytest.approx(alone_ps, rel=0.5)


def duration(first, second):
    """Return how long the first kernel takes alone, from the spans of two that share."""
    return second[0] - first[0] + (first[1] - second[0]) / 2


def test_e11_a_link_that_is_halved_slows_the_transfer_from_there_on():
    """What was done before stays done; the rest takes twice as long."""
    size = 450 * 2**20

    def copy_ps(halve_at_ps):
        with Context("hgx_h100", data=False) as ctx:

            def body(_rank):
                source = ctx.ones(size // 4)
                target = ctx.empty(size // 4, device="cuda:1")
                ctx.synchronize(0)
                start_ps = ctx.now_ps
                target.copy_(source)
                if halve_at_ps is not None:
                    ctx.wait(ctx.timer(halve_at_ps))
                    for link in range(ctx.cluster.num_links):
                        rate = float(ctx.cluster.link_bandwidth_bytes_per_s[link])
                        ctx.network.set_bandwidth(link, rate / 2)
                ctx.synchronize(1)
                ctx.synchronize(0)
                times.append(ctx.now_ps - start_ps)

            ctx.multiprocessing.spawn(body, nprocs=1)

    times = []
    copy_ps(None)
    copy_ps(times[0] // 2)

    alone_ps, halved_ps = times
    half_ps = alone_ps // 2
    assert halved_ps == pytest.approx(half_ps + 2 * (alone_ps - half_ps), rel=0.01)
    assert halved_ps > 1.4 * alone_ps


def test_e11_a_collective_holds_its_sms_from_its_arrival():
    """A kernel beside a rank that spins in a collective has fewer SMs than alone."""
    from simrank import distributed as dist

    ends = {}

    def body(rank, waits_in_a_collective):
        dist.init_process_group()
        if rank == 0:
            if waits_in_a_collective:
                dist.all_reduce(ctx.ones(4), async_op=True)
                ctx.wait(ctx.timer(10**8))
            device = ctx.devices[0]
            work = {"num_elements": 10**9, "bytes_moved": 8, "flops": 10**11}
            kernel = device.launch(ctx.Stream(), "kernel", None, **work)
            ctx.wait(kernel)
            ends[waits_in_a_collective] = kernel.complete_ps - kernel.start_ps
        elif waits_in_a_collective:
            ctx.wait(ctx.timer(10**12))
            dist.all_reduce(ctx.ones(4))

    for case in (False, True):
        with Context("hgx_h100") as ctx:
            ctx.multiprocessing.spawn(body, (case,), nprocs=2)

    sms = ctx.cluster.device.num_sms
    held = ctx.comm_library.num_sms
    assert ends[True] / ends[False] == pytest.approx(sms / (sms - held), rel=1e-6)
