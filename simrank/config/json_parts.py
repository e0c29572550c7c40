"""JSON of other tools, with file and line in all errors; start with `read_parts`."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from simrank.errors import ConfigError, ConfigProblem

if TYPE_CHECKING:
    from collections.abc import Iterator

_LEAST_US, _MOST_US = 1e-3, 1e12


def is_time(time_us: float) -> bool:
    """Return whether a number can be the time of a collective, in microseconds."""
    return _LEAST_US <= time_us <= _MOST_US


_SPACE = re.compile(r"\s*")


class JsonPart(NamedTuple):
    """An object of a JSON text.

    Attributes:
        file: Name for messages.
        line: The line on which the outermost object around it begins.
        path: Where it stands in that object: `results[0].`, for example; empty: it is that object.
        data: Its keys and values.
    """

    file: str
    line: int
    path: str
    data: dict[str, Any]

    def error(self, key: str, expected: str, got: str | None = None) -> ConfigError:
        """Return the error for a key; `got` defaults to its value."""
        if got is None:
            got = _shown(self.data[key]) if key in self.data else "nothing"
        return ConfigError(ConfigProblem(self.file, self.line, self.path + key, expected, got))

    def whole(self, key: str, least: int, most: int) -> int:
        """Return a whole number within bounds, which are its own."""
        value = self.data.get(key)
        if type(value) is int and least <= value <= most:
            return value
        raise self.error(key, f"a whole number from {least} to {most}")

    def time_us(self, key: str) -> float:
        """Return a time in microseconds."""
        value = self.data.get(key)
        if isinstance(value, int | float) and value is not True and is_time(value):
            return float(value)
        raise self.error(key, "a time in microseconds above 0")

    def text(self, key: str) -> str:
        """Return a text."""
        value = self.data.get(key)
        if isinstance(value, str):
            return value
        raise self.error(key, "a string")

    def part(self, key: str) -> JsonPart:
        """Return an object inside it."""
        value = self.data.get(key)
        if isinstance(value, dict):
            return self._replace(path=f"{self.path}{key}.", data=value)
        raise self.error(key, "an object")

    def parts(self, key: str) -> list[JsonPart]:
        """Return a list of objects inside it."""
        values = self.data.get(key)
        if not isinstance(values, list):
            raise self.error(key, "a list of objects")
        return [
            JsonPart(self.file, self.line, "", {name: value}).part(name)
            for name, value in ((f"{self.path}{key}[{i}]", each) for i, each in enumerate(values))
        ]


def read_parts(text: str, file: str) -> Iterator[JsonPart]:
    """Yield the objects of a JSON text: one, several in a list, or several behind each other.

    Args:
        text: JSON, or lines of JSON.
        file: Name for messages.

    Raises:
        ConfigError: It is no JSON, or holds what is no object; with the line.
    """
    for line, value in _values(text, file):
        for each in value if isinstance(value, list) else [value]:
            if not isinstance(each, dict):
                raise ConfigError(ConfigProblem(file, line, "", "an object", _shown(each)))
            yield JsonPart(file, line, "", each)


def _values(text: str, file: str) -> Iterator[tuple[int, Any]]:
    """Yield the line and the value of each JSON value of a text."""
    decoder = json.JSONDecoder(parse_constant=_refuse)
    at, line = 0, 1
    while True:
        match = _SPACE.match(text, at)
        start = at if match is None else match.end()
        line += text.count("\n", at, start)
        if start == len(text):
            return
        try:
            value, at = decoder.raw_decode(text, start)
        except json.JSONDecodeError as error:
            got = f"{error.msg} in column {error.colno}"
            raise ConfigError(ConfigProblem(file, error.lineno, "", "JSON", got)) from None
        except (RecursionError, ValueError) as error:  # Too deep, or a number of too many digits.
            raise ConfigError(ConfigProblem(file, line, "", "JSON", str(error))) from None
        yield line, value
        line += text.count("\n", start, at)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant}, which is not a JSON number")


def _shown(value: Any) -> str:  # noqa: ANN401 - any value
    """Return a value as JSON; the type of a long one."""
    if isinstance(value, dict):
        return f"an object with {', '.join(value) or 'nothing'}"
    return f"a list of {len(value)}" if isinstance(value, list) else json.dumps(value)
