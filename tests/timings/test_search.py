"""The search over every timing: what timing can decide is found, what it cannot is proved."""

import queue
import threading
import time
from datetime import timedelta

import numpy as np
import pytest

import simrank
import simrank.distributed as dist
from simrank.errors import SimrankError
from simrank.isolation.output import keep_lines
from simrank.multiprocessing import shared
from simrank.timings.run import MetAgainError, OtherWayError, TimingRun
from simrank.timings.search import TimingEnd, end_of, search

say = print  # Of programs: it is what they show that is compared.


def runner(body, nprocs, carrier="auto", make=lambda: None):
    """Return a function that runs a body in a timing; ranks share the result of `make`."""

    def run(timing):
        context = simrank.Context(timing=timing, races="report", carrier=carrier)
        lines = keep_lines(context.program)
        failure = None
        try:
            with context:
                own = make()
                context.multiprocessing.spawn(lambda rank: body(rank, context, own), nprocs=nprocs)
        except (MetAgainError, OtherWayError):
            raise
        except SimrankError as error:
            failure = error
        return TimingEnd(end_of(failure), lines(), tuple(str(race) for race in context.races))

    return run


def verdict_of(body, nprocs=3, make=lambda: None):
    """Return the verdict on a body."""
    return search(runner(body, nprocs, make=make), 200)


def ends(verdict):
    """Return how a program can end."""
    return {outcome.seen.end.partition(":")[0] for outcome in verdict.outcomes}


def outputs(verdict, rank=0):
    """Return the outputs of a rank, one per outcome."""
    return {tuple(outcome.seen.lines.get((rank, "stdout"), ())) for outcome in verdict.outcomes}


# ---- receives from any source ----


def _receive(ctx, count):
    got, sources = [], []
    for _ in range(count):
        part = ctx.zeros(1, device="cpu")
        sources.append(dist.recv(part))
        got.append(part.item())
    return got, sources


def any_sum(rank, ctx, _):
    """Add up what comes, in any order."""
    dist.init_process_group("gloo")
    if rank:
        dist.send(ctx.full((1,), float(rank), device="cpu"), 0)
    else:
        say(sum(_receive(ctx, 2)[0]))


def any_order(rank, ctx, _):
    """Rely on the order in which messages come."""
    dist.init_process_group("gloo")
    if rank:
        dist.send(ctx.full((1,), float(rank), device="cpu"), 0)
    else:
        assert _receive(ctx, 2)[1] == [1, 2]


def test_a_sum_of_what_comes_is_proved_and_its_order_is_not():
    """Both orders are gone through; the replay of the second one fails again."""
    proved = verdict_of(any_sum)
    assert proved.is_proved
    assert proved.num_runs == 2
    found = verdict_of(any_order)
    assert ends(found) == {"returned", "rank 0"}
    replay = next(each.replay for each in found.outcomes if each.seen.end != "returned")
    assert runner(any_order, 3)(TimingRun.parse(replay)).end.startswith("rank 0: AssertionError")


def test_a_receive_with_a_source_takes_no_message_that_an_earlier_one_could_take():
    """As MPI has it: the receive from any source was posted first."""

    def program(rank, ctx, _):
        dist.init_process_group("gloo")
        if rank == 0:
            parts = [ctx.zeros(1, device="cpu") for _ in range(3)]
            works = [dist.irecv(parts[0]), dist.irecv(parts[1], 1), dist.irecv(parts[2])]
            for work in works:
                work.wait()
            say([part.item() for part in parts])
        else:
            for value in range(3 - rank):
                dist.send(ctx.full((1,), 10.0 * rank + value, device="cpu"), 0)

    assert outputs(verdict_of(program)) == {
        ("[10.0, 11.0, 20.0]", ""),
        ("[20.0, 10.0, 11.0]", ""),
    }


# ---- shared values, locks, queues, events ----


def test_a_lost_update_is_found_and_a_lock_proves_that_there_is_none():
    """A read and a write are two steps."""

    def program(is_locked):
        def body(rank, ctx, count):
            with count.get_lock() if is_locked else threading.Lock():
                count.value = count.value + 1
            dist.init_process_group("gloo")
            dist.barrier()
            say(count.value)

        return verdict_of(body, 2, lambda: shared.Value("i", 0))

    assert program(True).is_proved
    assert outputs(program(False)) == {("1", ""), ("2", "")}


