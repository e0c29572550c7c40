"""The keeper of one worker: a small process between pool and worker, run as a script.

It starts the worker in a session of its own, and outlives it only to see that nothing of it is
left. When its lifeline to the pool closes, or the pool's process is gone, it kills the worker and
everything that descends from it; when the worker ends, it kills what the worker left behind and
tells the pool how it ended. It holds no state, imports nothing of simrank, and has one thread:

- A parent-death signal comes when the *thread* that made a child ends, and reaches no grandchild.
  So the pool's end is seen by the lifeline (a socket that the kernel closes), and by the parent's
  id where a fork of the pool's process holds the lifeline open.
- A grandchild that made a session of its own is in no group that could be killed. So the keeper is
  the reaper of orphans: descendants of the worker become its children at last.
- A keeper that is killed itself takes the worker along: that parent-death signal is safe, since the
  keeper has one thread.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
_LOOK_MS = 500  # assumed: how late a parent's end may be seen where a fork holds the lifeline
_STATUS_BYTES = 4
_MAX_ROUNDS = 2_000  # of 5 ms: a process in the kernel that cannot be killed is left to init


def main(config: dict[str, Any]) -> None:
    """Start the worker, wait for an end, and leave nothing behind.

    Args:
        config: What `process.Process` passes: descriptors, the search path, the parent's id.
    """
    adopt_orphans()
    reading, writing = os.pipe()  # A byte comes when a child ends.
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    keeper = os.getpid()
    worker = os.fork()
    if worker == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for fd in (reading, writing, config["lifeline"]):
            os.close(fd)
        _be_worker(config, keeper)
        return
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    for fd in (null, *config["worker_fds"]):
        os.close(fd)
    status = _watch(worker, config["lifeline"], reading, config["parent"])
    _end_descendants(worker)
    with suppress(OSError):
        os.write(config["lifeline"], status.to_bytes(_STATUS_BYTES, "big"))
    os._exit(0)


def _watch(worker: int, lifeline: int, child_ended: int, parent: int) -> int:
    """Wait until the worker has ended or is to end; return its wait status."""
    poll = select.poll()
    poll.register(lifeline, select.POLLIN)
    poll.register(child_ended, select.POLLIN)
    while True:
        ready = {fd for fd, _ in poll.poll(_LOOK_MS)}
        if child_ended in ready:
            with suppress(BlockingIOError):
                os.read(child_ended, 4096)
        pid, status = os.waitpid(worker, os.WNOHANG)
        if pid:
            return status
        if lifeline in ready or os.getppid() != parent:  # Nothing is ever written to it.
            os.kill(worker, signal.SIGKILL)
            return os.waitpid(worker, 0)[1]


def _end_descendants(worker: int) -> None:
    """Kill the worker's group, then every orphan."""
    with suppress(OSError):
        os.killpg(worker, signal.SIGKILL)
    end_children()


def end_children() -> None:
    """Kill the children of this process, orphans among them, until there is none."""
    for _ in range(_MAX_ROUNDS):
        for pid in _children():
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        select.select([], [], [], 0.005)


def _children() -> list[int]:
    """Return this process's children, adopted ones included; none where there is no /proc."""
    own = os.getpid()
    try:
        return [int(p) for p in Path(f"/proc/{own}/task/{own}/children").read_text().split()]
    except OSError:
        return []


def _be_worker(config: dict[str, Any], keeper: int) -> None:
    os.setsid()
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != keeper:  # It ended before it could be asked for.
        os._exit(1)
    sys.argv = [""]
    sys.path[:] = config["path"]
    from simrank.validate import worker  # noqa: PLC0415 - the keeper itself imports no simrank

    functions = worker.Descendants(adopt_orphans, die_with_parent, end_children)
    worker.main(config, functions)


def die_with_parent() -> None:
    """End this process with the one that forked it, which has one thread."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Make this process the parent of its descendants whose parents end."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    """Call Linux's prctl; other systems rely on process groups and the lifeline."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
