"""How many wakeups per second the engine makes, beside SimPy in the same run.

Run `python benches/engine.py [--json FILE]`; it takes well under a minute. Every round runs ours,
SimPy's and a bare loop of greenlet switches one after the other, so that a machine that slows down
slows all three; the figure is the median of the rounds' ratios. SimPy's processes are generators
and have no stacks; what greenlets cost at least is shown by the bare loop beside the aim.

A second table compares carriers: microseconds per wait of tasks on threads, on greenlets, and what
two locks handed to and fro cost at least. Pinned to one CPU the figures are steadier.
"""

import argparse
import json
import platform
import statistics
import threading  # noqa: TID251 - what its locks cost at least
import time
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import count
from pathlib import Path
from typing import Any

import greenlet
import simpy

import simrank
from simrank.engine import Engine, Handle, Task, TaskGroup

SEED = 0
NUM_FRAMES = 5  # user frames below a wait, in the deep cases
ROUNDS = 7

Measure = Callable[[int, int], float]


def start(
    engine: Engine, num_tasks: int, body: Callable[[int], None], carrier: str = "greenlet"
) -> TaskGroup:
    """Start tasks as ranks of one group."""
    tasks = []
    for rank in range(num_tasks):
        task = Task(engine, f"rank {rank}", rank)
        task.carry(lambda rank=rank: body(rank), carrier)
        tasks.append(task)
    group = TaskGroup(engine, "the bench", tasks)
    group.start()
    return group


def delay_ps(rank: int) -> int:
    """Return how long a rank sleeps: few are due at the same time."""
    return 1000 + rank % 7


def seconds(action: Callable[[], object]) -> float:
    """Return the wall time of an action."""
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


# ---- single wakeups: every task sleeps, again and again ----


def sleeps_of_simrank(num_tasks: int, num_waits: int, depth: int = 0) -> float:
    """Return the seconds that simrank needs."""
    engine = Engine(seed=SEED)

    def deep(delay: int, frames: int) -> None:
        if frames:
            deep(delay, frames - 1)
        else:
            engine.sleep(delay)

    def body(rank: int) -> None:
        delay = delay_ps(rank)
        for _ in range(num_waits):
            if depth:
                deep(delay, depth - 1)
            else:
                engine.sleep(delay)

    group = start(engine, num_tasks, body)
    return seconds(lambda: engine.run(group))


def sleeps_of_simpy(num_tasks: int, num_waits: int) -> float:
    """Return the seconds that SimPy needs; its processes cannot wait below their own frame."""
    environment = simpy.Environment()

    def process(rank: int) -> Iterator[Any]:
        delay = delay_ps(rank)
        for _ in range(num_waits):
            yield environment.timeout(delay)

    for rank in range(num_tasks):
        environment.process(process(rank))
    return seconds(environment.run)


def sleeps_of_a_bare_loop(num_tasks: int, num_waits: int, depth: int = 0) -> float:
    """Return the seconds of a heap and greenlet switches through a hub, with no engine at all."""
    queue: list[tuple[int, int, Callable[[], Any]]] = []
    hub, number = greenlet.getcurrent(), count()
    leave = hub.switch
    now = 0

    def deep(frames: int) -> None:
        if frames:
            deep(frames - 1)
        else:
            leave()

    def body(rank: int) -> None:
        delay, switch = delay_ps(rank), switches[rank]
        for _ in range(num_waits):
            heappush(queue, (now + delay, next(number), switch))
            if depth:
                deep(depth - 1)
            else:
                leave()

    def run() -> None:
        nonlocal now
        for rank, switch in enumerate(switches):
            switch(rank)
        while True:
            if not queue:
                break
            now, _, switch = heappop(queue)
            switch()

    switches = [greenlet.greenlet(body).switch for _ in range(num_tasks)]
    return seconds(run)


# ---- batches: all tasks wait for one thing ----


def batch_of_simrank(num_tasks: int, num_waits: int, carrier: str = "greenlet") -> float:
    """Return the seconds from the first completion to the last resume."""
    engine = Engine(seed=SEED)
    handles = [Handle() for _ in range(num_waits)]

    def body(_rank: int) -> None:
        for handle in handles:
            engine.wait(handle)

    group = start(engine, num_tasks, body, carrier)
    engine.step()  # All of them wait now.
    for index, handle in enumerate(handles):
        engine.call_at((index + 1) * 1000, lambda handle=handle: handle.finish(engine))
    return seconds(lambda: engine.run(group))