def test_locks_taken_in_two_orders_can_end_in_a_deadlock():
    """One order of many; the same order everywhere is proved."""

    def program(is_inverted):
        def body(rank, ctx, locks):
            first, second = locks[::-1] if is_inverted and rank else locks
            with first, second:
                pass

        return verdict_of(body, 2, lambda: (shared.Lock(), shared.Lock()))

    assert program(False).is_proved
    assert ends(program(True)) == {"returned", "DeadlockError"}


def test_who_takes_what_from_a_queue_is_decided_by_timing():
    """Two producers, and two that take a turn each."""

    def program(rank, ctx, queue):
        if rank == 0:
            say(queue.get(), queue.get())
        else:
            queue.put(rank)

    assert outputs(verdict_of(program, make=shared.Queue)) == {("1 2", ""), ("2 1", "")}


def test_a_try_to_take_a_lock_may_be_in_vain():
    """A lock that one rank uses is always free."""

    def alone(rank, ctx, lock):
        if rank == 0:
            say(lock.acquire(block=False))
            lock.release()

    def beside(rank, ctx, lock):
        if lock.acquire(block=False):
            say("mine")
            lock.release()

    assert verdict_of(alone, 2, shared.Lock).is_proved
    assert outputs(verdict_of(beside, 2, shared.Lock)) == {("mine", ""), ()}


def test_an_event_is_seen_set_or_not_and_after_a_wait_it_is_set():
    """A wait with a short limit may end before."""

    def program(look):
        def body(rank, ctx, event):
            if rank == 0:
                say(look(event))
            else:
                event.set()

        return outputs(verdict_of(body, 2, shared.Event))

    both = {("True", ""), ("False", "")}
    assert program(lambda event: event.is_set()) == both
    assert program(lambda event: event.wait(0.01)) == both
    assert program(lambda event: event.wait()) == {("True", "")}
    assert program(lambda event: event.wait() and event.is_set()) == {("True", "")}


# ---- polls ----


def test_a_poll_may_see_a_collective_or_not_and_after_a_wait_it_does():
    """What a rank alone has seen is gone through rank by rank: no product."""

    def early(rank, ctx, _):
        dist.init_process_group("nccl")
        work = dist.all_reduce(ctx.ones(4), async_op=True)
        say(work.is_completed())
        work.wait()

    def late(rank, ctx, _):
        dist.init_process_group("nccl")
        x = ctx.ones(4)
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        x.tolist()
        say(work.is_completed())

    found = verdict_of(early)
    assert outputs(found) == {("True", ""), ("False", "")}
    assert found.num_runs == 4  # One, and the other answer of each rank.
    seen = {(rank, "stdout"): ["False", ""] for rank in range(3)}
    assert found.covers(TimingEnd("returned", seen))
    assert verdict_of(late).is_proved


def test_polls_whose_answers_others_see_are_gone_through_in_all_combinations():
    """What each rank sends depends on its own poll."""

    def program(rank, ctx, _):
        dist.init_process_group("gloo")
        work = dist.all_reduce(ctx.ones(1, device="cpu"), async_op=True)
        own = ctx.full((1,), float(work.is_completed()), device="cpu")
        work.wait()
        dist.all_reduce(own)
        say(own.item())

    assert outputs(verdict_of(program, 2)) == {("0.0", ""), ("1.0", ""), ("2.0", "")}


def test_a_loop_of_polls_is_gone_through_once_and_a_counted_one_for_some_rounds():
    """The number of rounds has no bound: that is said."""

    def program(is_counted):
        def body(rank, ctx, _):
            dist.init_process_group("nccl")
            work, rounds = dist.all_reduce(ctx.ones(4), async_op=True), 0
            while not work.is_completed():
                rounds += is_counted
            work.wait()

        return verdict_of(body, 2)

    assert program(0).is_proved
    assert any("a few rounds" in problem for problem in program(1).problems)


