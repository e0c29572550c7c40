"""Chakra's JSON form, as its jsonizer writes it: the metadata, then a node after the other.

protobuf writes numbers of 64 bits as texts, so too fractions that are no numbers, and leaves out
what is zero.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from simrank.bench.json_parts import Part, read_parts
from simrank.replay.chakra.nodes import TYPES, RawNode, Value, check_version

if TYPE_CHECKING:
    from collections.abc import Iterator

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
        ConfigError: It is none, or of another schema; with the line.
    """
    return list(_nodes(text, file))


def _nodes(text: str, file: str) -> Iterator[RawNode]:
    is_first = True
    for given in read_parts(text.removeprefix("\ufeff"), file):
        part = _plain(given)
        if is_first:
            _check(part)
        else:
            yield _node(part)
        is_first = False
    if is_first:
        raise Part(file, 1, "", {}).error("", "Chakra's global metadata", "nothing")


def _plain(part: Part) -> Part:
    """Return an object with keys that are the same in both spellings of protobuf's JSON."""
    return part._replace(data={_key(key): value for key, value in part.data.items()})


def _key(key: str) -> str:
    return key.replace("_", "").lower()


def _check(part: Part) -> None:
    schema = ""
    for each in part.parts("attr") if "attr" in part.data else []:
        name, value = _attribute(_plain(each))
        if name == "schema" and isinstance(value, str):
            schema = value
    version = part.text("version") if "version" in part.data else ""
    check_version(version, schema, part.file, part.line)


def _node(part: Part) -> RawNode:
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


def _attribute(part: Part) -> tuple[str, Value]:
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


def _whole(part: Part, key: str, least: int = 0, shown: str | None = None) -> int:
    """Return a number; `shown` is its key as files have it: names are compared without `_`."""
    return _as_whole(part, key if shown is None else shown, part.data.get(key, 0), least)


def _wholes(part: Part, key: str) -> list[int]:
    values = part.data.get(key, [])
    if not isinstance(values, list):
        raise part.error(key, "a list of numbers")
    return [_as_whole(part, key, value, 0) for value in values]


def _as_whole(part: Part, key: str, value: Any, least: int) -> int:  # noqa: ANN401 - JSON's
    if isinstance(value, str) and len(value) <= 20 and value.isascii():
        digits = value.removeprefix("-")
        value = int(value) if digits.isdigit() else value
    if type(value) is not int or not least <= value <= _MAX_INT:
        raise part.error(key, f"a whole number from {least}", repr(value))
    return value