def batch_of_simpy(num_tasks: int, num_waits: int) -> float:
    """Return the seconds of the same with SimPy's events."""
    environment = simpy.Environment()
    events = [environment.event() for _ in range(num_waits)]

    def process() -> Iterator[Any]:
        yield from events

    def trigger() -> Iterator[Any]:
        for event in events:
            yield environment.timeout(1000)
            event.succeed()

    for _ in range(num_tasks):
        environment.process(process())
    environment.process(trigger())
    for _ in range(num_tasks + 1):
        environment.step()
    return seconds(environment.run)


def batch_of_a_bare_loop(num_tasks: int, num_waits: int) -> float:
    """Return the seconds of nothing but the switches there and back."""
    leave = greenlet.getcurrent().switch

    def body() -> None:
        for _ in range(num_waits):
            leave()

    switches = [greenlet.greenlet(body).switch for _ in range(num_tasks)]
    for switch in switches:
        switch()

    def run() -> None:
        for _ in range(num_waits):
            for switch in switches:
                switch()

    return seconds(run)


def lives_of_simrank(num_tasks: int, num_waits: int) -> float:
    """Return the seconds to make tasks that wait once, wake them as one, and see them end."""

    def run_once() -> None:
        engine = Engine(seed=SEED)
        handle = engine.timer(1000)
        engine.run(start(engine, num_tasks, lambda _rank: engine.wait(handle)))

    return seconds(lambda: [run_once() for _ in range(num_waits)])


def lives_of_simpy(num_tasks: int, num_waits: int) -> float:
    """Return the seconds of the same with SimPy's processes."""

    def run() -> None:
        for _ in range(num_waits):
            environment = simpy.Environment()
            event = environment.timeout(1000)

            def process(event: simpy.Event = event) -> Iterator[Any]:
                yield event

            for _ in range(num_tasks):
                environment.process(process())
            environment.run()

    return seconds(run)


def lives_of_a_bare_loop(num_tasks: int, num_waits: int) -> float:
    """Return the seconds to make greenlets, and to switch into each twice.

    Python 3.11 maps memory for the frames of each, which costs several microseconds.
    """
    leave = greenlet.getcurrent().switch

    def body() -> None:
        leave()

    def run() -> None:
        for _ in range(num_waits):
            switches = [greenlet.greenlet(body).switch for _ in range(num_tasks)]
            for _ in range(2):
                for switch in switches:
                    switch()

    return seconds(run)


# ---- carriers: the same batches on threads ----


def batch_of_bare_locks(num_tasks: int, num_waits: int) -> float:
    """Return the seconds of as many round trips between one thread and others, with no engine."""
    back = threading.Lock()
    back.acquire()
    bells = [threading.Lock() for _ in range(num_tasks)]

    def body(bell: threading.Lock) -> None:
        for _ in range(num_waits + 1):
            back.release()
            bell.acquire()

    for bell in bells:
        bell.acquire()
        threading.Thread(target=body, args=(bell,), daemon=True).start()
        back.acquire()

    def run() -> None:
        for _ in range(num_waits):
            for bell in bells:
                bell.release()
                back.acquire()

    took = seconds(run)
    for bell in bells:
        bell.release()
    return took


def compare_carriers(num_tasks: int) -> dict[str, Any]:
    """Return microseconds per wait on each carrier, median of interleaved rounds."""
    num_waits = 8000 // num_tasks
    found: dict[str, list[float]] = {"thread_us": [], "greenlet_us": [], "bare_locks_us": []}
    for _ in range(ROUNDS):
        times = (
            batch_of_simrank(num_tasks, num_waits, "thread"),
            batch_of_simrank(num_tasks, num_waits),
            batch_of_bare_locks(num_tasks, num_waits),
        )
        for name, took in zip(found, times, strict=True):
            found[name].append(took / num_tasks / num_waits * 1e6)
    medians = {name: round(statistics.median(each), 2) for name, each in found.items()}
    return {"case": "carriers", "tasks": num_tasks, **medians}


# ---- the table ----

