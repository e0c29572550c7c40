"""Order of the steps of an MSCCL program: dependencies, levels and deadlocks.

A step comes after the one before it in its thread block, after the step it depends on, and, if it
receives, after the step that sends what it receives: the k-th message of a connection is the k-th
that is received. Sending never waits: connections are assumed to have room for all messages
under way (real ones have room for some, and can hang where this does not).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from simrank.errors import ScheduleError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from simrank.formats.msccl.program import BlockStep, MscclProgram, ThreadBlock


class PlacedStep(NamedTuple):
    """A step, with its GPU and thread block.

    Attributes:
        rank: The GPU.
        block: Its thread block.
        step: The step.
        lane: Number of the thread block among those of all GPUs.
    """

    rank: int
    block: ThreadBlock
    step: BlockStep
    lane: int


class Dependency(NamedTuple):
    """Something that a step waits for.

    Attributes:
        source: Number of the node that comes first.
        why: In words, between the names of the later step and the earlier one.
    """

    source: int
    why: str


@dataclass(frozen=True)
class ExecutionOrder:
    """The steps of a program in an order in which they can run.

    Attributes:
        program: The program.
        nodes: Its steps: those of each thread block one after the other.
        sequence: Numbers of nodes, each after all that it waits for.
        level: Per node, how many steps must have been done before it, one after the other.
        messages: Number of the receiving node for each that sends.
        signals: For each node that depends on another, the number of the node that ends its wait.
    """

    program: MscclProgram
    nodes: Sequence[PlacedStep]
    sequence: Sequence[int]
    level: Sequence[int]
    messages: dict[int, int]
    signals: dict[int, int]


def order_of(program: MscclProgram) -> ExecutionOrder:
    """Return the order of a program's steps.

    Raises:
        ScheduleError: A message has no receiver or none is sent, or steps wait for each other.
    """
    nodes = list(_nodes(program))
    messages = _matched(program, nodes)
    signals = _signals(program, nodes)
    waits: list[list[Dependency]] = [[] for _ in nodes]
    for number, node in enumerate(nodes):
        if node.step.number:
            waits[number].append(Dependency(number - 1, "comes after"))
    for number, signal in signals.items():
        waits[number].append(Dependency(signal, "depends on (depid, deps)"))
    for number, receiver in messages.items():
        waits[receiver].append(Dependency(number, "receives from"))
    sequence, level = _sorted(waits)
    if len(sequence) < len(nodes):
        raise _deadlock(program, nodes, waits, stuck=set(range(len(nodes))) - set(sequence))
    return ExecutionOrder(program, nodes, sequence, level, messages, signals)


def describe(program: MscclProgram, node: PlacedStep) -> str:
    """Return the text of a step and its position in the file."""
    where = f" at {program.file}:{node.step.line}" if node.step.line else ""
    return (
        f"gpu {node.rank}, thread block {node.block.number}, step {node.step.number} "
        f"({node.step.type}){where}"
    )


def _nodes(program: MscclProgram) -> Iterator[PlacedStep]:
    lane = 0
    for gpu in program.gpus:
        for block in gpu.blocks:
            for step in block.steps:
                yield PlacedStep(gpu.rank, block, step, lane)
            lane += 1


def _matched(program: MscclProgram, nodes: Sequence[PlacedStep]) -> dict[int, int]:
    """Return the receiving node for each that sends."""
    sent: dict[tuple[int, int, int], list[int]] = {}
    received: dict[tuple[int, int, int], list[int]] = {}
    for number, (rank, block, step, _) in enumerate(nodes):
        if step.kind.sends:
            sent.setdefault((rank, block.send, block.channel), []).append(number)
        if step.kind.receives:
            received.setdefault((block.recv, rank, block.channel), []).append(number)
    messages, unmatched = {}, []
    for key in sorted({*sent, *received}):
        src, dst, channel = key
        senders, receivers = sent.get(key, []), received.get(key, [])
        common = min(len(senders), len(receivers))
        for number in senders[common:]:
            what = f"sends to gpu {dst} on channel {channel}, which receives {common}"
            unmatched.append(f"{describe(program, nodes[number])} {what}")
        for number in receivers[common:]:
            what = f"receives from gpu {src} on channel {channel}, which sends {common}"
            unmatched.append(f"{describe(program, nodes[number])} {what}")
        for sender, receiver in zip(senders, receivers, strict=False):
            messages[sender] = receiver
            counts = nodes[sender].step.count, nodes[receiver].step.count
            if counts[0] != counts[1]:
                what = f"sends {counts[0]} chunks, of which {counts[1]} are received"
                other = describe(program, nodes[receiver])
                unmatched.append(f"{describe(program, nodes[sender])} {what}: {other}")
    if unmatched:
        what = "a message has" if len(unmatched) == 1 else f"{len(unmatched)} messages have"
        raise ScheduleError(f"{program.file}: {what} no equal on the other side", *unmatched)
    return messages


def _signals(program: MscclProgram, nodes: Sequence[PlacedStep]) -> dict[int, int]:
    """Return the node that ends the wait of each node that depends on another.

    A thread block says that it has come to a step only after steps with `hasdep`.
    """
    first = {(n.rank, n.block.number): i for i, n in enumerate(nodes) if not n.step.number}
    signals, silent = {}, []
    for number, node in enumerate(nodes):
        if node.step.depends_on is None:
            continue
        block, step = node.step.depends_on
        begin = first[node.rank, block]
        steps = nodes[begin].block.steps
        speakers = (each for each in steps[step:] if each.signals and each.type != "nop")
        said = next((each.number for each in speakers), None)
        if said is None:
            target = describe(program, nodes[begin + step])
            silent.append(f"{describe(program, node)} waits for {target}")
        else:
            signals[number] = begin + said
    if silent:
        what = "a step waits for a step without `hasdep`"
        raise ScheduleError(f"{program.file}: {what}", *silent)
    return signals


def _sorted(waits: Sequence[Sequence[Dependency]]) -> tuple[list[int], list[int]]:
    """Return nodes in an order that respects all waits, as far as there is one, and levels."""
    after: list[list[int]] = [[] for _ in waits]
    missing = np.zeros(len(waits), np.int64)
    for number, edges in enumerate(waits):
        missing[number] = len(edges)
        for edge in edges:
            after[edge.source].append(number)
    left, level = missing.tolist(), [0] * len(waits)
    sequence = [number for number, count in enumerate(left) if not count]
    for number in sequence:  # Which grows on the way.
        for later in after[number]:
            left[later] -= 1
            level[later] = max(level[later], level[number] + 1)
            if not left[later]:
                sequence.append(later)
    return sequence, level


def _deadlock(
    program: MscclProgram,
    nodes: Sequence[PlacedStep],
    waits: Sequence[Sequence[Dependency]],
    *,
    stuck: set[int],
) -> ScheduleError:
    """Return the error of a deadlocked program, with its cycle of steps."""
    number, seen = min(stuck), list[tuple[int, str]]()
    while number not in [earlier for earlier, _ in seen]:
        edge = next(edge for edge in waits[number] if edge.source in stuck)
        seen.append((number, edge.why))
        number = edge.source
    cycle = seen[[earlier for earlier, _ in seen].index(number) :]
    lines = [f"{describe(program, nodes[each])} {why}" for each, why in cycle]
    what = f"{program.file}: deadlock: {len(cycle)} steps wait for each other, each for the next"
    return ScheduleError(what, *lines, f"{describe(program, nodes[cycle[0][0]])}, the first")
