"""Processes of a phase: started together, and ended together in any case."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simrank.validate.kit.script.machine import clean

if TYPE_CHECKING:
    from collections.abc import Iterator

PEERS_S = 5.0  # For which the others go on after one rank has failed.
LAST_LINES = 3
START_S = 8.0  # Of a worker's limit, which its start takes.
END_S = 10.0  # To wait for a process that was killed: one in the driver may never end.
READY = "ready"  # A row that a rank writes before its program.
PR_SET_PDEATHSIG = 1
HOME = "KIT_HOME"  # The folder of a phase.


@dataclass
class Done:
    """The result of a phase.

    Attributes:
        rows: Those that its ranks wrote.
        failure: Why it failed; "" if it did not.
        is_late: Whether it was ended at its limit.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    failure: str = ""
    is_late: bool = False


def run_phase(phase: str, ranks: int, limit_s: float, done: Done, after_ready_s: float = 0) -> None:
    """Run a phase on some ranks, each in a process of its own, and end them at the limit.

    Args:
        phase: Its name.
        ranks: Their number.
        limit_s: Seconds until they are ended.
        done: Gets the result, also if this is interrupted.
        after_ready_s: Seconds until they are ended once all have written that they are ready;
            0: that changes nothing.
    """
    home, port = Path(tempfile.mkdtemp(prefix="kit_")), free_port()
    started: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(ranks):  # One by one: those that were started are ended.
            with held():
                started.append(start(phase, rank, ranks, port, limit_s, home))
        wait_for(started, limit_s, home, done, after_ready_s)
    finally:
        end(started)
        done.rows += [row for rank in range(ranks) for row in rows_of(home, rank)]
        shutil.rmtree(home, ignore_errors=True)


@contextmanager
def held() -> Iterator[None]:
    """Keep signals that end the run until the end of a block: a child would be lost."""
    seen: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {each: signal.signal(each, lambda number, _: seen.append(number)) for each in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if seen:
        raise KeyboardInterrupt


def start(
    phase: str, rank: int, ranks: int, port: int, limit_s: float, home: Path
) -> subprocess.Popen[bytes]:
    """Start one rank in a session of its own; its output goes to a file."""
    env = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks))
    env.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), HOME: str(home)})
    least = max(1.0, 0.85 * limit_s - START_S)
    words = ["--worker", phase, "--to", str(home / f"rows.{rank}"), "--limit", f"{least:g}"]
    words += ["--parent", str(os.getpid()), "--alarm", f"{int(limit_s + 20)}"]
    with (home / f"output.{rank}").open("wb") as output:
        return subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=env,
            start_new_session=True,
        )


def end_with_parent(parent: int, alarm_s: int) -> None:
    """Make a worker end with its parent, even a killed one, and at its alarm at the latest."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(alarm_s)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def wait_for(
    started: list[subprocess.Popen[bytes]],
    limit_s: float,
    home: Path,
    done: Done,
    after_ready_s: float,
) -> None:
    """Wait until all ranks end, one fails, or the limit."""
    last = time.monotonic() + limit_s
    is_ready = not after_ready_s
    while True:
        codes = [each.poll() for each in started]
        failed = [rank for rank, code in enumerate(codes) if code]
        if failed and not done.failure:
            done.failure = reason(failed[0], codes[failed[0]] or 0, home)
            last = min(last, time.monotonic() + PEERS_S)
        if None not in codes:
            return
        if not is_ready and all(has_row(home, rank, READY) for rank in range(len(started))):
            is_ready, last = True, time.monotonic() + after_ready_s
        if time.monotonic() > last:
            if not done.failure:
                done.failure = f"did not end within {limit_s:g} s"
                done.is_late = is_ready
            return
        time.sleep(0.05)


def reason(rank: int, code: int, home: Path) -> str:
    """Return the last lines of a rank that failed, and its status."""
    text = (home / f"output.{rank}").read_text("utf-8", errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()][-LAST_LINES:]
    how = f"status {code}"
    if code < 0:
        known = {each.value: each.name for each in signal.Signals}
        how = f"signal {known.get(-code, str(-code))}"
    return clean(f"rank {rank}, {how}: {' | '.join(lines)}")[:600]


def end(started: list[subprocess.Popen[bytes]]) -> None:
    """Kill ranks and the processes that they have started, all at once."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # A second one would leave some.
    for each in started:
        with suppress(ProcessLookupError, PermissionError):  # It has ended, with its session.
            os.killpg(each.pid, signal.SIGKILL)
    for each in started:
        with suppress(subprocess.TimeoutExpired):
            each.wait(END_S)
    signal.signal(signal.SIGINT, before)


def rows_of(home: Path, rank: int) -> list[dict[str, Any]]:
    """Return the rows of a rank's file, whose last line may be incomplete."""
    path = home / f"rows.{rank}"
    found: list[dict[str, Any]] = []
    for line in path.read_text("utf-8").splitlines() if path.exists() else []:
        with suppress(json.JSONDecodeError):
            found.append(json.loads(line))
    return found


def has_row(home: Path, rank: int, kind: str) -> bool:
    """Return whether a rank has written a row of a kind."""
    return any(row["kind"] == kind for row in rows_of(home, rank))


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
