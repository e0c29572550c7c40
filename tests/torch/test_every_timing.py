"""Torch programs in every timing: stores, messages of gloo, data-parallel steps."""

import io
import subprocess
import sys
import threading
from contextlib import redirect_stderr, redirect_stdout
from datetime import timedelta
from multiprocessing import shared_memory
from pathlib import Path
from textwrap import dedent

import pytest
import torch
import torch.distributed as torch_dist
import triton
import triton.language as tl

import simrank
from simrank.errors import SimrankError
from simrank.isolation.output import keep_lines
from simrank.multiprocessing.script import run_script
from simrank.timings.search import TimingEnd, end_of, search

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def verdict_of(body, nprocs):
    """Return the verdict on a body that torch's ranks run; what it returns are its lines."""

    def run(timing):
        lines, failure = {}, None
        context = simrank.Context(timing=timing, races="report")

        def work(rank):
            torch_dist.init_process_group("gloo")
            lines[rank, "stdout"] = [
                str(body(rank, torch_dist.distributed_c10d._get_default_store()))
            ]
            torch_dist.destroy_process_group()

        try:
            with context:
                context.multiprocessing.spawn(work, nprocs=nprocs)
        except SimrankError as error:
            failure = error
        return TimingEnd(end_of(failure), lines)

    return search(run, 300)


def outputs(verdict, rank=0):
    """Return the results of a rank, one per outcome."""
    return {tuple(outcome.seen.lines[rank, "stdout"]) for outcome in verdict.outcomes}


def test_a_barrier_of_a_store_is_proved():
    """The last of those that add opens it for all."""

    def program(rank, store):
        if store.add("here", 1) == 2:
            store.set("open", "1")
        store.wait(["open"])
        return store.check(["here", "missing"]), store.check(["here"])

    verdict = verdict_of(program, 2)
    assert verdict.is_proved
    assert outputs(verdict) == {("(False, True)",)}


def test_a_loop_that_reads_a_key_lets_others_set_it():
    """Also before the search knows that others do."""

    def program(rank, store):
        store.add("here", 1)
        while int(store.get("here")) < 2:
            pass
        return "all are here"

    verdict = verdict_of(program, 2)
    assert (verdict.is_proved, outputs(verdict)) == (True, {("all are here",)}), verdict.problems


def test_a_key_that_two_ranks_set_has_either_value_in_the_end():
    """And a rank that waits for it reads either."""

    def program(rank, store):
        if rank:
            store.set("key", str(rank))
        torch_dist.barrier()
        return store.get("key").decode()

    assert outputs(verdict_of(program, 3)) == {("1",), ("2",)}


def test_threads_of_a_rank_call_a_store_themselves():
    """What delays a call delays its thread, not the rank's main one, which waits for it."""
    added = []

    def work(rank):
        torch_dist.init_process_group("gloo")
        store = torch_dist.distributed_c10d._get_default_store()
        threads = [
            threading.Thread(target=lambda: added.append(store.add("count", 1))) for _ in range(4)
        ]
        for each in threads:
            each.start()
        for each in threads:
            each.join()

    context = simrank.Context(delays=2)
    with context:
        context.multiprocessing.spawn(work, nprocs=1)

    assert sorted(added) == [1, 2, 3, 4]


def test_an_election_has_each_winner():
    """By compare_set."""

    def program(rank, store):
        return store.compare_set("leader", "", str(rank)).decode()

    assert outputs(verdict_of(program, 3)) == {("0",), ("1",), ("2",)}


def _append(store):
    store.append("key", "a")
    return store.get("key").decode()


def _pop(store, own="mine"):
    store.queue_push("queue", own)
    return store.queue_pop("queue").decode()


