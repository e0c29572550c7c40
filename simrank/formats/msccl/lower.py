"""Lowering of MSCCL programs to rounds: a lane per thread block and per waiting message.

Steps that have equally many others before them share a level, and a level is up to four rounds:

1. Steps that depend on others take over the clock of those others' lanes.
2. Messages are received: a local step brings what arrived to where it belongs, and the clock at
   which it arrived to the lane of the thread block. Local copies and reductions are done too.
3. Messages are sent, to a place in SCRATCH and a lane on the receiver, which are unused
   until the message has been received: the receiver may be doing something else.
4. Where a thread block goes on before a dependent step has taken over its clock, the
   clock is kept on a lane of its own.

So the times of a program are the longest paths through it. Messages on one level share links, as
steps of a round do; those of other levels do not, though they may be under way at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from simrank.collectives.schedule import Buffer, Op, Round

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from simrank.formats.msccl.order import ExecutionOrder, PlacedStep
    from simrank.formats.msccl.program import BlockStep, MscclProgram


class Rounds(NamedTuple):
    """The rounds of a program, for any size.

    Attributes:
        rounds: The rounds.
        num_lanes: Lanes per rank that they use.
        num_scratch: Chunks of SCRATCH that they use.
    """

    rounds: Sequence[Round]
    num_lanes: int
    num_scratch: int


class _Place(NamedTuple):
    """Chunks of one rank.

    Attributes:
        rank: The rank.
        buffer: Where they lie.
        chunk: The first of them.
    """

    rank: int
    buffer: Buffer
    chunk: int


@dataclass(slots=True)
class _Slot:
    """The place of a waiting message or clock.

    Attributes:
        lane: Its lane on its rank.
        chunk: Its first chunk of SCRATCH.
        free_from: The level from which on it may be used again.
    """

    lane: int
    chunk: int
    free_from: int


@dataclass(slots=True)
class _Steps:
    """The steps of a round under construction."""

    rows: list[tuple[int, ...]] = field(default_factory=list)

    def add(
        self,
        src: _Place,
        dst: _Place,
        count: int,
        *,
        lanes: tuple[int, int],
        operand: _Place | None = None,
    ) -> None:
        """Add a step: a reduction if it has an operand, else a copy."""
        op = Op.COPY if operand is None else Op.REDUCE
        held = dst if operand is None else operand
        ends = (src.rank, dst.rank, *src[1:], *dst[1:])
        self.rows.append((*ends, count, op, lanes[0], *held[1:], lanes[1]))

    def carry(self, rank: int, src_lane: int, dst_lane: int) -> None:
        """Add a step that moves nothing, and makes one lane wait for another."""
        here = _Place(rank, Buffer.INPUT, 0)
        self.add(here, here, 0, lanes=(src_lane, dst_lane))

    def round(self) -> Round:
        """Return the round."""
        columns = np.array(self.rows, dtype=np.int64).T.copy()
        operand_buffer, operand_chunk, dst_channel = columns[9:]
        common = Round(*columns[:9])
        return common._replace(
            operand_buffer=operand_buffer, operand_chunk=operand_chunk, dst_channel=dst_channel
        )


def lower(order: ExecutionOrder) -> Rounds:
    """Return the rounds of a program.

    Args:
        order: The program in an order in which its steps can run.
    """
    return _Lowering(order).rounds()


class _Lowering:
    """Makes rounds of one program.

    Args:
        order: The program in an order in which its steps can run.
    """

    def __init__(self, order: ExecutionOrder) -> None:
        self._order, self._program = order, order.program
        self._memory = _Memory(order.program, order.nodes)
        self._lanes = [len(gpu.blocks) for gpu in self._program.gpus]
        self._scratch = [self._memory.num_chunks] * self._program.world_size
        self._pools: dict[tuple[int, ...], list[_Slot]] = {}
        self._arrivals = self._message_slots()
        self._temporary: dict[tuple[int, int], int] = {}
        self._kept, self._carried = self._kept_clocks()

    def rounds(self) -> Rounds:
        """Return the rounds."""
        order = self._order
        by_level: dict[int, list[int]] = {}
        for number in order.sequence:
            by_level.setdefault(order.level[number], []).append(number)
        made = [self._memory.before()]
        for level in sorted(by_level):
            made += self._level(by_level[level])
        made.append(self._memory.after())
        rounds = [steps.round() for steps in made if steps.rows]
        return Rounds(rounds, max(self._lanes, default=1) or 1, max(self._scratch))

    def _level(self, numbers: Sequence[int]) -> Iterable[_Steps]:
        """Return the rounds of the steps on one level."""
        taken, received, sent, kept = (_Steps() for _ in range(4))
        for number in numbers:
            node = self._order.nodes[number]
            rank, lane = node.rank, node.block.number
            if number in self._carried:
                taken.carry(rank, self._carried[number], lane)
            self._receive(received, number, node)
            self._send(sent, number, node)
            if number in self._kept:
                kept.carry(rank, lane, self._kept[number])
        return taken, received, sent, kept

    def _receive(self, received: _Steps, number: int, node: PlacedStep) -> None:
        """Add the part of a step on its own GPU."""
        step, kind = node.step, node.step.kind
        lane = node.block.number
        if kind.receives:
            slot = self._arrivals[number]
            src, lanes = _Place(node.rank, Buffer.SCRATCH, slot.chunk), (slot.lane, lane)
            operand = self._memory.place(node.rank, step.src) if kind.reduces else None
            dst = self._result(node)
        elif kind.writes:
            src, lanes = self._memory.place(node.rank, step.src), (lane, lane)
            dst = self._memory.place(node.rank, step.dst)
            operand = dst if kind.reduces else None
        else:
            return
        received.add(src, dst, step.count, lanes=lanes, operand=operand)

    def _send(self, sent: _Steps, number: int, node: PlacedStep) -> None:
        """Add the message that a step sends."""
        if not node.step.kind.sends:
            return
        slot = self._arrivals[self._order.messages[number]]
        dst = _Place(node.block.send, Buffer.SCRATCH, slot.chunk)
        src = self._result(node)
        if not node.step.kind.receives:
            src = self._memory.place(node.rank, node.step.src)
        sent.add(src, dst, node.step.count, lanes=(node.block.number, slot.lane))

    def _result(self, node: PlacedStep) -> _Place:
        """Return the destination of a step's received data: `rrs` keeps it nowhere else."""
        if node.step.kind.writes:
            return self._memory.place(node.rank, node.step.dst)
        key = node.lane, node.step.count
        if key not in self._temporary:
            self._temporary[key] = self._take_scratch(node.rank, node.step.count)
        return _Place(node.rank, Buffer.SCRATCH, self._temporary[key])

    def _message_slots(self) -> dict[int, _Slot]:
        """Return the slot of each message, by the receiving node."""
        order, slots = self._order, {}
        by_sending = sorted(order.messages, key=lambda number: (order.level[number], number))
        for sender in by_sending:
            receiver = order.messages[sender]
            node = order.nodes[receiver]
            sent_at, received_at = order.level[sender], order.level[receiver]
            key = (node.rank, node.lane, node.step.count)
            slots[receiver] = self._slot(key, sent_at, received_at)
        return slots

    def _kept_clocks(self) -> tuple[dict[int, int], dict[int, int]]:
        """Return the slots of clocks, by ending node and by waiting node.

        A thread block that does nothing in between keeps its clock itself.
        """
        order = self._order
        waiting: dict[int, list[int]] = {}
        for later, earlier in order.signals.items():
            waiting.setdefault(earlier, []).append(later)
        kept, carried = {}, {}
        for earlier in sorted(waiting, key=lambda number: (order.level[number], number)):
            node, last = order.nodes[earlier], max(order.level[n] for n in waiting[earlier])
            is_last = node.step.number + 1 == len(node.block.steps)
            lane = node.block.number
            if not is_last and order.level[earlier + 1] < last:
                # Kept after sending on its level, and taken before anything on theirs.
                slot = self._slot((node.rank, node.lane), order.level[earlier], last)
                kept[earlier] = lane = slot.lane
            carried.update(dict.fromkeys(waiting[earlier], lane))
        return kept, carried

    def _slot(self, key: tuple[int, ...], begins: int, ends: int) -> _Slot:
        """Return a free slot of a pool; entries of one lane are in order of time.

        Args:
            key: Rank, sender, and for messages the number of chunks.
            begins: Level on which it is filled.
            ends: Level on which it is emptied last, before others are filled.
        """
        pool = self._pools.setdefault(key, [])
        slot = next((slot for slot in pool if slot.free_from <= begins), None)
        if slot is None:
            rank, count = key[0], key[2] if len(key) > 2 else 0
            slot = _Slot(self._lanes[rank], self._take_scratch(rank, count), 0)
            self._lanes[rank] += 1
            pool.append(slot)
        slot.free_from = ends
        return slot

    def _take_scratch(self, rank: int, count: int) -> int:
        first = self._scratch[rank]
        self._scratch[rank] += count
        return first