def test_events_and_streams_of_a_device_are_polled_as_well():
    """Before they are waited for."""

    def program(rank, ctx, _):
        x = ctx.ones(1024)
        x.add_(1)
        event = ctx.cuda.current_stream().record_event()
        say(event.query(), ctx.cuda.current_stream().query())
        event.synchronize()
        say(event.query())

    found = outputs(verdict_of(program, 1))
    # Where the event has happened, so has all that was issued before it.
    assert {lines[0] for lines in found} == {"False False", "False True", "True True"}
    assert {lines[1] for lines in found} == {"True"}


def test_a_poll_that_no_choice_stands_for_proves_nothing():
    """It is named with its line."""

    def program(rank, ctx, _):
        from simrank.engine import limits

        limits.poll(ctx.engine, "is_there of a thing")

    problems = verdict_of(program, 1).problems
    assert any(
        "is_there of a thing" in problem and "not followed" in problem for problem in problems
    )


# ---- clocks and limits ----


def test_a_comparison_of_times_has_both_outcomes_unless_a_sleep_decides_it():
    """Printed times are none of a program's output."""

    def program(slept):
        def body(rank, ctx, _):
            begin = time.perf_counter()
            time.sleep(slept)
            took = time.perf_counter() - begin
            say(f"took {took:.3f} s")
            say(took > 0.5, took * 1000 >= 0)

        return outputs(verdict_of(body, 1))

    both = {("took <time> s", "True True", ""), ("took <time> s", "False True", "")}
    assert program(0.1) == both
    assert program(1) == {("took <time> s", "True True", "")}


def test_a_deadline_ends_a_loop_after_as_many_sleeps_as_it_takes():
    """Or sooner: anything else takes time as well."""

    def program(rank, ctx, _):
        begin, turns = time.time(), 0
        while time.time() - begin < 0.01:
            turns += 1
            time.sleep(0.004)
        say(turns)

    assert outputs(verdict_of(program, 1)) == {(str(turns), "") for turns in range(4)}


def test_a_time_that_is_compared_unseen_is_found_by_the_second_run():
    """Its clocks are faster."""

    def program(rank, ctx, _):
        begin = time.monotonic()
        say(bool(np.array([time.monotonic() - begin]).max() > 0.1))

    problems = verdict_of(program, 1).problems
    assert any("unseen" in problem or "plain number" in problem for problem in problems)


def test_a_reading_equals_itself_and_no_other():
    """Nothing can come between a reading and itself."""

    def body(rank, ctx, _):
        now = time.time_ns()
        say(now == now, now <= now, now - now == 0, now in [0, now])

    verdict = verdict_of(body, nprocs=1)

    assert (verdict.is_proved, outputs(verdict)) == (True, {("True True True True", "")})


def test_readings_are_sorted_in_every_order():
    """Comparisons within one call are no rounds of a loop, and no clock reads less than zero."""

    def body(rank, ctx, _):
        spans = []
        for _ in range(3):
            begin = time.perf_counter()
            spans.append(time.perf_counter() - begin)
        say(spans.index(min(spans)), time.process_time() >= 0)

    assert outputs(verdict_of(body, nprocs=1)) == {(f"{n} True", "") for n in range(3)}


def test_readings_of_ranks_that_are_compared_unseen_prove_nothing():
    """Arrays hold plain numbers; in the second run another rank is later."""

    def body(rank, ctx, _):
        dist.init_process_group("gloo")
        now = ctx.tensor(np.array([time.time()]), device="cpu")
        least = now.clone()
        dist.all_reduce(least, op=dist.ReduceOp.MIN)
        say((now == least).tolist())

    verdict = verdict_of(body, nprocs=2)

    assert any("two runs differ" in each for each in verdict.problems), verdict.problems


def test_limits_of_barriers_and_of_joining_a_group_are_not_followed():
    """They are named, and nothing is proved."""

    def body(rank, ctx, _):
        dist.init_process_group("gloo", timeout=timedelta(milliseconds=20))
        dist.monitored_barrier(timeout=timedelta(milliseconds=20))

    verdict = verdict_of(body, nprocs=2)

    assert ends(verdict) == {"returned"}
    for what in ("a monitored barrier", "init_process_group"):
        assert any(f"time limit of {what}" in each for each in verdict.problems)


