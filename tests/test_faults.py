"""Injected faults: each does what it says, at its time, and one that never happens is told."""

import pytest

import simrank
import simrank.distributed as dist
from simrank.errors import DeadlockError, ProcessExitedException


def steps(rank, ctx, num_steps=10):
    """Run all-reduces; the last is waited for."""
    dist.init_process_group("nccl")
    x = ctx.ones(1024)
    for _ in range(num_steps):
        dist.all_reduce(x)
        x.mul_(1 / dist.get_world_size())
    assert x[0].item() == 1.0


@pytest.mark.parametrize("fault", [{"kill": 3, "at_collective": 5}, {"kill": 3, "at": "50 us"}])
def test_a_killed_rank_ends_the_run_as_a_signal_does(run, fault):
    """What torch says of a child that SIGKILL ended."""
    with pytest.raises(ProcessExitedException, match="terminated with signal SIGKILL") as caught:
        run(steps, 8, faults=[fault])
    assert caught.value.error_index == 3
    assert caught.value.exit_code == -9
    assert caught.value.signal_name == "SIGKILL"


def test_nothing_of_a_killed_rank_runs_on(run):
    """Not even its finally: the process is gone."""
    seen = []

    def program(rank, ctx):
        try:
            steps(rank, ctx)
        finally:
            seen.append(rank)

    with pytest.raises(ProcessExitedException):
        run(program, 4, faults=[{"kill": 2, "at_collective": 3}])
    assert sorted(seen) == [0, 1, 3]


def test_a_rank_is_killed_at_its_own_nth_collective(run):
    """The ones before have happened."""
    called = []

    def program(rank, ctx):
        dist.init_process_group("nccl")
        x = ctx.ones(4)
        for step in range(5):
            called.append((rank, step))
            dist.all_reduce(x)

    with pytest.raises(ProcessExitedException):
        run(program, 2, faults=[{"kill": 1, "at_collective": 3}])
    assert (1, 2) in called
    assert (1, 3) not in called


def test_after_a_kill_the_context_runs_on(run):
    """The next spawn finds clean streams and groups, and the fault does not strike again."""
    with simrank.Context("hgx_h100", faults=[{"kill": 1, "at_collective": 2}]) as ctx:
        with pytest.raises(ProcessExitedException):
            ctx.multiprocessing.spawn(steps, (ctx,), nprocs=4)
        ctx.multiprocessing.spawn(steps, (ctx,), nprocs=4)


def test_a_kill_at_time_zero_strikes(run):
    """The ranks of a spawn begin at time 0: the kill is not over before them."""
    with pytest.raises(ProcessExitedException, match="process 1 terminated"):
        run(steps, 2, faults=[{"kill": 1, "at": "0 s"}])


def test_a_kill_of_several_ranks_at_a_collective_strikes_each(run):
    """The second of them dies as the first did, where the run continues after it."""
    reached = []

    def calls_three(rank, ctx):
        dist.init_process_group("nccl")
        for _ in range(3):
            dist.all_reduce(ctx.ones(4), async_op=True)
        reached.append(rank)

    faults = [{"kill": [1, 2], "at_collective": 2}]
    with pytest.raises(ProcessExitedException):
        run(calls_three, 4, faults=faults, on_failure="continue")
    assert sorted(reached) == [0, 3]


def test_a_kill_ends_what_the_rank_has_spawned(run):
    """Its children die with it, and the run ends."""

    def child(rank):
        simrank.zeros(4).sum().item()
        import time

        time.sleep(1.0)

    def parent(rank, ctx):
        ctx.multiprocessing.spawn(child, nprocs=1)

    with pytest.raises(ProcessExitedException, match="process 0 terminated with signal SIGKILL"):
        run(parent, 1, faults=[{"kill": 0, "at": "1 ms"}])


