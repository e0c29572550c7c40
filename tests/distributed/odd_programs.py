"""Random programs that make the same calls in a loop, with one fault of one rank."""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import simrank
import simrank.distributed as dist
from simrank.errors import CollectiveMismatchError, DeadlockError, SimrankError, SpawnException

if TYPE_CHECKING:
    from simrank.distributed.flight_recorder import FlightRecorder

SHAPES = [  # tensor, data and pipeline parallel
    (1, 2, 1), (1, 4, 1), (2, 2, 1), (2, 4, 1), (4, 2, 1), (2, 2, 2), (1, 8, 1), (1, 1, 4),
    (1, 2, 4), (4, 4, 1), (2, 4, 2),
]  # fmt: skip
FAULTS = ("skip", "extra", "swap", "other", "break", "continue")
MORE_FAULTS = ("size", "dtype", "return")
OPS = ("all_reduce", "broadcast", "all_gather_into_tensor")
_STEPS = 7
_BEGIN = """
def exchange(rank, ctx, g, k):
    ranks, me = g["ranks"], g["me"]
    if me > 0:
        dist.recv(ctx.ones(k), ranks[me - 1])
    if me < len(ranks) - 1:
        dist.send(ctx.ones(k), ranks[me + 1])

def program(rank, ctx, g):
    for step in range({steps}):
        bad = rank == {culprit} and step == {step}
"""


class Program(NamedTuple):
    """A program with a fault.

    Attributes:
        shape: Sizes of the axes.
        fault: Its kind; "none" has none.
        culprit: The rank.
        text: Its source.
        lines: The lines of the fault.
    """

    shape: tuple[int, int, int]
    fault: str
    culprit: int
    text: str
    lines: frozenset[int]


def draw(seed: int, fault: str | None = None) -> Program:
    """Return the program of a seed; its fault is not in its first step, where nothing is usual."""
    rnd = random.Random(seed)
    shape = rnd.choice(SHAPES)
    axes = [axis for axis, size in zip(("tp", "dp", "pp"), shape, strict=True) if size > 1]
    calls = [
        _call(rnd.choice([*axes, "all"]), rnd.choice(OPS), rnd.choice([8, 16, 24]))
        for _ in range(rnd.randint(3, 8))
    ]
    if shape[2] > 1 and rnd.random() < 0.7:
        calls.insert(rnd.randrange(len(calls)), "exchange(rank, ctx, g, 16)")
    fault = fault or rnd.choice(FAULTS)
    culprit = rnd.randrange(shape[0] * shape[1] * shape[2])
    at = rnd.randrange(len(calls) - (fault == "swap"))
    call, later = calls[at], calls[(at + 1) % len(calls)]
    longer = re.sub(r"(ones|zeros)[(](\d+)", r"\1((3 + \2)", call)
    other = _call("all", "broadcast" if "all_reduce" in call else "all_reduce", 8)
    faulty = {
        "none": [call],
        "skip": ["if not bad:", f"    {call}"],
        "extra": [call, "if bad:", f"    {call}"],
        "other": ["if bad:", f"    {other}", "else:", f"    {call}"],
        "size": ["if bad:", f"    {longer}", "else:", f"    {call}"],
        "dtype": ["if bad:", f"    {_doubles(call)}", "else:", f"    {call}"],
        "return": ["if bad:", "    return", call],
        "break": ["if bad:", "    break", call],
        "continue": ["if bad:", "    continue", call],
        "swap": ["if bad:", f"    {later}", f"    {call}", "else:", f"    {call}", f"    {later}"],
    }[fault]
    begin = _BEGIN.format(steps=_STEPS, culprit=culprit, step=rnd.randint(1, _STEPS - 2))
    lines = begin.splitlines()
    for number, text in enumerate(calls):
        if number == at:
            first = len(lines) + 1
            lines += [f"        {each}" for each in faulty]
            bad_lines = frozenset(range(first, len(lines) + 1))
        elif number != at + 1 or fault != "swap":
            lines.append(f"        {text}")
        if rnd.random() < 0.3:
            lines.append("        ctx.synchronize()")
    lines += ["    dist.barrier()", "    ctx.synchronize()"]
    return Program(shape, fault, culprit, "\n".join(lines), bad_lines)


def _doubles(call: str) -> str:
    """Return a call of tensors of doubles."""
    made = r"(ctx[.](?:ones|zeros)[(][^,()]*(?:\[[^)]*\])?)[)]"
    return re.sub(made, r"\1, dtype='float64')", call)


def _call(axis: str, op: str, size: int) -> str:
    group = f"g['{axis}'][0]"
    arguments = {
        "all_reduce": f"ctx.ones({size})",
        "broadcast": f"ctx.ones({size}), g['{axis}'][2]",
        "all_gather_into_tensor": f"ctx.zeros({size} * g['{axis}'][1]), ctx.ones({size})",
    }[op]
    return f"dist.{op}({arguments}, group={group})"


def _groups(rank: int, shape: tuple[int, int, int]) -> dict[str, Any]:
    """Make the groups of all axes: handle, size and first rank of each."""
    world = shape[0] * shape[1] * shape[2]
    made: dict[str, Any] = {"all": (None, world, 0)}
    stride = 1
    for axis, size in zip(("tp", "dp", "pp"), shape, strict=True):
        for first in range(world if size > 1 else 0):
            if first // stride % size == 0:
                ranks = [first + number * stride for number in range(size)]
                handle = dist.new_group(ranks, group_desc=axis)
                if rank in ranks:
                    made[axis] = handle, size, ranks[0]
                    made["ranks"], made["me"] = ranks, ranks.index(rank)
        stride *= size
    return made


def failure(
    program: Program, path: str, records: FlightRecorder | None = None
) -> DeadlockError | CollectiveMismatchError | None:
    """Run a program and return its failure, or None.

    Args:
        program: The program.
        path: What its lines are called by.
        records: Where its ranks' calls are kept; they then go on until they need one that failed.
    """
    names: dict[str, Any] = {"dist": dist}
    exec(compile(program.text, path, "exec"), names)  # noqa: S102 - of our own making

    def main(rank: int, ctx: simrank.Context) -> None:
        dist.init_process_group("nccl")
        names["program"](rank, ctx, _groups(rank, program.shape))

    num_ranks = program.shape[0] * program.shape[1] * program.shape[2]
    try:
        with simrank.Context.for_ranks(
            num_ranks,
            flight_recorder=records,
            on_failure="abort" if records is None else "continue",
        ) as ctx:
            ctx.multiprocessing.spawn(main, args=(ctx,), nprocs=num_ranks)
    except DeadlockError as error:
        return error
    except SpawnException as error:
        found = [e for e in error.errors.values() if isinstance(e, CollectiveMismatchError)]
        if found:
            return found[0]
        raise
    except SimrankError as error:
        if str(error).startswith("lost message"):  # Its receiver skipped its part: no rank waits.
            return None
        raise
    return None
