"""An algorithm as MSCCL's XML describes it: thread blocks of steps on every GPU.

A thread block does its steps in order, with one peer to send to and one to receive from on one
channel; what it sends arrives in order. A step may wait for a step of another thread block of its
GPU (`depid`, `deps`), which has to say that others wait for it (`hasdep`). Chunks of a step are
consecutive; `nchunksperloop` of them make up the larger of the collective's buffers.

Source:
    microsoft/msccl-tools (what writes the format), Azure/msccl-executor-nccl
    `src/misc/msccl/msccl_parser.cc` and microsoft/msccl `msccl_interpreter.h` (what runs it).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

COLLECTIVES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
}
PROTOCOLS = ("Simple", "LL", "LL128")
BUFFERS = {"i": "input", "o": "output", "s": "scratch"}


class Kind(NamedTuple):
    """The actions of a type of step, in this order.

    Attributes:
        receives: Takes the next message of its thread block's peer.
        reads: Reads `srcbuf`.
        reduces: Adds what it reads to what it received, or to what it writes.
        writes: Writes `dstbuf`.
        sends: Sends the result on.
    """

    receives: bool
    reads: bool
    reduces: bool
    writes: bool
    sends: bool


KINDS = {
    "s": Kind(False, True, False, False, True),
    "r": Kind(True, False, False, True, False),
    "rcs": Kind(True, False, False, True, True),
    "rrs": Kind(True, True, True, False, True),
    "rrc": Kind(True, True, True, True, False),
    "rrcs": Kind(True, True, True, True, True),
    "cpy": Kind(False, True, False, True, False),
    "re": Kind(False, True, True, True, False),
    "nop": Kind(False, False, False, False, False),
}


@dataclass(frozen=True, slots=True)
class BlockStep:
    """One step of a thread block.

    Attributes:
        number: Its position, from 0.
        type: A key of `KINDS`.
        src: (buffer, first chunk) that it reads, if its kind does.
        dst: (buffer, first chunk) that it writes, if its kind does.
        count: Chunks that it moves.
        depends_on: (thread block, step) that it waits for, or None.
        signals: Whether others may wait for it.
        line: Where it stands in the file; 0 where it stands in none.
    """

    number: int
    type: str
    src: tuple[str, int]
    dst: tuple[str, int]
    count: int
    depends_on: tuple[int, int] | None = None
    signals: bool = False
    line: int = 0

    @property
    def kind(self) -> Kind:
        """The kind of the step."""
        return KINDS[self.type]


@dataclass(frozen=True, slots=True)
class ThreadBlock:
    """Steps that are done in order.

    Attributes:
        number: Its id on its GPU.
        send: GPU to which it sends, or -1.
        recv: GPU from which it receives, or -1.
        channel: The channel of both.
        steps: Its steps.
        line: Where it begins in the file.
    """

    number: int
    send: int
    recv: int
    channel: int
    steps: tuple[BlockStep, ...]
    line: int = 0


@dataclass(frozen=True, slots=True)
class Gpu:
    """The thread blocks of one rank.

    Attributes:
        rank: The rank.
        num_scratch: Chunks of its scratch buffer.
        blocks: Its thread blocks, by number.
    """

    rank: int
    num_scratch: int
    blocks: tuple[ThreadBlock, ...]


@dataclass(frozen=True)
class MscclProgram:
    """A whole algorithm.

    Attributes:
        file: Where it was read, for messages.
        name: As the file calls it.
        collective: What it computes, in simrank's words.
        protocol: How it puts bytes on a link.
        num_channels: Channels that it opens.
        num_chunks: Chunks of the larger of the collective's buffers.
        in_place: Whether input and output are one buffer (or one lies in the other).
        gpus: What each rank does, by rank.
    """

    file: str
    name: str
    collective: str
    protocol: str
    num_channels: int
    num_chunks: int
    in_place: bool
    gpus: tuple[Gpu, ...]

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.gpus)

    @property
    def per_rank(self) -> int:
        """Chunks that belong to one rank where each has its own."""
        return self.num_chunks // self.world_size

    @cached_property
    def num_inputs(self) -> int:
        """Chunks of each rank's input."""
        return self.per_rank if self.collective == "all_gather" else self.num_chunks

    @cached_property
    def num_outputs(self) -> int:
        """Chunks of each rank's output."""
        return self.per_rank if self.collective == "reduce_scatter" else self.num_chunks

    def place(self, rank: int, chunk: tuple[str, int]) -> tuple[str, int]:
        """Return the place of a chunk; in place, input and output chunks can coincide.

        Args:
            rank: On whose GPU.
            chunk: (buffer, number); `i` and `o` become one of them in place.
        """
        buffer, number = chunk
        if not self.in_place or buffer == "s":
            return chunk
        if self.collective == "all_gather":
            return "o", number + (rank * self.per_rank if buffer == "i" else 0)
        if self.collective == "reduce_scatter":
            return "i", number + (rank * self.per_rank if buffer == "o" else 0)
        return "o", number
