"""Processes of a phase: started together, and ended together in any case."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simrank.validate.kit.script.machine import clean

PEERS_S = 5.0  # For which the others go on after one rank has failed.
LAST_LINES = 3


@dataclass
class Done:
    """The result of a phase.

    Attributes:
        rows: What its ranks wrote.
        failure: Why it failed; "" if it did not.
        is_late: Whether it was ended at its limit.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    failure: str = ""
    is_late: bool = False


def run_phase(phase: str, ranks: int, limit_s: float) -> Done:
    """Run a phase on some ranks, each in a process of its own, and end them at the limit."""
    with tempfile.TemporaryDirectory(prefix="kit_") as folder:
        home, started = Path(folder), []
        port = free_port()
        try:
            for rank in range(ranks):  # One by one: those that were started are ended.
                each = start(phase, rank, ranks, port, limit_s, home)
                started += [each]
            done = wait_for(started, limit_s, home)
        finally:
            for each in started:
                end(each)
        for rank in range(ranks):
            path = home / f"rows.{rank}"
            done.rows += read_rows(path.read_text("utf-8")) if path.exists() else []
    return done


def start(
    phase: str, rank: int, ranks: int, port: int, limit_s: float, home: Path
) -> subprocess.Popen[bytes]:
    """Start one rank in a session of its own; its output goes to a file."""
    env = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks))
    env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    words = ["--worker", phase, "--to", str(home / f"rows.{rank}"), "--limit", f"{limit_s * 0.8:g}"]
    with (home / f"output.{rank}").open("wb") as output:
        return subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=env,
            start_new_session=True,
        )


def wait_for(started: list[subprocess.Popen[bytes]], limit_s: float, home: Path) -> Done:
    """Wait until all ranks end, one fails, or the limit."""
    last = time.monotonic() + limit_s
    done = Done()
    while True:
        codes = [each.poll() for each in started]
        failed = [rank for rank, code in enumerate(codes) if code]
        if failed and not done.failure:
            done.failure = reason(failed[0], codes[failed[0]] or 0, home)
            last = min(last, time.monotonic() + PEERS_S)
        if None not in codes:
            return done
        if time.monotonic() > last:
            if not done.failure:
                done.failure, done.is_late = f"did not end within {limit_s:g} s", True
            return done
        time.sleep(0.05)


def reason(rank: int, code: int, home: Path) -> str:
    """Return the last lines of a rank that failed, and its status."""
    text = (home / f"output.{rank}").read_text("utf-8", errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()][-LAST_LINES:]
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"status {code}"
    return clean(f"rank {rank}, {how}: {' | '.join(lines)}")[:600]


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a rank and what it has started."""
    with suppress(ProcessLookupError):  # It has ended, and all of its session.
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def read_rows(text: str) -> list[dict[str, Any]]:
    """Return the rows of a file whose last line may be incomplete."""
    found = []
    for line in text.splitlines():
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return found


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
