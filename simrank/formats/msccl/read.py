"""Reader of MSCCL's XML; errors are ConfigErrors with the line."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from simrank.config.files import read_user_file
from simrank.config.xml_source import XmlElement, parse_xml
from simrank.formats.msccl.program import (
    BUFFERS,
    COLLECTIVES,
    KINDS,
    PROTOCOLS,
    BlockStep,
    Gpu,
    MscclProgram,
    ThreadBlock,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MAX_CHUNKS = 1 << 16  # Assumed: more are steps of a few bytes, and memory for nothing.
MAX_CHANNELS = 64  # NCCL 2.30 src/include/device.h, MAXCHANNELS.
_PARENTS = {"algo": ("",), "gpu": ("algo",), "tb": ("gpu",), "step": ("tb",)}


def read_msccl(path: str | Path) -> MscclProgram:
    """Read an algorithm from an XML file.

    Raises:
        ConfigError: The file cannot be read, or is no algorithm that simrank knows how to run.
    """
    return parse_msccl(read_user_file(path), str(path))


def parse_msccl(data: bytes, file: str = "<string>") -> MscclProgram:
    """Read an algorithm from the content of an XML file.

    Args:
        data: The content.
        file: Its name, for messages.

    Raises:
        ConfigError: As `read_msccl`.
    """
    return _program(parse_xml(data, file, _PARENTS))


def _program(root: XmlElement) -> MscclProgram:
    collective = COLLECTIVES[root.word("coll", COLLECTIVES)]
    num_chunks = root.number("nchunksperloop", 1, MAX_CHUNKS)
    world_size = root.number("ngpus", 1, MAX_CHUNKS)
    if len(root.children) != world_size:
        root.fail("ngpus", f"{len(root.children)}, the number of <gpu>", str(world_size))
    if collective != "all_reduce" and num_chunks % world_size:
        root.fail("nchunksperloop", f"a multiple of ngpus {world_size}", str(num_chunks))
    num_channels = root.number("nchannels", 1, MAX_CHANNELS, default=MAX_CHANNELS)
    draft = MscclProgram(
        file=root.file,
        name=root.attributes.get("name", "unnamed"),
        collective=collective,
        protocol=root.word("proto", PROTOCOLS, "Simple"),
        num_channels=num_channels,
        num_chunks=num_chunks,
        in_place=bool(root.number("inplace", 0, 1, default=0)),
        gpus=tuple(Gpu(rank, 0, ()) for rank in range(world_size)),
    )
    gpus = tuple(_gpu(node, draft, rank) for rank, node in enumerate(_by_id(root)))
    if "nchannels" not in root.attributes:
        used = (block.channel for gpu in gpus for block in gpu.blocks)
        num_channels = max(used, default=0) + 1
    return replace(draft, gpus=gpus, num_channels=num_channels)


def _by_id(parent: XmlElement) -> Sequence[XmlElement]:
    """Return the elements in an element by their ids, which are 0, 1, 2, ... in any order."""
    found: dict[int, XmlElement] = {}
    last = len(parent.children) - 1
    for node in parent.children:
        number = node.number("id", 0, last)
        if number in found:
            node.fail("id", "an id of its own", f"{number}, as in line {found[number].line}")
        found[number] = node
    return [found[number] for number in range(last + 1)]


def _gpu(node: XmlElement, program: MscclProgram, rank: int) -> Gpu:
    # In place, a file may count the chunks of the one buffer and give 0 for the other.
    limits = {"i": program.num_inputs, "o": program.num_outputs}
    for buffer, limit in limits.items():
        node.number(f"{buffer}_chunks", 0, limit)
    limits["s"] = node.number("s_chunks", 0, MAX_CHUNKS)
    nodes = _by_id(node)
    blocks = tuple(_block(each, program, (rank, number)) for number, each in enumerate(nodes))
    for end in ("send", "recv"):
        _check_peers(nodes, blocks, end)
    sizes = [len(block.steps) for block in blocks]
    for each, block in zip(nodes, blocks, strict=True):
        for inner, step in zip(each.children, block.steps, strict=True):
            _check_step(inner, block, step, limits)
            _check_dependence(inner, step, sizes)
    return Gpu(rank, limits["s"], blocks)


def _check_peers(nodes: Sequence[XmlElement], blocks: Sequence[ThreadBlock], end: str) -> None:
    """Refuse two thread blocks at the same end of one connection: they would share messages."""
    seen: dict[tuple[int, int], int] = {}
    for node, block in zip(nodes, blocks, strict=True):
        peer = getattr(block, end)
        if peer < 0:
            continue
        other = seen.setdefault((peer, block.channel), block.number)
        if other != block.number:
            got = f"{peer} on channel {block.channel}, as thread block {other} has"
            node.fail(end, "a peer and channel of its own", got)


def _block(node: XmlElement, program: MscclProgram, place: tuple[int, int]) -> ThreadBlock:
    rank, number = place
    send, recv = (node.number(key, -1, program.world_size - 1) for key in ("send", "recv"))
    for key, peer in (("send", send), ("recv", recv)):
        if peer == rank:
            node.fail(key, "another gpu", f"{peer}, its own")
    channel = node.number("chan", 0, program.num_channels - 1)
    steps = tuple(_step(each, position) for position, each in enumerate(node.children))
    return ThreadBlock(number, send, recv, channel, steps, node.line)


def _step(node: XmlElement, position: int) -> BlockStep:
    number = node.number("s", 0, MAX_CHUNKS)
    if number != position:
        node.fail("s", f"{position}, its position in the thread block", str(number))
    name = node.word("type", KINDS)
    ends = [
        (node.word(f"{end}buf", BUFFERS), node.number(f"{end}off", -1, MAX_CHUNKS))
        for end in ("src", "dst")
    ]
    depends_on = node.number("depid", -1, MAX_CHUNKS), node.number("deps", -1, MAX_CHUNKS)
    return BlockStep(
        number=number,
        type=name,
        src=ends[0],
        dst=ends[1],
        count=node.number("cnt", 0 if name == "nop" else 1, MAX_CHUNKS),
        depends_on=None if depends_on[0] < 0 else depends_on,
        signals=bool(node.number("hasdep", 0, 1)),
        line=node.line,
    )


def _check_step(
    node: XmlElement, block: ThreadBlock, step: BlockStep, limits: dict[str, int]
) -> None:
    """Refuse a step that leaves its buffers, or has no peer."""
    kind = step.kind
    for is_used, end, (buffer, first) in (
        (kind.reads, "src", step.src),
        (kind.writes, "dst", step.dst),
    ):
        if is_used and not 0 <= first <= limits[buffer] - step.count:
            expected = f"chunks of the {limits[buffer]} of the {BUFFERS[buffer]} buffer"
            got = f"chunk {first}" if step.count == 1 else f"{step.count} chunks from {first}"
            node.fail(f"{end}off", expected, got)
    for is_used, peer, end in (
        (kind.sends, block.send, "send"),
        (kind.receives, block.recv, "recv"),
    ):
        if is_used and peer < 0:
            expected = f"no `{step.type}` in a thread block without `{end}`"
            node.fail("type", expected, step.type)


def _check_dependence(node: XmlElement, step: BlockStep, sizes: Sequence[int]) -> None:
    """Refuse a step that waits for one that does not exist."""
    if step.depends_on is None:
        return
    block, number = step.depends_on
    if block >= len(sizes):
        node.fail("depid", f"one of {len(sizes)} thread blocks", str(block))
    if not 0 <= number < sizes[block]:
        node.fail("deps", f"one of the {sizes[block]} steps of thread block {block}", str(number))