# What rank 1 does, what rank 0 does beside it, and each result of rank 0.
CALLS = {
    "add": (lambda store: store.add("key", 1), lambda store: store.add("key", 1), {1, 2}),
    "append": (lambda store: store.append("key", "b"), _append, {"a", "ab", "ba"}),
    "multi_set": (
        lambda store: store.multi_set(["key"], ["b"]),
        lambda store: store.check(["key"]), {False, True},
    ),
    "delete_key": (
        lambda store: store.delete_key("old"), lambda store: store.check(["old"]), {False, True},
    ),
    "set": (
        lambda store: store.set("old", "new"), lambda store: store.get("old").decode(),
        {"old", "new"},
    ),
    "multi_get": (
        lambda store: store.set("old", "new"), lambda store: store.multi_get(["old"])[0].decode(),
        {"old", "new"},
    ),
    "queue_push": (
        lambda store: store.queue_push("queue", "other"), lambda store: store.queue_len("queue"),
        {0, 1},
    ),
    "queue_pop": (lambda store: _pop(store, "other"), _pop, {"mine", "other"}),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_calls_of_two_ranks_on_a_key_come_in_each_order(name):
    """Every method of a store is a choice."""
    act, look, results = CALLS[name]

    def program(rank, store):
        if rank == 0:
            store.set("old", "old")
        torch_dist.barrier()
        return look(store) if rank == 0 else act(store)

    assert outputs(verdict_of(program, 2)) == {(str(each),) for each in results}


def test_ranks_at_other_keys_need_no_orders_of_their_own():
    """Two orders of each of two pairs of ranks are four runs, and none in vain."""

    def program(rank, store):
        store.set(f"key{rank // 2}", str(rank))
        torch_dist.barrier()
        return store.get(f"key{rank // 2}").decode()

    verdict = verdict_of(program, 4)

    assert outputs(verdict) == {("0",), ("1",)}
    assert (verdict.num_runs, verdict.num_met) == (4, 0)


def test_a_send_waits_for_the_choice_of_its_receive_not_for_the_next_call_of_its_rank():
    """So its rank may come to the key before the receiving rank does."""

    def program(rank, store):
        if rank == 0:
            parts = [torch.zeros(1) for _ in range(2)]
            works = [torch_dist.irecv(part) for part in parts]
            found = store.compare_set("key", "", "0").decode()
            for work in works:
                work.wait()
            return found, [part.item() for part in parts]
        if rank == 1:
            store.compare_set("key", "", "1")
        torch_dist.send(torch.ones(1) * rank, 0)
        if rank == 2:
            store.compare_set("key", "", "2")
        return None

    first, last = [1.0, 2.0], [2.0, 1.0]
    found = [("0", first), ("0", last), ("1", first), ("1", last), ("2", last)]
    assert outputs(verdict_of(program, 3)) == {(str(each),) for each in found}


def test_a_store_sees_the_keys_of_queues():
    """Once something was pushed."""

    def program(rank, store):
        if rank:
            store.queue_push("queue", "a")
            return None
        return store.check(["queue"])

    assert outputs(verdict_of(program, 2)) == {("True",), ("False",)}


NOT_FOLLOWED = {
    "the future of a call of gloo, which waits": lambda rank: (
        torch_dist.all_reduce(torch.ones(1), async_op=True).get_future().done()
    ),
    "a tensor in memory that processes share": lambda rank: torch.multiprocessing.spawn(
        print, (torch.ones(1),), nprocs=1
    ),
    "a DataLoader with in_order=False": lambda rank: len(
        list(torch.utils.data.DataLoader([1, 2], num_workers=1, in_order=False))
    ),
    "the time limit of a child process": lambda rank: (
        subprocess.run([sys.executable, "-c", ""], timeout=50, check=True).returncode
    ),
    "which keys a store has": lambda rank: torch_dist.HashStore().num_keys(),
    "memory that processes share": lambda rank: shared_memory.ShareableList([rank]).shm.unlink(),
}


@pytest.mark.parametrize("what", NOT_FOLLOWED)
def test_what_is_not_followed_is_named(what):
    """Nothing is proved then."""
    verdict = verdict_of(lambda rank, _: NOT_FOLLOWED[what](rank), 1)

    assert any(problem.startswith(f"{what} at ") for problem in verdict.problems), verdict.problems


def test_a_wait_with_a_short_limit_is_in_time_or_not():
    """The key may come later."""

    def program(rank, store):
        if rank:
            store.set("key", "1")
            return None
        try:
            store.wait(["key"], timedelta(milliseconds=20))
        except torch_dist.DistStoreError:
            return "late"
        return "in time"

    assert outputs(verdict_of(program, 2)) == {("late",), ("in time",)}


def test_the_limit_of_a_store_is_set_through_its_prefix():
    """As torch's does."""

    def program(rank, store):
        store.set_timeout(timedelta(milliseconds=20))
        with pytest.raises(torch_dist.DistStoreError, match="after 20ms"):
            store.get("missing")
        return "late"

    assert verdict_of(program, 1).is_proved


def test_messages_of_gloo_are_complete_once_they_were_waited_for():
    """Timing decides nothing of their polls."""

    def program(rank, store):
        part = torch.zeros(1)
        work = torch_dist.isend(part, 1) if rank == 0 else torch_dist.irecv(part, 0)
        before = work.is_completed()
        work.wait()
        return before, work.is_completed()

    verdict = verdict_of(program, 2)
    assert verdict.is_proved
    assert outputs(verdict) == {("(False, True)",)}


@triton.jit
def ticket(counter, taken):
    """Note which program came when."""
    tl.store(taken + tl.program_id(0), tl.atomic_add(counter, 1))


def test_a_kernel_with_atomics_is_named_and_not_followed():
    """A GPU decides the order of its programs."""

    def program(rank, store):
        counter, taken = torch.zeros(2, 4, dtype=torch.int32, device="cuda").unbind()
        ticket[(4,)](counter, taken)
        return taken.sum().item()

    problems = verdict_of(program, 1).problems
    assert any("kernel with atomics" in problem for problem in problems)


def test_a_data_parallel_step_is_proved_by_one_run():
    """Timing decides nothing in it."""

    def program(rank, store):
        torch.manual_seed(0)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.full((2, 8), float(rank))).square().sum().backward()
        optimizer.step()
        return sum(parameter.sum() for parameter in model.parameters()).item()

    verdict = verdict_of(program, 2)
    assert verdict.is_proved
    assert verdict.num_runs == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ddp_step", "fsdp2", "pipeline", "moe_all_to_all"])
