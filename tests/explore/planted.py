"""Programs whose result depends on the order of things; each passes where nothing is late."""

import fcntl
import queue
import tempfile
import threading
import time
from datetime import timedelta

import simrank.distributed as dist
from simrank.multiprocessing import Array, Manager, Value


def any_source_order(ctx):
    """Rank 0 takes what arrives first for what rank 1 sent."""

    def program(rank):
        dist.init_process_group("gloo")
        if rank == 0:
            tensor = ctx.zeros(1, device="cpu")
            sources = [dist.recv(tensor) for _ in range(2)]
            assert sources == [1, 2]
        else:
            time.sleep(rank * 1e-5)
            dist.send(ctx.ones(1, device="cpu"), 0)

    return program, 3


def lock_order(ctx):
    """Two ranks take two locks in opposite orders."""
    first, second = threading.Lock(), threading.Lock()

    def program(rank):
        pair = (first, second) if rank == 0 else (second, first)
        time.sleep(rank * 1e-4)
        with pair[0]:
            time.sleep(1e-5)
            with pair[1]:
                pass

    return program, 2


def check_then_act(ctx):
    """Each rank makes the cache entry if it is missing, and takes time in between."""
    cache, num_made = {}, []

    def program(rank):
        time.sleep(rank * 1e-4)
        if "entry" not in cache:
            time.sleep(2e-5)
            cache["entry"] = rank
            num_made.append(rank)
        assert len(num_made) <= 1

    return program, 4


def lost_update(ctx):
    """Ranks add to a shared counter without its lock."""
    counter = Value("i", 0)

    def program(rank):
        time.sleep(rank * 5e-5)
        seen = counter.value
        time.sleep(1e-5)
        counter.value = seen + 1
        dist.init_process_group("gloo")
        dist.barrier()
        assert counter.value == 4

    return program, 4


def missing_event(ctx):
    """A side stream reads what the main stream writes, without an event between them."""

    def program(rank):
        x = ctx.zeros(1 << 16)
        side = ctx.Stream()
        x.fill_(1.0)
        busy = ctx.zeros(1 << 20)
        with ctx.stream(side):
            for _ in range(4):
                busy.add_(1.0)
            y = x.clone()
        ctx.synchronize()
        assert y[0].item() == 1.0

    return program, 2


def missing_wait(ctx):
    """An asynchronous all_reduce is used without waiting for it, after work that hides it."""

    def program(rank):
        dist.init_process_group("nccl")
        x, busy = ctx.ones(1024), ctx.zeros(1 << 20)
        work = dist.all_reduce(x, async_op=True)
        for _ in range(40):
            busy.add_(1.0)
        y = x * 1.0
        work.wait()
        assert y[0].item() == 4.0

    return program, 4


def bounded_poll(ctx):
    """A poll gives up after some tries and goes on as if it had been answered."""
    mail = queue.Queue()

    def program(rank):
        if rank == 0:
            time.sleep(5e-5)
            mail.put("ready")
            return
        for _ in range(10):
            if not mail.empty():
                break
        assert mail.get_nowait() == "ready"

    return program, 2


def short_timeout(ctx):
    """A time limit has room for the usual skew only."""

    def program(rank):
        dist.init_process_group("gloo")
        time.sleep(rank * 1e-5)
        work = dist.all_reduce(ctx.ones(4, device="cpu"), async_op=True)
        work.wait(timedelta(microseconds=400))

    return program, 4


def lost_wakeup(ctx):
    """One rank notifies a condition that the other may not wait for yet."""
    condition = threading.Condition()

    def program(rank):
        if rank == 1:
            time.sleep(1e-4)
        with condition:
            if rank == 0:
                condition.wait()
            else:
                condition.notify()

    return program, 2


def two_leaders(ctx):
    """The first to come is the leader, if the others come late enough to see it."""
    roll = []

    def program(rank):
        time.sleep(rank * 3e-5)
        is_leader = not roll
        dist.init_process_group("gloo")
        if is_leader:
            roll.append(rank)
        dist.barrier()
        assert roll == [0]

    return program, 3


def buffer_reuse(ctx):
    """A buffer is written again while an isend of it may still be under way."""

    def program(rank):
        dist.init_process_group("nccl")
        x = ctx.full((256,), float(rank + 1))
        if rank == 0:
            work = dist.isend(x, 1)
            busy = ctx.zeros(1 << 20)
            for _ in range(4):
                busy.add_(1.0)
            x.zero_()
            work.wait()
        else:
            dist.recv(x, 0)
            assert x[0].item() == 1.0

    return program, 2


def lock_per_half(ctx):
    """A lock guards the check and the act, each for itself."""
    lock, made = threading.Lock(), []

    def program(rank):
        with lock:
            is_missing = not made
        if is_missing:
            with lock:
                made.append(rank)
        assert len(made) == 1

    return program, 3


def queue_of_one(ctx):
    """Ranks look whether a queue has room for them, and put into it in another call."""
    places = queue.Queue()

    def program(rank):
        if not places.qsize():
            places.put(rank)
        assert places.qsize() == 1

    return program, 3


def plain_increment(ctx):
    """`+=` of a Value is a read and a write."""
    counter = Value("i", 0)
    return _counts(lambda: setattr(counter, "value", counter.value + 1), lambda: counter.value)


def array_increment(ctx):
    """So it is of an element of an Array."""
    counters = Array("i", 1)
    return _counts(lambda: counters.__setitem__(0, counters[0] + 1), lambda: counters[0])


def managed_increment(ctx):
    """And of an entry of a manager's dict."""
    found = Manager().dict(n=0)
    return _counts(lambda: found.__setitem__("n", found["n"] + 1), lambda: found["n"])


def _counts(add, total):
    def program(rank):
        add()
        dist.init_process_group("gloo")
        dist.barrier()
        assert total() == 3

    return program, 3


def file_lock_per_half(ctx):
    """A file is read under its lock, and written under it later."""
    path = tempfile.mkdtemp() + "/count"
    with open(path, "w") as file:
        file.write("0")

    def program(rank):
        with open(path, "r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            count = int(file.read())
            fcntl.flock(file, fcntl.LOCK_UN)
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            file.write(str(count + 1))
            file.flush()
            fcntl.flock(file, fcntl.LOCK_UN)
        dist.init_process_group("gloo")
        dist.barrier()
        with open(path) as file:
            assert file.read() == "3"

    return program, 3


OF_SHARED = dict.fromkeys(  # Nothing but a late call on what ranks share brings them about.
    (
        "lock_per_half", "queue_of_one", "plain_increment", "array_increment", "managed_increment",
        "file_lock_per_half",
    ),
    "AssertionError",
)  # fmt: skip
BUGS = OF_SHARED | {
    "any_source_order": "AssertionError",
    "lock_order": "DeadlockError",
    "check_then_act": "AssertionError",
    "lost_update": "AssertionError",
    "missing_event": "AssertionError",
    "missing_wait": "AssertionError",
    "bounded_poll": "Empty",
    "short_timeout": "WaitTimeoutError",
    "lost_wakeup": "DeadlockError",
    "two_leaders": "AssertionError",
    "buffer_reuse": "AssertionError",
}