def test_a_future_is_done_or_not_and_its_callbacks_are_another_thread():
    """As torch runs them: what they share with the rank is not followed."""

    def polls(rank, ctx, _):
        dist.init_process_group("gloo")
        future = dist.all_reduce(ctx.ones(1, device="cpu"), async_op=True).get_future()
        say(future.done())
        future.wait()
        say(future.done())

    def calls(rank, ctx, _):
        dist.init_process_group("gloo")
        names = []
        work = dist.all_reduce(ctx.ones(1, device="cpu"), async_op=True)
        work.get_future().then(lambda _: names.append(1)).wait()
        say(names)

    assert outputs(verdict_of(polls, nprocs=2)) == {("True", "True", ""), ("False", "True", "")}
    assert any("share variables" in each for each in verdict_of(calls, nprocs=2).problems)


def test_a_short_limit_may_pass_and_a_long_one_does_not():
    """A limit of a minute or more is taken not to expire; the proof says so."""

    def program(limit_s):
        def body(rank, ctx, queue):
            if rank == 0:
                say(queue.get(timeout=limit_s))
            else:
                queue.put(1)

        return verdict_of(body, 2, shared.Queue)

    assert ends(program(1)) == {"returned", "rank 0"}
    proved = program(100)
    assert proved.is_proved
    assert proved.num_limits


# ---- threads ----


def test_threads_of_a_rank_take_turns_in_every_order():
    """Where they take locks or sleep; plain variables between are not seen, so it is no proof."""

    def program(rank, ctx, _):
        order = []
        lock = threading.Lock()

        def add(name):
            with lock:
                order.append(name)

        threads = [threading.Thread(target=add, args=(name,)) for name in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        say("".join(order))

    found = search(runner(program, 1, "thread"), 100)
    assert outputs(found) == {("ab", ""), ("ba", "")}
    assert any("threads of a rank" in problem for problem in found.problems)


def _event():
    event = threading.Event()
    return event.set, event.is_set


def _queue():
    line = queue.Queue()
    return lambda: line.put(0), lambda: not line.empty()


def _full_queue():
    line = queue.Queue(1)
    return lambda: line.put(0), line.full


@pytest.mark.parametrize("make", [_event, _queue, _full_queue])
def test_a_look_at_what_another_thread_does_has_both_answers(make):
    """Events and queues of threads; the end of a thread, too."""

    def program(rank, ctx, _):
        act, look = make()
        thread = threading.Thread(target=act)
        thread.start()
        seen, is_alive = look(), thread.is_alive()
        thread.join()
        say(seen, is_alive, thread.is_alive())

    found = outputs(search(runner(program, 1, "thread"), 100))
    assert {lines[0] for lines in found} >= {
        "False True False", "True True False", "True False False"
    }  # fmt: skip


def test_who_waits_at_a_barrier_is_seen_or_not():
    """It shows who has come already."""

    def program(rank, ctx, barrier):
        if rank:
            barrier.wait()
        else:
            say(barrier.n_waiting)
            barrier.wait()

    found = verdict_of(program, 2, lambda: shared.Barrier(2))
    assert outputs(found) == {("0", ""), ("1", "")}


def test_a_rank_that_polls_and_sleeps_beside_threads_of_another_goes_on():
    """Rounds that differ in a count alone do not wait for each other."""

    def body(rank, ctx, _):
        dist.init_process_group("gloo")
        if rank == 1:
            threads = [threading.Thread(target=time.sleep, args=(0.01,)) for _ in range(2)]
            for each in threads:
                each.start()
            for each in threads:
                each.join()
        work, rounds = dist.all_reduce(ctx.ones(1, device="cpu"), async_op=True), 0
        while not work.is_completed():
            rounds += 1
            time.sleep(0.01)
        dist.barrier()

    assert ends(search(runner(body, 2, "thread"), 60)) == {"returned"}


def test_ranks_that_all_fail_are_one_end():
    """Which of them comes first is no further question: each is in it."""

    def body(rank, ctx, _):
        raise ValueError(rank)

    verdict = verdict_of(body, nprocs=2)

    assert verdict.problems == ["it fails in every timing"]
    assert outputs(verdict) == {()}


def test_a_replay_of_another_program_says_so():
    """Its picks go beyond what can happen there."""
    with pytest.raises(OtherWayError, match="choice 1 has 2 possibilities, no number 9"):
        runner(any_sum, 3)(TimingRun.parse("9"))
