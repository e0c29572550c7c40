"""Reads MSCCL's XML; whatever is wrong with a file is a ConfigError with its line."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn
from xml.parsers import expat

from simrank.collectives.msccl.program import (
    BUFFERS,
    COLLECTIVES,
    KINDS,
    PROTOCOLS,
    Gpu,
    Program,
    Step,
    ThreadBlock,
)
from simrank.errors import ConfigError, ConfigProblem

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MAX_CHUNKS = 1 << 16  # Assumed: more are steps of a few bytes, and memory for nothing.
MAX_CHANNELS = 64  # NCCL 2.30 src/include/device.h, MAXCHANNELS.
_PARENTS = {"algo": "", "gpu": "algo", "tb": "gpu", "step": "tb"}


def read_msccl(path: str | Path) -> Program:
    """Read an algorithm from an XML file.

    Raises:
        ConfigError: The file cannot be read, or is no algorithm that simrank knows how to run.
    """
    file = str(path)
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        expected, got = "a file that can be read", str(error.strerror or error)
        raise ConfigError(ConfigProblem(file, None, "", expected, got)) from None
    return parse_msccl(data, file)


def parse_msccl(data: bytes, file: str = "<string>") -> Program:
    """Read an algorithm from the content of an XML file.

    Args:
        data: The content.
        file: Its name, for messages.

    Raises:
        ConfigError: As `read_msccl`.
    """
    return _program(_Tree(file).parse(data))


@dataclass(slots=True)
class _Node:
    """An element of the file.

    Attributes:
        file: For messages.
        name: Its tag.
        line: Where it begins.
        path: Who it is in messages, for example `gpu[1].tb[0]`.
        attributes: As written.
        children: Elements in it, in order.
    """

    file: str
    name: str
    line: int
    path: str
    attributes: dict[str, str]
    children: list[_Node] = field(default_factory=list)

    def fail(self, key: str, expected: str, got: str) -> NoReturn:
        """Raise ConfigError for one of its attributes, or for itself where `key` is empty."""
        path = ".".join(part for part in (self.path, key) if part)
        raise ConfigError(ConfigProblem(self.file, self.line, path, expected, got))

    def word(self, key: str, choices: Iterable[str], default: str | None = None) -> str:
        """Return an attribute that is one of some words."""
        text = self.attributes.get(key, default)
        if text is None or text not in choices:
            self.fail(key, f"one of {', '.join(choices)}", "nothing" if text is None else text)
        return text

    def number(self, key: str, lowest: int, highest: int, default: int | None = None) -> int:
        """Return an attribute that is a whole number between two others."""
        text = self.attributes.get(key, None if default is None else str(default))
        digits = (text or "").removeprefix("-")
        is_number = digits.isascii() and digits.isdecimal() and len(digits) < 10
        if text is None or not is_number or not lowest <= int(text) <= highest:
            expected = f"a whole number from {lowest} to {highest}"
            self.fail(key, expected, "nothing" if text is None else text)
        return int(text)


class _Tree:
    """Makes a tree of elements with lines of an XML file.

    Args:
        file: Its name, for messages.
    """

    def __init__(self, file: str) -> None:
        self._file = file
        self._open: list[_Node] = []
        self._root: _Node | None = None
        self._parser = expat.ParserCreate()
        self._parser.StartElementHandler = self._begin
        self._parser.EndElementHandler = self._end
        self._parser.StartDoctypeDeclHandler = self._refuse_doctype

    def parse(self, data: bytes) -> _Node:
        """Return the root element."""
        try:
            self._parser.Parse(data, True)
        except expat.ExpatError as error:
            self._fail(error.lineno, "", "valid XML", expat.ErrorString(error.code))
        except (LookupError, ValueError) as error:  # Encodings that are unknown or not one's own.
            self._fail(1, "", "XML in UTF-8", str(error))
        assert self._root is not None, "expat refuses a file without an element"
        return self._root

    def _begin(self, name: str, attributes: dict[str, str]) -> None:
        line = self._parser.CurrentLineNumber
        parent = self._open[-1] if self._open else None
        if _PARENTS.get(name) != (parent.name if parent else ""):
            inside = f"in <{parent.name}> " if parent else ""
            children = [child for child, over in _PARENTS.items() if parent and over == parent.name]
            names = f"<{(children or ['algo'])[0]}>" if children or not parent else "no element"
            self._fail(line, parent.path if parent else "", f"{inside}{names}", f"<{name}>")
        path = ""
        if parent:
            own = f"{name}[{len(parent.children)}]"
            path = f"{parent.path}.{own}" if parent.path else own
        node = _Node(self._file, name, line, path, attributes)
        if parent:
            parent.children.append(node)
        else:
            self._root = node
        self._open.append(node)

    def _end(self, name: str) -> None:
        del name
        self._open.pop()

    def _refuse_doctype(self, *_: object) -> None:
        line = self._parser.CurrentLineNumber
        self._fail(line, "", "an algorithm without a document type", "<!DOCTYPE")

    def _fail(self, line: int, path: str, expected: str, got: str) -> NoReturn:
        raise ConfigError(ConfigProblem(self._file, line, path, expected, got)) from None


def _program(root: _Node) -> Program:
    collective = COLLECTIVES[root.word("coll", COLLECTIVES)]
    num_chunks = root.number("nchunksperloop", 1, MAX_CHUNKS)
    world_size = root.number("ngpus", 1, MAX_CHUNKS)
    if len(root.children) != world_size:
        root.fail("ngpus", f"{len(root.children)}, the number of <gpu>", str(world_size))
    if collective != "all_reduce" and num_chunks % world_size:
        root.fail("nchunksperloop", f"a multiple of ngpus {world_size}", str(num_chunks))
    num_channels = root.number("nchannels", 1, MAX_CHANNELS, default=MAX_CHANNELS)
    draft = Program(
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


def _by_id(parent: _Node) -> Sequence[_Node]:
    """Return the elements in an element by their ids, which are 0, 1, 2, ... in any order."""
    found: dict[int, _Node] = {}
    last = len(parent.children) - 1
    for node in parent.children:
        number = node.number("id", 0, last)
        if number in found:
            node.fail("id", "an id of its own", f"{number}, as in line {found[number].line}")
        found[number] = node
    return [found[number] for number in range(last + 1)]


def _gpu(node: _Node, program: Program, rank: int) -> Gpu:
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


def _check_peers(nodes: Sequence[_Node], blocks: Sequence[ThreadBlock], end: str) -> None:
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


def _block(node: _Node, program: Program, place: tuple[int, int]) -> ThreadBlock:
    rank, number = place
    send, recv = (node.number(key, -1, program.world_size - 1) for key in ("send", "recv"))
    for key, peer in (("send", send), ("recv", recv)):
        if peer == rank:
            node.fail(key, "another gpu", f"{peer}, its own")
    channel = node.number("chan", 0, program.num_channels - 1)
    steps = tuple(_step(each, position) for position, each in enumerate(node.children))
    return ThreadBlock(number, send, recv, channel, steps, node.line)


def _step(node: _Node, position: int) -> Step:
    number = node.number("s", 0, MAX_CHUNKS)
    if number != position:
        node.fail("s", f"{position}, its position in the thread block", str(number))
    name = node.word("type", KINDS)
    ends = [
        (node.word(f"{end}buf", BUFFERS), node.number(f"{end}off", -1, MAX_CHUNKS))
        for end in ("src", "dst")
    ]
    depends_on = node.number("depid", -1, MAX_CHUNKS), node.number("deps", -1, MAX_CHUNKS)
    return Step(
        number=number,
        type=name,
        src=ends[0],
        dst=ends[1],
        count=node.number("cnt", 0 if name == "nop" else 1, MAX_CHUNKS),
        depends_on=None if depends_on[0] < 0 else depends_on,
        signals=bool(node.number("hasdep", 0, 1)),
        line=node.line,
    )


def _check_step(node: _Node, block: ThreadBlock, step: Step, limits: dict[str, int]) -> None:
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


def _check_dependence(node: _Node, step: Step, sizes: Sequence[int]) -> None:
    """Refuse a step that waits for one that does not exist."""
    if step.depends_on is None:
        return
    block, number = step.depends_on
    if block >= len(sizes):
        node.fail("depid", f"one of {len(sizes)} thread blocks", str(block))
    if not 0 <= number < sizes[block]:
        node.fail("deps", f"one of the {sizes[block]} steps of thread block {block}", str(number))
