"""What workers run in these tests; functions of a module, as a request needs them."""

from __future__ import annotations

import atexit
import ctypes
import os
import pickle
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

from simrank import validate
from simrank.validate.channel import Frame, FrameKind
from simrank.validate.this_worker import worker

STATE = {"value": 0}
FOREVER_S = 600


def rank_and(value):
    return validate.rank(), value


def answer_in_reverse():
    time.sleep(0.02 * (validate.world_size() - validate.rank()))
    return validate.rank()


def answer_another_request_first():
    """Answer the request before, then take the time in which it could be taken for this one's."""
    if validate.rank() == 1:
        state = {"counts": {}, "members": {}, "is_whole": True, "left": []}
        body = pickle.dumps((state, pickle.dumps("another's")))
        late = bytes(Frame(FrameKind.RETURNED, worker().request - 1, body))
        for fd in channel_fd():
            os.write(fd, late)
        time.sleep(0.1)
    return validate.rank()


def add(a, b):
    return a + b


def add_a_step(config):
    config["steps"].append(2)
    return config["steps"]


def wait_in_all_reduce():
    with validate.collective("all_reduce"):
        time.sleep(FOREVER_S)


def raise_on(ranks, *, peers_wait=True):
    if validate.rank() in ranks:
        raise ValueError(f"boom {validate.rank()}")
    if peers_wait:
        wait_in_all_reduce()


def raise_one_after_the_other():
    time.sleep(0.02 * validate.rank())
    raise ValueError(f"boom {validate.rank()}")


def die_after_another_raised(rank):
    if validate.rank() == rank:
        raise ValueError(f"boom {rank}")
    time.sleep(0.6)  # Longer than a death is taken for the cause of what others raise.
    os.kill(os.getpid(), signal.SIGKILL)


def raise_with(text, path=os.devnull):
    mark(path)
    raise ValueError(text)


def raise_beside_half_a_frame(rank):
    """Raise on a rank where another has begun to answer, and never ends."""
    if validate.rank() == 0:
        for fd in channel_fd():
            os.write(fd, bytes(Frame(FrameKind.RETURNED, worker().request, b"answer"))[:-1])
        time.sleep(FOREVER_S)
    time.sleep(0.05)
    raise_on([rank])


def raise_while_others_compute(rank):
    if validate.rank() == rank:
        raise ValueError(f"boom {rank}")
    time.sleep(FOREVER_S)


def raise_alone(ranks):
    raise_on(ranks, peers_wait=False)


def return_early(rank):
    if validate.rank() != rank:
        wait_in_all_reduce()


def part():
    with validate.collective("all_reduce" if validate.rank() == 0 else "broadcast"):
        time.sleep(FOREVER_S)


def ring():
    after = (validate.rank() + 1) % validate.world_size()
    pair = sorted((validate.rank(), after))
    with validate.collective("all_reduce", f"pair {pair}", pair):
        time.sleep(FOREVER_S)


def sleep():
    time.sleep(FOREVER_S)


def hold_the_interpreter(rank):
    """Wait in C code that never gives the interpreter back, whatever signal comes."""
    if validate.rank() == rank:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        libc, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
        for _ in range(2):  # Whoever has it waits for itself.
            libc.pthread_mutex_lock(mutex)


def end(rank, how):
    if validate.rank() == rank:
        sys.stdout.write("last words\n")
        sys.stdout.flush()
        if how == "exit":
            os._exit(7)
        os.kill(os.getpid(), getattr(signal, how))
    wait_in_all_reduce()


def die_once(path):
    """Die on rank 0 where no file is, and make it."""
    if validate.rank() == 0 and not Path(path).exists():
        Path(path).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "alive"


def make_noise(num_lines=3):
    """Print as Python, C and a child process do."""
    for number in range(num_lines):
        sys.stdout.write(f"python {number}\n")
        sys.stderr.write(f"python error {number}\n")
    libc = ctypes.CDLL(None)
    libc.puts(b"banner of C")
    libc.fflush(None)
    os.write(1, b"\x00\x00srk1 raw bytes \xff\xfe")
    os.write(2, b"NCCL version 2.27.3+cuda12.9\n")
    subprocess.run([sys.executable, "-c", "print('a child')"], check=True)
    return "quiet"