def test_a_slow_rank_makes_everybody_slow(run):
    """Kernels and launches of one rank take longer; the others wait in the collective."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        x = ctx.ones(1 << 20)
        for _ in range(5):
            x.mul_(1.0)
            dist.all_reduce(x)
        ctx.synchronize()

    alone_ps = run(program, 4).now_ps
    slow_ps = run(program, 4, faults=[{"slow": 1, "factor": 20}]).now_ps
    for_a_while_ps = run(
        program, 4, faults=[{"slow": 1, "factor": 20, "from": "0 s", "until": "50 us"}]
    ).now_ps
    assert alone_ps < for_a_while_ps < slow_ps


def test_a_slow_kernel_takes_exactly_its_factor(run):
    """A kernel alone on its device."""

    def program(rank, ctx):
        x = ctx.ones(1 << 24)
        first, last = ctx.Event(), ctx.Event()
        first.record()
        x.mul_(1.0)
        last.record()
        last.synchronize()
        times_ms.append(first.elapsed_time(last))

    times_ms = []
    run(program, 1)
    run(program, 1, faults=[{"slow": "all", "factor": 2.5}])
    assert times_ms[1] == pytest.approx(2.5 * times_ms[0], rel=1e-9)


def test_a_late_arrival_delays_the_collective_by_as_much(run):
    """The others wait for the one that comes late."""
    on_time_ps = run(steps, 4).now_ps
    fault = {"delay_arrivals": 2, "by": "1 ms", "at_collective": 2}
    late_ps = run(steps, 4, faults=[fault]).now_ps
    assert late_ps - on_time_ps == pytest.approx(1e9, rel=0.05)


def test_drawn_delays_depend_on_the_seed_alone():
    """Equal seeds, equal times; another seed, others."""

    def time_ps(seed):
        fault = {"delay_arrivals": "all", "up_to": "50 us", "probability": 0.5}
        with simrank.Context("hgx_h100", seed=seed, faults=[fault]) as ctx:
            ctx.multiprocessing.spawn(steps, (ctx,), nprocs=4)
        return ctx.now_ps

    assert time_ps(1) == time_ps(1)
    assert time_ps(1) != time_ps(2)


def test_a_dropped_link_stalls_the_collective_and_the_report_names_it(run):
    """It is nobody's call: no advice to fix the program."""
    fault = {"drop_link": "gpu3 -> nvswitch", "at": "40 us"}
    with pytest.raises(DeadlockError) as caught:
        run(steps, 8, faults=[fault])
    text = str(caught.value)
    assert "a fault dropped the link gpu3 -> nvswitch" in text
    assert "all_reduce" in text
    assert "to fix" not in text


def test_a_dropped_link_stalls_a_send_over_it_and_no_other(run):
    """Ranks that do not need it go on."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        x = ctx.ones(1 << 20)
        if rank % 2 == 0:
            dist.send(x, rank + 1)
        else:
            dist.recv(x, rank - 1)
        ctx.synchronize()
        done.append(rank)

    done = []
    with pytest.raises(DeadlockError, match="gpu2 -> nvswitch"):
        run(program, 4, faults=[{"drop_link": "gpu2 -> nvswitch"}])
    assert done == [0, 1]


def test_a_group_beside_the_dropped_link_goes_on(run):
    """Only a collective that needs the link is stuck."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        low, high = dist.new_group([0, 1]), dist.new_group([2, 3])
        x = ctx.ones(1024)
        dist.all_reduce(x, group=low if rank < 2 else high)
        done.append((rank, x[0].item()))

    done = []
    with pytest.raises(DeadlockError):
        run(program, 4, faults=[{"drop_link": "gpu2 -> nvswitch"}])
    assert {rank for rank, _ in done} >= {0, 1}
    assert all(value == 2.0 for _, value in done)