class _Memory:
    """The placement of a program's buffers.

    INPUT is the caller's and is never written: a program that works in place, or that writes its
    input, works on a copy. In place that copy is OUTPUT, where output is the larger one.

    Args:
        program: The program.
        nodes: Its steps.
    """

    def __init__(self, program: MscclProgram, nodes: Iterable[PlacedStep]) -> None:
        self._program = program
        self._num_scratch = max(gpu.num_scratch for gpu in program.gpus)
        steps = [node.step for node in nodes]
        writes_input = any(_writes_input(step) for step in steps)
        self._buffers = {"o": Buffer.OUTPUT, "i": Buffer.INPUT, "s": Buffer.SCRATCH}
        is_scattered = program.in_place and program.collective == "reduce_scatter"
        self._copies_in_scratch = is_scattered or (writes_input and not program.in_place)
        if self._copies_in_scratch:
            self._buffers["i"] = Buffer.SCRATCH

    @property
    def num_chunks(self) -> int:
        """Chunks of SCRATCH that the program's buffers take."""
        return self._num_scratch + self._copies_in_scratch * self._program.num_inputs

    def place(self, rank: int, chunk: tuple[str, int]) -> _Place:
        """Return the place of a chunk of the program."""
        name, number = self._program.place(rank, chunk)
        in_copy = name == "i" and self._copies_in_scratch
        return _Place(rank, self._buffers[name], number + in_copy * self._num_scratch)

    def before(self) -> _Steps:
        """Return the round that copies inputs to where the program works on them."""
        steps = _Steps()
        if self._program.in_place or self._copies_in_scratch:
            for rank in range(self._program.world_size):
                for number in range(self._program.num_inputs):
                    src = _Place(rank, Buffer.INPUT, number)
                    steps.add(src, self.place(rank, ("i", number)), 1, lanes=(0, 0))
        return steps

    def after(self) -> _Steps:
        """Return the round that copies outputs from where the program has left them."""
        steps = _Steps()
        if self._program.in_place and self._copies_in_scratch:
            for rank in range(self._program.world_size):
                for number in range(self._program.num_outputs):
                    dst = _Place(rank, Buffer.OUTPUT, number)
                    steps.add(self.place(rank, ("o", number)), dst, 1, lanes=(0, 0))
        return steps


def _writes_input(step: BlockStep) -> bool:
    return step.kind.writes and step.dst[0] == "i"
