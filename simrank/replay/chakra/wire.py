"""Chakra's binary form: length-prefixed protobuf messages; start with `read_wire`.

The few messages are read by hand (ADR 0036). Source of the encoding: protobuf.dev, "Encoding".
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from simrank.errors import ConfigError, ConfigProblem
from simrank.replay.chakra.nodes import TYPES, RawNode, Value, check_version

if TYPE_CHECKING:
    from collections.abc import Iterator

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
        ConfigError: It is none, or of another schema; with the byte where that shows.
    """
    return list(_Reader(data, file).nodes())