def test_a_slow_link_slows_what_crosses_it_for_as_long_as_it_is_slow():
    """Large messages, so that bandwidth decides."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        x = ctx.ones(1 << 22)
        for _ in range(4):
            dist.all_reduce(x)
        ctx.synchronize()

    def time_ps(*faults):
        with simrank.Context("hgx_h100", faults=faults, data=False) as ctx:
            ctx.multiprocessing.spawn(program, (ctx,), nprocs=8)
        return ctx.now_ps

    link = "gpu3 <-> nvswitch"
    nominal, slow = time_ps(), time_ps({"slow_link": link, "factor": 4})
    a_while = time_ps({"slow_link": link, "factor": 4, "from": "0 s", "until": "300 us"})
    assert slow > 2 * nominal
    assert nominal < a_while < slow


def test_a_fault_after_the_end_does_not_move_the_clock_and_is_told():
    """A run that is over stays over; the finding says what did not happen."""
    with simrank.Context("hgx_h100", faults=[{"kill": 2, "at": "50 s"}]) as ctx:
        ctx.multiprocessing.spawn(steps, (ctx,), nprocs=4)
    assert ctx.now_ps < 10**9
    assert ctx.findings == ["  fault {kill: 2, at: 50.000 s} has not happened"]


def test_a_fault_after_a_deadlock_does_not_hide_it(run):
    """The deadlock is found at once, at its own time."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        if rank:
            dist.barrier()

    with pytest.raises(DeadlockError) as caught:
        run(program, 4, faults=[{"kill": 2, "at": "50 s"}])
    assert caught.value.time_ps < 10**9


def test_a_sleeping_rank_is_killed_in_its_sleep(run):
    """Sleeps do not keep the simulation alive, yet they are not its end."""
    import time

    with pytest.raises(ProcessExitedException, match="process 1"):
        run(lambda rank, ctx: time.sleep(5.0), 2, faults=[{"kill": 1, "at": "2 s"}])


def test_a_benchmark_takes_faults():
    """A slow link in the YAML of a benchmark."""

    def busbw(faults):
        config = simrank.bench.run(
            {
                "cluster": "hgx_h100",
                "collectives": ["all_reduce"],
                "algorithms": ["ring"],
                "sizes": ["64 MiB"],
                "iterations": {"warmup": 0, "timed": 1},
                "in_place": True,
                "check": False,
                "faults": faults,
            }
        )
        return config[0]["busbw_GBps"]

    assert busbw([{"slow_link": "gpu0 -> nvswitch", "factor": 2}]) < 0.7 * busbw([])


def test_faults_may_come_from_a_file(tmp_path):
    """Of which the Context takes the path."""
    good = tmp_path / "faults.yaml"
    good.write_text("faults:\n  - {kill: [1, 2], at_collective: 2}\n")
    with pytest.raises(ProcessExitedException), simrank.Context("hgx_h100", faults=good) as ctx:
        ctx.multiprocessing.spawn(steps, (ctx,), nprocs=4)


def sums(rank, ctx, seen):
    """Run all-reduces of a bit per rank, and note what comes of each."""
    dist.init_process_group("nccl")
    seen[rank] = []
    for _ in range(8):
        x = ctx.full((1024,), float(1 << rank))
        dist.all_reduce(x)
        seen[rank].append(int(x[0].item()))


def ran_with(faults, seed=0, nprocs=4):
    """Return what each rank saw."""
    seen = {}
    with simrank.Context("hgx_h100", seed=seed, faults=faults) as ctx:
        ctx.multiprocessing.spawn(sums, (ctx, seen), nprocs=nprocs, share_args=True)
        assert ctx.findings == []
    return seen


def test_a_deactivated_rank_is_skipped_from_its_nth_collective_on():
    """Its own calls end too, with the numbers that it had."""
    seen = ran_with([{"deactivate": 2, "at_collective": 3}])
    assert seen[0] == seen[1] == seen[3] == [15, 15, 11, 11, 11, 11, 11, 11]
    assert seen[2] == [15, 15, 4, 4, 4, 4, 4, 4]