def wait_until_shown(folder):
    """Print a line and wait for the file that whoever shows it makes; return whether it came."""
    os.write(1, b"waiting to be shown\n")
    deadline = time.monotonic() + 5
    while not (found := (Path(folder) / str(validate.rank())).exists()):
        if time.monotonic() > deadline:
            break
        time.sleep(0.005)
    return found


def print_half_a_line():
    os.write(1, b'{"ok": tru')
    return validate.rank()


def print_much(num_bytes):
    os.write(1, b"x" * 100)
    for _ in range(num_bytes // 1000):
        os.write(1, b"y" * 999 + b"\n")
    return os.getpid()


def keeper():
    """Return the process id of this worker's keeper; a case runs in a fork of the worker."""
    stat = Path(f"/proc/{os.getppid()}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])


def set_state(value):
    STATE["value"] += value
    return STATE["value"]


def spoil():
    """Change what a case could leave behind."""
    os.environ["SPOILED"] = "1"
    os.chdir("/")
    sys.argv.append("spoiled")


def facts():
    import random

    return os.environ.get("SPOILED"), os.getcwd(), list(sys.argv), random.random()


def start_descendants(path):
    """Start a child, and a grandchild in a session of its own; add the ids of all, and go on."""
    program = (
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'],\n"
        "    start_new_session=True)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    pids = os.getppid(), os.getpid(), child.pid, int(child.stdout.readline())
    with Path(path).open("a") as file:
        file.write(" ".join(map(str, pids)) + "\n")
    sleep()


def descendants(path, num_workers):
    """Return the ids that workers have written, once all have."""
    while not path.exists() or path.read_text().count("\n") < num_workers:
        time.sleep(0.01)
    return [[int(pid) for pid in line.split()] for line in path.read_text().splitlines()]


def unpicklable():
    return lambda: None


class StubbornError(Exception):
    def __init__(self, first, second):
        super().__init__("stubborn")


def raise_stubborn():
    raise StubbornError(1, 2)


def fork(how):
    """Make a child that does not end by itself; return how it ended, and whose fork this is."""
    child = os.fork()
    if child == 0:
        if how == "raises":
            raise ValueError("in a fork")
        if how == "exits":
            sys.exit(3)
        return "an answer of the fork"
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), os.getppid()


def leave(code):
    sys.exit(code)


def mark(path):
    """Append this rank to a file."""
    with Path(path).open("a") as file:
        file.write(f"{validate.rank()}\n")


def num_marks(path):
    return Path(path).read_text().split().count(str(validate.rank()))


def mark_at_exit(path):
    atexit.register(mark, path)


def mark_and_sleep(path):
    mark(path)
    sleep()


def descriptors():
    return sorted(os.listdir("/proc/self/fd")), os.getsid(0), os.getpgid(0), os.getppid()


def write_to(fd):
    """Try to write where the channel is."""
    os.write(fd, b"not a frame at all, and longer than a frame's head is")


def channel_fd():
    return [
        int(fd)
        for fd in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{fd}")
        and os.readlink(f"/proc/self/fd/{fd}").startswith("socket:")
    ]


def break_the_channel():
    if validate.rank() == 1:
        for fd in channel_fd():
            write_to(fd)
    time.sleep(FOREVER_S)


def count_down(queue, lock):
    with lock:
        queue.put(validate.rank())


def write_and_poll(results):
    results[validate.rank()] = validate.rank() * 10
    while len(results) < validate.world_size():
        time.sleep(0.01)
    return len(results)


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1])


def return_a_ghost():
    """Return an object of a class that only this process has."""
    module = types.ModuleType("ghost")
    module.Ghost = type("Ghost", (), {"__module__": "ghost"})
    sys.modules["ghost"] = module
    return module.Ghost()
