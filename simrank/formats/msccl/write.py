"""Writes a schedule as an MSCCL program, and a program as XML.

Each rank has a thread block for every peer that it sends to and every peer that it receives from,
per channel, and one for what it does alone. What rounds keep in order, dependences do here: a step
waits for the last step of each other thread block of its GPU that touched the same chunks, unless
one that it waits for has done so already. What only lanes keep in order is left open: the rounds of
a pairwise exchange touch different chunks, and may be done at once.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from xml.sax.saxutils import quoteattr

from simrank.collectives.schedule import Op
from simrank.errors import UnsupportedError
from simrank.formats.msccl.program import COLLECTIVES, BlockStep, Gpu, MscclProgram, ThreadBlock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simrank.collectives.problem import Problem
    from simrank.collectives.schedule import Round, Schedule

_LETTERS = "ios"  # In the order of `Buffer`.
_NOWHERE = (("i", -1), ("o", -1))  # What a nop names.


def program_of(schedule: Schedule, problem: Problem) -> MscclProgram:
    """Return a schedule as a program.

    Raises:
        UnsupportedError: MSCCL cannot say it.
    """
    num_chunks = _num_chunks(schedule, problem)
    gpus = [_Gpu(rank) for rank in range(schedule.world_size)]
    for steps in schedule.rounds():
        if steps.fan is not None or steps.dst_channel is not None:
            raise _unsupported(schedule, "steps inside a switch, or between lanes")
        for row in _rows(steps):
            row.add(schedule, gpus)
    return MscclProgram(
        file=schedule.algorithm,
        name=f"{schedule.algorithm}_{schedule.collective}",
        collective=schedule.collective,
        protocol="Simple",
        num_channels=schedule.num_channels,
        num_chunks=num_chunks,
        in_place=False,
        gpus=tuple(gpu.done(schedule.scratch.num_chunks) for gpu in gpus),
    )


def xml_of(program: MscclProgram) -> str:
    """Return a program as XML."""
    names = {ours: theirs for theirs, ours in COLLECTIVES.items()}
    place = int(program.in_place)
    lines = [
        f'<algo name={quoteattr(program.name)} proto="{program.protocol}" '
        f'nchannels="{program.num_channels}" nchunksperloop="{program.num_chunks}" '
        f'ngpus="{program.world_size}" coll="{names[program.collective]}" inplace="{place}" '
        f'outofplace="{1 - place}" minBytes="0" maxBytes="9223372036854775807">'
    ]
    for gpu in program.gpus:
        lines.append(
            f'  <gpu id="{gpu.rank}" i_chunks="{program.num_inputs}" '
            f'o_chunks="{program.num_outputs}" s_chunks="{gpu.num_scratch}">'
        )
        for block in gpu.blocks:
            ends = f'send="{block.send}" recv="{block.recv}" chan="{block.channel}"'
            lines.append(f'    <tb id="{block.number}" {ends}>')
            lines += [_step_text(step) for step in block.steps]
            lines.append("    </tb>")
        lines.append("  </gpu>")
    return "\n".join([*lines, "</algo>", ""])


def _step_text(step: BlockStep) -> str:
    block, number = step.depends_on or (-1, -1)
    return (
        f'      <step s="{step.number}" type="{step.type}" srcbuf="{step.src[0]}" '
        f'srcoff="{step.src[1]}" dstbuf="{step.dst[0]}" dstoff="{step.dst[1]}" '
        f'cnt="{step.count}" depid="{block}" deps="{number}" hasdep="{int(step.signals)}"/>'
    )


def _num_chunks(schedule: Schedule, problem: Problem) -> int:
    """Return the chunks of the larger buffer, if all chunks are cut as MSCCL cuts them."""
    n, collective = schedule.world_size, schedule.collective
    if collective not in COLLECTIVES.values():
        raise _unsupported(schedule, "a collective with a root")
    if problem.splits is not None or schedule.input.size.ndim > 1:
        raise _unsupported(schedule, "uneven blocks")
    counts = schedule.input.num_chunks, schedule.output.num_chunks
    scale = {"all_gather": (n, 1), "reduce_scatter": (1, n)}.get(collective, (1, 1))
    if counts[0] * scale[0] != counts[1] * scale[1]:
        raise _unsupported(schedule, "input and output in different chunks")
    return max(counts)


def _unsupported(schedule: Schedule, what: str) -> UnsupportedError:
    return UnsupportedError(
        f"{schedule.collective} {schedule.algorithm}: {what} cannot be said in MSCCL's XML"
    )


@dataclass(frozen=True, slots=True)
class _Row:
    """One step of a round.

    Attributes:
        ranks: The sender and the receiver.
        src, dst: (buffer, first chunk) on the one and the other.
        count: Chunks.
        channel: Its channel.
        operand: What is added to it, for a reduction.
    """

    ranks: tuple[int, int]
    src: tuple[str, int]
    dst: tuple[str, int]
    count: int
    channel: int
    operand: tuple[str, int] | None

    def add(self, schedule: Schedule, gpus: list[_Gpu]) -> None:
        """Add the step to the thread blocks of its ranks."""
        sender, receiver = (gpus[rank] for rank in self.ranks)
        if sender is not receiver:
            # A message also names the other end's buffer, which is never read.
            key = (self.ranks[1], -1, self.channel)
            sender.add(key, "s", self.src, self.dst, self.count)
            kind, first = ("r", self.src) if self.operand is None else ("rrc", self.operand)
            receiver.add((-1, self.ranks[0], self.channel), kind, first, self.dst, self.count)
            return
        if self.operand not in (None, self.dst):
            raise _unsupported(schedule, "a local sum that goes elsewhere")
        kind = "cpy" if self.operand is None else "re"
        sender.add((-1, -1, 0), kind, self.src, self.dst, self.count)


def _rows(steps: Round) -> Iterator[_Row]:
    """Yield the steps of a round; MSCCL has no words for one that moves nothing."""
    held = (steps.operand_buffer, steps.operand_chunk)
    operands = (held[0], held[1]) if held[0] is not None and held[1] is not None else None
    ends = zip(steps.src.tolist(), steps.dst.tolist(), strict=True)
    for index, ranks in enumerate(ends):
        if not steps.count[index]:
            continue
        src = _LETTERS[steps.src_buffer[index]], int(steps.src_chunk[index])
        dst = _LETTERS[steps.dst_buffer[index]], int(steps.dst_chunk[index])
        operand = None
        if steps.op[index] == Op.REDUCE:
            operand = dst
            if operands is not None:
                operand = _LETTERS[operands[0][index]], int(operands[1][index])
        count, channel = int(steps.count[index]), int(steps.channel[index])
        yield _Row(ranks, src, dst, count, channel, operand)


class _Gpu:
    """The thread blocks of one rank, while steps are added to them.

    Args:
        rank: The rank.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._blocks: dict[tuple[int, int, int], _Block] = {}
        self._writer: dict[tuple[str, int], tuple[int, int]] = {}
        self._readers: dict[tuple[str, int], dict[int, int]] = defaultdict(dict)

    def add(
        self,
        key: tuple[int, int, int],
        kind: str,
        src: tuple[str, int],
        dst: tuple[str, int],
        count: int,
    ) -> None:
        """Add a step to the thread block of a peer and channel, with its dependencies."""
        block = self._blocks.setdefault(key, _Block(len(self._blocks)))
        step = BlockStep(0, kind, src, dst, count)
        reads = [(src[0], src[1] + i) for i in range(count)] if step.kind.reads else []
        writes = [(dst[0], dst[1] + i) for i in range(count)] if step.kind.writes else []
        waits: dict[int, int] = {}
        for chunk in (*reads, *writes):
            if chunk in self._writer:
                _latest(waits, *self._writer[chunk])
        for chunk in writes:
            for other, number in self._readers.pop(chunk, {}).items():
                _latest(waits, other, number)
        number = block.add(step, self._unknown(block, waits))
        for chunk in writes:
            self._writer[chunk] = block.number, number
        for chunk in reads:
            self._readers[chunk][block.number] = number

    def _unknown(self, block: _Block, waits: dict[int, int]) -> list[tuple[int, int]]:
        """Return the dependencies that a thread block still has to wait for; they signal."""
        by_number = list(self._blocks.values())
        found = []
        for other, number in sorted(waits.items()):
            if other != block.number and block.known.get(other, -1) < number:
                by_number[other].steps[number] = replace(
                    by_number[other].steps[number], signals=True
                )
                found.append((other, number))
        for other, number in found:
            _latest(block.known, other, number)
            for further, known in by_number[other].knew[number].items():
                _latest(block.known, further, known)
        return found

    def done(self, num_scratch: int) -> Gpu:
        """Return the rank's GPU of the program."""
        blocks = [
            ThreadBlock(block.number, *key, tuple(block.steps))
            for key, block in self._blocks.items()
        ]
        return Gpu(self._rank, num_scratch, tuple(blocks))


@dataclass(slots=True)
class _Block:
    """A thread block.

    Attributes:
        number: Its id.
        steps: Its steps.
        known: For each other thread block the last step that is known to be done.
        knew: What was known after each step.
    """

    number: int
    steps: list[BlockStep] = field(default_factory=list)
    known: dict[int, int] = field(default_factory=dict)
    knew: list[dict[int, int]] = field(default_factory=list)

    def add(self, step: BlockStep, waits: list[tuple[int, int]]) -> int:
        """Add a step with dependencies, and return its number; extra dependencies become nops."""
        for wait in waits[:-1]:
            self._append(BlockStep(0, "nop", *_NOWHERE, 0, wait))
        return self._append(replace(step, depends_on=waits[-1] if waits else None))

    def _append(self, step: BlockStep) -> int:
        number = len(self.steps)
        self.steps.append(replace(step, number=number))
        self.knew.append(dict(self.known))
        return number


def _latest(steps: dict[int, int], block: int, number: int) -> None:
    """Note a step of a thread block, unless a later one is noted."""
    steps[block] = max(number, steps.get(block, -1))