def test_a_deactivated_rank_comes_back():
    """From a number that nobody has called, on all ranks alike; none of its calls is lost."""

    def program(rank, ctx, seen):
        dist.init_process_group("nccl")
        seen[rank] = []
        while len(seen[rank]) < 30 and (not seen[rank] or seen[rank][-1] != -1):
            while rank not in dist.active_ranks():
                ctx.engine.sleep(10**6)
            x = ctx.full((4,), float(1 << rank))
            done = ctx.full((1,), float(ctx.now_ps > 400_000_000))
            dist.all_reduce(x)
            dist.all_reduce(done)
            seen[rank].append(-1 if done.item() else int(x[0].item()))

    seen = {}
    faults = [{"deactivate": 2, "at": "50 us", "for": "100 us"}]
    with simrank.Context("hgx_h100", faults=faults) as ctx:
        ctx.multiprocessing.spawn(program, (ctx, seen), nprocs=3, share_args=True)
    assert seen[0] == seen[1]
    numbers = [n for n, before in zip(seen[0], [None, *seen[0]], strict=False) if n != before]
    assert numbers == [7, 3, 7, -1]
    assert seen[2][-1] == -1


@pytest.mark.parametrize("seed", range(24))
def test_a_rank_deactivated_at_any_event_is_skipped_by_all_alike(seed):
    """Before, in the midst of, or after any call, as the seed says: ranks never disagree."""
    seen = ran_with([{"deactivate": 1, "within": "100 us"}], seed=seed)
    assert seen[0] == seen[2] == seen[3]
    num_whole = seen[0].count(15)
    assert seen[0] == [15] * num_whole + [13] * (8 - num_whole)
    assert seen[1][:num_whole] == [15] * num_whole
    assert set(seen[1][num_whole:]) <= {2, 13}


def test_seeds_deactivate_at_different_calls():
    """And each at the same one again."""

    def first(seed):
        fault = [{"deactivate": 1, "within": "100 us"}]
        return ran_with(fault, seed=seed)[0].count(15)

    found = [first(seed) for seed in range(8)]
    assert len(set(found)) >= 3
    assert found == [first(seed) for seed in range(8)]


def test_the_last_rank_of_a_group_is_not_deactivated():
    """Somebody is left, with its own numbers."""
    seen = ran_with([{"deactivate": "all", "at": "20 us"}], nprocs=2)
    assert [numbers[0] for numbers in seen.values()] == [3, 3]
    assert seen[1][-1] in (2, 3)
    with simrank.Context("hgx_h100", faults=[{"deactivate": "all", "at": "20 us"}]) as ctx:
        left = {}

        def program(rank):
            dist.init_process_group("nccl")
            ctx.engine.sleep(30_000_000)
            left[rank] = dist.active_ranks()

        ctx.multiprocessing.spawn(program, nprocs=3)
    assert left == {key: [2] for key in range(3)}


def serve(rank, ctx, tried):
    """Bind the first port of some that is free, as servers that retry do."""
    import random
    import socket

    random.seed(rank)
    with socket.socket() as sock:
        while True:
            port = random.randint(15000, 16999)
            tried.setdefault(rank, []).append(port)
            try:
                sock.bind(("", port))
            except OSError as error:
                (note,) = error.__notes__
                if "by an injected fault" in note or "of rank" in note:
                    continue
                raise
            break


def test_a_port_conflict_strikes_where_it_is_written_and_a_retry_succeeds(run):
    """The port that rank 0 names first, and the next; never port 0."""
    tried = {}

    def program(rank, ctx):
        serve(rank, ctx, tried)

    run(program, 2, faults=[{"port_conflict": 0, "times": 2}])
    assert {rank: len(ports) for rank, ports in tried.items()} == {0: 3, 1: 1}


def test_port_conflicts_repeat_with_the_seed(run):
    """Half of the binds of 16 ranks: others for another seed."""

    def counted(seed):
        tried = {}
        faults = [{"port_conflict": "all", "probability": 0.5, "times": 3}]
        run(lambda rank, ctx: serve(rank, ctx, tried), 8, faults=faults, seed=seed)
        return [len(tried[rank]) for rank in range(8)]

    found = [counted(seed) for seed in (1, 2, 3)]
    assert found == [counted(seed) for seed in (1, 2, 3)]
    assert len({tuple(each) for each in found}) == 3


def test_a_program_that_never_names_the_port_is_told(run):
    """A test of a fault that did not happen is no test."""
    ctx = run(lambda rank, ctx: None, 1, faults=[{"port_conflict": 0, "port": 29500}])
    assert "port_conflict: 0, port: 29500" in ctx.findings[0]