def test_an_example_is_proved_by_one_run(name):
    """Timing decides nothing in a step; the second run of the process is the same."""
    command = ["run", "--nproc-per-node", "4", "--every-timing", str(EXAMPLES / f"{name}.py")]
    ran = subprocess.run(
        [sys.executable, "-m", "simrank", *command], capture_output=True, text=True, check=False
    )
    assert "proved" in ran.stderr.partition("\n")[0]
    assert "one run: timing decides nothing" in ran.stderr
    assert ran.returncode == 0


# ---- what a rank keeps where its frames do not show it ----

_KEPT = """\
import contextlib, os
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
store = dist.distributed_c10d._get_default_store()


def count():
    store.add("count", 1)


def receive():
    return dist.recv(torch.zeros(1), tag=1)


def two():
    first = receive()
    receive()
    return first


{kept}
if rank == 0:
    show()
else:
    dist.send(torch.ones(1), 0, tag=1)
    count()
dist.barrier()
"""
KEPT = {
    "an attribute of a class": """
        class Found:
            first = None
        def show():
            Found.first = two()
            count()
            assert Found.first == 1
        """,
    "a closure": """
        def make():
            first = two()
            return lambda: first
        def show():
            find = make()
            count()
            assert find() == 1
        """,
    "a block with a generator": """
        @contextlib.contextmanager
        def scope():
            first = two()
            yield
            assert first == 1
        def show():
            with scope():
                count()
        """,
    "the environment": """
        def show():
            os.environ["FIRST"] = str(two())
            count()
            assert os.environ["FIRST"] == "1"
        """,
    "torch's type of new tensors": """
        def show():
            torch.set_default_dtype(torch.float32 if two() == 1 else torch.float64)
            count()
            assert torch.zeros(1).dtype == torch.float32
        """,
    "whether gradients are computed": """
        def show():
            torch.set_grad_enabled(two() == 1)
            count()
            assert torch.is_grad_enabled()
        """,
    "a module of the network": """
        def show():
            layer = torch.nn.Linear(1, 1)
            torch.nn.init.constant_(layer.weight, two())
            count()
            assert layer.weight.item() == 1
        """,
}


def search_of(path, text, nprocs=3, max_runs=1000):
    """Return the verdict on a script."""
    path.write_text(text)

    def run(timing):
        context, hidden, end = simrank.Context(timing=timing), io.StringIO(), None
        lines = keep_lines(context.program)
        with redirect_stdout(hidden), redirect_stderr(hidden):
            try:
                with context:
                    run_script(context.program, path, [], nprocs)
            except SimrankError as error:
                end = error
        return TimingEnd(end_of(end), lines())

    return search(run, max_runs)


@pytest.mark.parametrize("name", KEPT)
def test_what_came_first_is_kept_apart(name, tmp_path):
    """States in which a rank has kept other things are no equal states."""
    verdict = search_of(tmp_path / "program.py", _KEPT.format(kept=dedent(KEPT[name])))

    assert {each.seen.end for each in verdict.outcomes} == {"returned", "rank 0: AssertionError"}


# ---- lines are no part of a state ----

_PHASES = """\
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
for number in range(8):
    if rank == 0:
        x = torch.zeros(1)
        first = dist.recv(x)
        dist.recv(x)
        print(number, first)
        del first
        x.zero_()
    else:
        dist.send(torch.ones(1), 0)
    dist.barrier()
"""


def test_a_search_ends_though_there_are_more_outputs_than_runs(tmp_path):
    """Each of eight receives is of either rank: 256 outputs, each line of which 60 runs show."""
    verdict = search_of(tmp_path / "program.py", _PHASES, max_runs=60)

    assert verdict.has_more_outputs
    assert not any("stopped" in each for each in verdict.problems)
    shown = {line for lines in outputs(verdict) for line in lines if line}
    assert shown == {f"{number} {first}" for number in range(8) for first in (1, 2)}


def test_objects_that_no_rank_comes_to_later_are_no_part_of_a_state(tmp_path):
    """Of five elections each ends before the next: their winners are summed up, not multiplied."""
    text = "\n".join(
        f"if store.add('votes{number}', 1) == 1:\n    store.set('leader{number}', str(rank))\n"
        f"store.get('leader{number}')\ndist.barrier()"
        for number in range(5)
    )
    start = _PHASES.partition("for")[0] + "store = dist.distributed_c10d._get_default_store()\n"

    verdict = search_of(tmp_path / "program.py", start + text, nprocs=2)

    assert verdict.is_proved
    assert verdict.num_runs + verdict.num_met < 5 * 8
