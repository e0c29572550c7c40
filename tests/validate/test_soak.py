"""One pool, many cases, failures injected by seed: every case has the right verdict."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import uuid
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from simrank.errors import (
    PoolError,
    RanksPartedError,
    RanksRaisedError,
    WorkerDiedError,
    WorkerTimeoutError,
)
from simrank.validate import Options, WorkerPool

from . import cases
from .conftest import TOKEN, none_left

NUM_WORKERS = 4
ENDS = ("SIGKILL", "SIGSEGV", "exit")


@dataclass(frozen=True)
class Plan:
    """A case and what is to come of it.

    Attributes:
        fn: What the workers run.
        args: Its arguments.
        ranks: Who takes part.
        verdict: The type of what is raised, or None.
        culprits: The ranks that raised or died.
    """

    fn: object
    args: tuple
    ranks: tuple[int, ...]
    verdict: type[PoolError] | None = None
    culprits: tuple[int, ...] = ()


def planned(rng, kind, add):
    """Return a case of a kind."""
    num_active = int(rng.integers(2, NUM_WORKERS + 1))
    active = tuple(sorted(map(int, rng.permutation(NUM_WORKERS)[:num_active])))
    some = tuple(sorted(map(int, rng.permutation(active)[: rng.integers(1, num_active)])))
    return {
        "sum": Plan(add, (), active),
        "noise": Plan(cases.make_noise, (), active),
        "raise": Plan(cases.raise_alone, (some,), active, RanksRaisedError, some),
        "raise alone": Plan(cases.raise_on, (some,), active, RanksRaisedError, some),
        "part": Plan(cases.return_early, (some[0],), active, RanksPartedError),
        "hang": Plan(cases.hold_the_interpreter, (some[0],), active, WorkerTimeoutError),
        "die": Plan(cases.end, (some[0], str(rng.choice(ENDS))), active, WorkerDiedError, some[:1]),
    }[kind]


def soak(pool, num_cases, seed, weights, add):
    """Run cases and check each; return this process's memory after every one."""
    rng = np.random.default_rng(seed)
    kinds = list(weights)
    shares = np.array([weights[kind] for kind in kinds]) / sum(weights.values())
    resident = []
    for number in range(num_cases):
        plan = planned(rng, kinds[rng.choice(len(kinds), p=shares)], add)
        outcome = pool.map(plan.fn, [plan.args], ranks=plan.ranks)[0]
        error = outcome.error
        what = f"case {number} of seed {seed}: {plan} gave {error}"
        assert type(error) is (type(None) if plan.verdict is None else plan.verdict), what
        if plan.verdict is None and plan.fn is add:
            assert outcome.results == [float(len(plan.ranks))] * len(plan.ranks), what
        if plan.verdict is RanksRaisedError:
            assert tuple(error.errors) == plan.culprits, what
            assert all(f"boom {rank}" in error.tracebacks[rank] for rank in plan.culprits), what
        if plan.verdict is WorkerDiedError:
            assert tuple(error.ended) == plan.culprits, what
        resident.append(resident_bytes(os.getpid()))
    return resident


def resident_bytes(pid):
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def listening():
    """Return the ports on which this process listens; other jobs of the machine have theirs."""
    sockets = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # What listed the folder.
            sockets.add(os.readlink(f"/proc/self/fd/{number}"))
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {line[1] for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in sockets}


def count_alone():
    from simrank import validate

    return float(len(validate.active_ranks()))


def check(backend, num_cases, weights, add):
    """Soak a pool, and count what is left of it."""
    word = uuid.uuid4().hex
    descriptors, ports = len(os.listdir("/proc/self/fd")), listening()
    pool = WorkerPool(NUM_WORKERS, backend, 2.0, env={TOKEN: word}, options=Options(retry=False))
    with pool:
        resident = soak(pool, num_cases, 7, weights, add)
        pool.run(add)
        # Per worker: channel, lifeline, output, page and stacks; and one that waits for them all.
        assert len(os.listdir("/proc/self/fd")) == descriptors + 5 * NUM_WORKERS + 1
    assert none_left(word) == []
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert listening() <= ports
    half = len(resident) // 2
    assert max(resident[half:]) < 1.1 * max(resident[:half]), "memory is flat"


@pytest.mark.slow
def test_a_short_soak_of_plain_processes():
    """Thirty cases, a fifth of them fatal."""
    weights = {"sum": 12, "noise": 6, "raise": 6, "raise alone": 2, "part": 1, "hang": 0, "die": 3}
    check(None, 30, weights, count_alone)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_200_cases_on_one_gloo_pool():
    """Failures, hangs, crashes, noise and inactive ranks: nothing left, nothing leaked."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    from . import gloo_cases

    weights = {"sum": 80, "noise": 40, "raise": 40, "raise alone": 12, "part": 8, "hang": 6}
    check("gloo", 200, weights | {"die": 14}, gloo_cases.among_active)