# Name, ours, SimPy's, the bare loop, wakeups per measurement, and the aim per number of tasks.
Case = tuple[str, Measure, Measure, Measure, int, dict[int, float | None]]
CASES: list[Case] = [
    (
        "shallow",
        sleeps_of_simrank,
        sleeps_of_simpy,
        sleeps_of_a_bare_loop,
        100_000,
        {8: 0.8, 256: 0.8, 4096: 0.5},
    ),
    (
        f"{NUM_FRAMES} frames",
        lambda tasks, waits: sleeps_of_simrank(tasks, waits, NUM_FRAMES),
        sleeps_of_simpy,
        lambda tasks, waits: sleeps_of_a_bare_loop(tasks, waits, NUM_FRAMES),
        100_000,
        {8: 0.5, 256: 0.5, 4096: 0.25},
    ),
    (
        "batch",
        batch_of_simrank,
        batch_of_simpy,
        batch_of_a_bare_loop,
        100_000,
        {8: None, 256: None, 4096: None},  # A bare loop of switches does not reach SimPy's.
    ),
    (
        "batch, whole life",
        lives_of_simrank,
        lives_of_simpy,
        lives_of_a_bare_loop,
        40_000,
        {8: None, 256: None, 4096: None},
    ),
]


def measure(case: Case, num_tasks: int) -> dict[str, Any]:
    """Return wakeups per second and ratios of one case, median of interleaved rounds."""
    name, ours, theirs, bare, num_wakeups, aims = case
    num_waits = max(num_wakeups // num_tasks, 2)
    total = num_tasks * num_waits
    ratios, bounds, rates = [], [], []
    for _ in range(ROUNDS):
        times = [run(num_tasks, num_waits) for run in (ours, theirs, bare)]
        ratios.append(times[1] / times[0])
        bounds.append(times[1] / times[2])
        rates.append((total / times[0], total / times[1]))
    return {
        "case": name,
        "tasks": num_tasks,
        "simrank_per_s": round(statistics.median(ours_per_s for ours_per_s, _ in rates)),
        "simpy_per_s": round(statistics.median(simpy_per_s for _, simpy_per_s in rates)),
        "ratio": round(statistics.median(ratios), 3),
        "ratio_bare_loop": round(statistics.median(bounds), 3),
        "aim": aims[num_tasks],
    }


def print_row(row: dict[str, Any]) -> None:
    """Print one case beside its aim and beside what a bare loop reaches."""
    aim = "-" if row["aim"] is None else f"{row['aim']:g}"
    verdict = "" if row["aim"] is None else ("met" if row["ratio"] >= row["aim"] else "missed")
    print(
        f"{row['case']:18} {row['tasks']:5} {row['simrank_per_s']:12,} {row['simpy_per_s']:12,}"
        f" {row['ratio']:8.2f} {aim:>5} {row['ratio_bare_loop']:10.2f}  {verdict}"
    )


def main() -> None:
    """Run all cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    arguments = parser.parse_args()
    for _, ours, theirs, bare, _, _ in CASES:  # Warm-up: the interpreter specialises code.
        for run in (ours, theirs, bare):
            run(8, 100)
    print("wakeups per second, and how often simrank's rate is SimPy's")
    print(
        f"{'case':18} {'tasks':>5} {'simrank':>12} {'SimPy':>12} {'ratio':>8} {'aim':>5}"
        f" {'bare loop':>10}"
    )
    rows = []
    for case in CASES:
        for num_tasks in case[-1]:
            rows.append(measure(case, num_tasks))
            print_row(rows[-1])
    print(f"{'microseconds per wait':18} {'thread':>12} {'greenlet':>12} {'bare locks':>12}")
    for num_tasks in (1, 8, 64):
        rows.append(compare_carriers(num_tasks))
        print(
            "{case:18} {tasks:5} {thread_us:10} {greenlet_us:12} {bare_locks_us:12}".format(
                **rows[-1]
            )
        )
    if arguments.json:
        about = {"machine": platform.platform(), "python": platform.python_version()}
        about |= {"processor": platform.processor() or platform.machine()}
        about |= {"simrank": simrank.__version__, "greenlet": greenlet.__version__}
        about |= {"simpy": simpy.__version__}
        arguments.json.write_text(
            json.dumps({"seed": SEED, **about, "rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
