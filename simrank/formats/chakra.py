"""Chakra's execution traces (MLCommons): a file per rank, in JSON or protobuf.

Start with `chakra_trace`, which makes one trace of the nodes of all ranks; `read_text` and
`read_wire` read the two forms.
"""

from __future__ import annotations

import math
import struct
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from simrank import units
from simrank.config.json_parts import JsonPart, read_parts
from simrank.errors import ConfigError, ConfigProblem
from simrank.formats.operations import (
    CALC,
    COLLECTIVE,
    RECV,
    SEND,
    Progress,
    Trace,
    TraceNode,
    in_cycle,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


# ---- nodes of Chakra traces, under the names of their schema ----

VERSION = "0.0.4"
TYPES = (
    "INVALID_NODE",
    "METADATA_NODE",
    "MEM_LOAD_NODE",
    "MEM_STORE_NODE",
    "COMP_NODE",
    "COMM_SEND_NODE",
    "COMM_RECV_NODE",
    "COMM_COLL_NODE",
)
COLLECTIVES = (
    "ALL_REDUCE",
    "REDUCE",
    "ALL_GATHER",
    "GATHER",
    "SCATTER",
    "BROADCAST",
    "ALL_TO_ALL",
    "REDUCE_SCATTER",
    "REDUCE_SCATTER_BLOCK",
    "BARRIER",
)
Value = int | float | bool | str | bytes | None


@dataclass(frozen=True, slots=True)
class RawNode:
    """A node as it stands in a file.

    Attributes:
        file: For messages.
        line: Where it begins; None in a binary file.
        id: Its number, which others name.
        name: What it is called.
        type: One of `TYPES`.
        deps: The numbers of nodes that it waits for, by control or data.
        duration_us: How long it took; 0: the trace does not say.
        attributes: Its further attributes; a list is None.
    """

    file: str
    line: int | None
    id: int
    name: str
    type: str
    deps: tuple[int, ...]
    duration_us: int
    attributes: dict[str, Value]

    def error(self, key: str, expected: str, got: str) -> ConfigError:
        """Return the error for something in it."""
        where = f"node {self.id}.{key}" if key else f"node {self.id}"
        return ConfigError(ConfigProblem(self.file, self.line, where, expected, got))

    def whole(self, key: str, least: int, most: int, default: int | None = None) -> int:
        """Return an attribute that is a whole number within bounds."""
        value = self.attributes.get(key, default)
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
            value = int(value)  # As some tools write them.
        if type(value) is not int or not least <= value <= most:
            got = "nothing" if value is None else repr(value)
            raise self.error(key, f"a whole number from {least} to {most}", got)
        return value


def check_version(version: str, schema: str, file: str, line: int | None) -> None:
    """Raise for an unknown version of the schema.

    Args:
        version: Of the global metadata.
        schema: Its attribute of that name, as PyTorch's converter writes it: it ends in a version.
        file: For messages.
        line: Where the metadata stand.

    Raises:
        ConfigError: It is another one than `VERSION`.
    """
    said = version or schema.rpartition("chakra.")[2]
    if said != VERSION:
        expected = f"Chakra's schema {VERSION}"
        raise ConfigError(ConfigProblem(file, line, "version", expected, said or "nothing"))


# ---- Chakra's traces of all ranks as one trace; start with `chakra_trace` ----

_MAX_BYTES = 1 << 50  # Assumed: larger messages are a mistake.
_MAX_OPS = 1 << 62
_MAX_US = 10**12  # Assumed: eleven days.
_MAX_TAG = 2**31 - 1
_PLAYED = {
    "ALL_REDUCE": "all_reduce",
    "ALL_GATHER": "all_gather",
    "REDUCE_SCATTER": "reduce_scatter",
    "ALL_TO_ALL": "all_to_all",
    "BROADCAST": "broadcast",
    "BARRIER": "barrier",
}
COMPUTE, MEMORY = 0, 1  # Streams.


def chakra_trace(
    ranks: Sequence[Sequence[RawNode]], groups: Mapping[str, tuple[int, ...]], file: str
) -> Trace:
    """Return the trace that the files of all ranks are together.

    Args:
        ranks: Of each rank the nodes of its file.
        groups: Ranks of process groups, by their names.
        file: What the trace is called.

    Raises:
        ConfigError: A node is wrong, or waits for one that is not there, or for itself.
    """
    known = {**_named(ranks), **groups}
    return Trace(
        file, tuple(_rank(rank, raws, known, len(ranks)) for rank, raws in enumerate(ranks))
    )


def _named(ranks: Sequence[Sequence[RawNode]]) -> dict[str, tuple[int, ...]]:
    """Return the naming nodes of each process group."""
    found: dict[str, list[int]] = defaultdict(list)
    for rank, raws in enumerate(ranks):
        for name in dict.fromkeys(_group_name(raw) for raw in raws if raw.type == "COMM_COLL_NODE"):
            found[name].append(rank)
    found[""] = list(range(len(ranks)))
    return {name: tuple(members) for name, members in found.items()}


def _group_name(raw: RawNode) -> str:
    name = raw.attributes.get("pg_name", "")
    if not isinstance(name, str):
        raise raw.error("pg_name", "a text", repr(name))
    return name


def _rank(
    rank: int, raws: Sequence[RawNode], groups: Mapping[str, tuple[int, ...]], num_ranks: int
) -> tuple[TraceNode, ...]:
    places: dict[int, int] = {}
    for place, raw in enumerate(raws):
        if raw.id in places:
            raise raw.error("id", "a number of its own", str(raw.id))
        places[raw.id] = place
    nodes = []
    for raw in raws:
        missing = [dep for dep in raw.deps if dep not in places]
        if missing:
            raise raw.error("deps", "numbers of nodes of the file", str(missing[0]))
        requires = tuple(dict.fromkeys(places[dep] for dep in raw.deps))
        nodes.append(replace(_node(raw, rank, groups, num_ranks), requires=requires))
    stuck = in_cycle(nodes)
    if stuck is not None:
        raw = raws[nodes.index(stuck)]
        raise raw.error("", "an order in which nodes can run", "a cycle")
    return _issued_in_order(nodes)


def _node(
    raw: RawNode, rank: int, groups: Mapping[str, tuple[int, ...]], num_ranks: int
) -> TraceNode:
    """Return a node without its dependencies."""
    where = Path(raw.file).name
    place = f"{where}, node {raw.id}" if raw.line is None else f"{where}:{raw.line}"
    label = raw.name or f"node {raw.id}"
    if raw.type in ("COMM_SEND_NODE", "COMM_RECV_NODE"):
        is_send = raw.type == "COMM_SEND_NODE"
        key = "comm_dst" if is_send else "comm_src"
        peer = raw.whole(key, 0, num_ranks - 1)
        if peer == rank:
            raise raw.error(key, "another rank", f"{peer}, its own")
        return TraceNode(
            label,
            SEND if is_send else RECV,
            place,
            size_bytes=raw.whole("comm_size", 0, _MAX_BYTES),
            peer=peer,
            tag=raw.whole("comm_tag", 0, _MAX_TAG, default=0),
        )
    if raw.type == "COMM_COLL_NODE":
        return TraceNode(label, COLLECTIVE, place, **_collective(raw, rank, groups))
    if not 0 <= raw.duration_us <= _MAX_US:
        raise raw.error("duration_micros", f"microseconds up to {_MAX_US}", str(raw.duration_us))
    is_memory = raw.type.startswith("MEM_")
    return TraceNode(
        label,
        CALC,
        place,
        duration_ps=raw.duration_us * units.PS_PER_US,
        stream=MEMORY if is_memory else COMPUTE,
        num_ops=raw.whole("num_ops", 0, _MAX_OPS, default=0),
        size_bytes=raw.whole("tensor_size", 0, _MAX_BYTES, default=0),
    )


def _collective(raw: RawNode, rank: int, groups: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    kind = raw.attributes.get("comm_type", 0)
    if type(kind) is int and 0 <= kind < len(COLLECTIVES):
        kind = COLLECTIVES[kind]
    if kind not in _PLAYED:
        raise raw.error("comm_type", f"one of {', '.join(_PLAYED)}", repr(kind))
    group = groups[_group_name(raw)]
    if rank not in group:
        raise raw.error("pg_name", f"a group with rank {rank}", f"one of {group}")
    size = raw.whole("comm_size", 0, _MAX_BYTES, default=0 if kind == "BARRIER" else None)
    return {"collective": _PLAYED[str(kind)], "group": group, "size_bytes": size}


def _issued_in_order(nodes: list[TraceNode]) -> tuple[TraceNode, ...]:
    """Make each collective of a group depend on the previous one."""
    progress, last = Progress(nodes), dict[tuple[int, ...], int]()
    while begun := list(progress.begun()):
        for number in begun:
            node = nodes[number]
            if node.kind == COLLECTIVE:
                if node.group in last:
                    nodes[number] = replace(node, irequires=(last[node.group],))
                last[node.group] = number
            progress.end(number)
    return tuple(nodes)


# ---- Chakra's JSON form, as its jsonizer writes it: the metadata, then a node after the other ----

_MAX_INT = (1 << 64) - 1
_KINDS = ("int", "uint", "sint", "fixed", "sfixed")
_WHOLE = {f"{kind}{bits}val" for kind in _KINDS for bits in (32, 64)}
_PLAIN = {"doubleval": (int, float), "floatval": (int, float), "boolval": bool, "stringval": str}
_SPELLED = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}  # Of fractions.


def is_chakra_json(text: str) -> bool:
    """Return whether a text may be a trace in JSON."""
    return text.lstrip("\ufeff \t\r\n").startswith(("{", "["))


def read_text_form(text: str, file: str) -> list[RawNode]:
    """Read a trace of one rank from JSON.

    Raises:
        ConfigError: It is no such trace, or of another schema; with the line.
    """
    return list(_nodes(text, file))


def _nodes(text: str, file: str) -> Iterator[RawNode]:
    is_first = True
    for given in read_parts(text.removeprefix("\ufeff"), file):
        part = _plain(given)
        if is_first:
            _check(part)
        else:
            yield _text_node(part)
        is_first = False
    if is_first:
        raise JsonPart(file, 1, "", {}).error("", "Chakra's global metadata", "nothing")


def _plain(part: JsonPart) -> JsonPart:
    """Return an object with keys that are the same in both spellings of protobuf's JSON."""
    return part._replace(data={_key(key): value for key, value in part.data.items()})


def _key(key: str) -> str:
    return key.replace("_", "").lower()


def _check(part: JsonPart) -> None:
    schema = ""
    for each in part.parts("attr") if "attr" in part.data else []:
        name, value = _attribute(_plain(each))
        if name == "schema" and isinstance(value, str):
            schema = value
    version = part.text("version") if "version" in part.data else ""
    check_version(version, schema, part.file, part.line)


def _text_node(part: JsonPart) -> RawNode:
    kind = part.data.get("type", TYPES[0])
    if isinstance(kind, int) and 0 <= kind < len(TYPES):
        kind = TYPES[kind]
    if not isinstance(kind, str) or kind not in TYPES:
        raise part.error("type", f"one of {', '.join(TYPES)}")
    attributes = part.parts("attr") if "attr" in part.data else []
    return RawNode(
        file=part.file,
        line=part.line,
        id=_whole(part, "id"),
        name=part.text("name") if "name" in part.data else "",
        type=kind,
        deps=(*_wholes(part, "ctrldeps"), *_wholes(part, "datadeps")),
        duration_us=_whole(part, "durationmicros", shown="duration_micros"),
        attributes=dict(_attribute(_plain(each)) for each in attributes),
    )


def _attribute(part: JsonPart) -> tuple[str, Value]:
    """Return the name and the value of an attribute."""
    value: Value = None
    for key in part.data:
        if key in _WHOLE:
            value = _whole(part, key, least=-_MAX_INT)
        elif key in _PLAIN:
            found = part.data[key]
            if isinstance(found, str) and key in ("doubleval", "floatval"):
                found = _SPELLED.get(found, found)
            if not isinstance(found, _PLAIN[key]):  # type: ignore[arg-type]
                raise part.error(key, "a value of its type")
            value = found
    return part.text("name"), value


def _whole(part: JsonPart, key: str, least: int = 0, shown: str | None = None) -> int:
    """Return a number; `shown` is its key as files have it: names are compared without `_`."""
    return _as_whole(part, key if shown is None else shown, part.data.get(key, 0), least)


def _wholes(part: JsonPart, key: str) -> list[int]:
    values = part.data.get(key, [])
    if not isinstance(values, list):
        raise part.error(key, "a list of numbers")
    return [_as_whole(part, key, value, 0) for value in values]


def _as_whole(part: JsonPart, key: str, value: Any, least: int) -> int:  # noqa: ANN401 - JSON's
    if isinstance(value, str) and len(value) <= 20 and value.isascii():
        digits = value.removeprefix("-")
        value = int(value) if digits.isdigit() else value
    if type(value) is not int or not least <= value <= _MAX_INT:
        raise part.error(key, f"a whole number from {least}", repr(value))
    return value


# ---- Chakra's binary form: length-prefixed protobuf messages; start with `read_wire` ----

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED = {_FIXED64: 8, _FIXED32: 4}
_MAX_VARINT = 10  # Bytes of one.
# Of AttributeProto: how to read a value that is no list, by the number of its field.
_STRUCTS = {3: "<d", 5: "<f", 19: "<I", 21: "<Q", 23: "<i", 25: "<q"}
_SIGNED, _ZIGZAG = (7, 9), (15, 17)
_BOOL, _STRING = 27, 29


class _Field(NamedTuple):
    """A field of a message: number, encoding, value, position."""

    number: int
    kind: int
    value: int | bytes
    at: int


class _Reader:
    """Reader of a file; errors name the byte position."""

    def __init__(self, data: bytes, file: str) -> None:
        self._data = data
        self._file = file

    def nodes(self) -> Iterator[RawNode]:
        """Yield the nodes, which follow the global metadata."""
        at, is_first = 0, True
        while at < len(self._data):
            length, start = self._varint(at, len(self._data))
            at = start + length
            if at > len(self._data):
                self._fail(start, f"a message of {length} bytes", "the end of the file")
            fields = self._fields(start, at)
            if is_first:
                self._check(fields)
            else:
                yield self._node(fields, start)
            is_first = False
        if is_first:
            self._fail(0, "Chakra's global metadata", "an empty file")

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        """Return a number of variable length, and where it ends."""
        value = 0
        for position in range(at, min(at + _MAX_VARINT, end)):
            byte = self._data[position]
            value |= (byte & 0x7F) << 7 * (position - at)
            if byte < 0x80:
                return value & 0xFFFF_FFFF_FFFF_FFFF, position + 1
        return self._fail(at, "a number of protobuf", "one without an end")

    def _fields(self, at: int, end: int) -> Iterator[_Field]:
        """Yield the fields of a message."""
        while at < end:
            start = at
            key, at = self._varint(at, end)
            number, kind = key >> 3, key & 7
            value: int | bytes
            if kind == _VARINT:
                value, at = self._varint(at, end)
            elif kind == _BYTES or kind in _FIXED:
                size = _FIXED.get(kind)
                if size is None:
                    size, at = self._varint(at, end)
                if at + size > end:
                    self._fail(start, f"{size} bytes of field {number}", "the end of its message")
                value, at = self._data[at : at + size], at + size
            else:
                self._fail(start, "a field of protobuf 3", f"wire type {kind}")
            yield _Field(number, kind, value, at if kind == _VARINT else at - len(value))  # type: ignore[arg-type]

    def _number(self, field: _Field) -> int:
        if isinstance(field.value, bytes):
            self._fail(field.at, f"a number in field {field.number}", "bytes")
        return field.value

    def _text(self, field: _Field) -> str:
        if isinstance(field.value, bytes):
            try:
                return field.value.decode()
            except UnicodeDecodeError:
                self._fail(field.at, f"UTF-8 in field {field.number}", "other bytes")
        return self._fail(field.at, f"a text in field {field.number}", "a number")

    def _numbers(self, field: _Field) -> list[int]:
        """Return the numbers of a repeated field: packed, or one."""
        if not isinstance(field.value, bytes):
            return [field.value]
        found, at, end = [], field.at, field.at + len(field.value)
        while at < end:
            value, at = self._varint(at, end)
            found.append(value)
        return found

    def _check(self, fields: Iterator[_Field]) -> None:
        version = schema = ""
        for field in fields:
            if field.number == 1:
                version = self._text(field)
            elif field.number == 2:
                name, value = self._attribute(field)
                if name == "schema" and isinstance(value, str):
                    schema = value
        check_version(version, schema, self._file, None)

    def _node(self, fields: Iterator[_Field], at: int) -> RawNode:
        number = kind = duration = 0
        name, deps, attributes = "", [], {}
        for field in fields:
            if field.number == 1:
                number = self._number(field)
            elif field.number == 2:
                name = self._text(field)
            elif field.number == 3:
                kind = self._number(field)
            elif field.number in (4, 5):
                deps += self._numbers(field)
            elif field.number == 7:
                duration = self._number(field)
            elif field.number == 10:
                key, value = self._attribute(field)
                attributes[key] = value
        if kind >= len(TYPES):
            self._fail(at, f"a type of node up to {len(TYPES) - 1}", str(kind))
        return RawNode(
            self._file, None, number, name, TYPES[kind], tuple(deps), duration, attributes
        )

    def _attribute(self, field: _Field) -> tuple[str, Value]:
        """Return the name and the value of an attribute."""
        if not isinstance(field.value, bytes):
            self._fail(field.at, "an attribute", "a number")
        name, value = "", None
        for each in self._fields(field.at, field.at + len(field.value)):
            if each.number == 1:
                name = self._text(each)
            elif each.number > 2:
                value = self._value(each)
        return name, value

    def _value(self, field: _Field) -> Value:
        form = _STRUCTS.get(field.number)
        if form is not None:
            if not isinstance(field.value, bytes) or len(field.value) != struct.calcsize(form):
                self._fail(
                    field.at, f"{struct.calcsize(form)} bytes in field {field.number}", "others"
                )
            found: int | float = struct.unpack(form, field.value)[0]
            return found
        if field.number == _STRING:
            return self._text(field)
        if isinstance(field.value, bytes):
            return None  # A list, or bytes: nothing that a replay looks at.
        if field.number in _SIGNED:
            return field.value - (1 << 64) if field.value >> 63 else field.value
        if field.number in _ZIGZAG:
            return field.value >> 1 ^ -(field.value & 1)
        return bool(field.value) if field.number == _BOOL else field.value

    def _fail(self, at: int, expected: str, got: str) -> NoReturn:
        raise ConfigError(ConfigProblem(self._file, None, f"byte {at}", expected, got))


def read_wire(data: bytes, file: str) -> list[RawNode]:
    """Read a trace of one rank from the content of a binary file.

    Raises:
        ConfigError: It is no such trace, or of another schema; with the byte where that shows.
    """
    return list(_Reader(data, file).nodes())
