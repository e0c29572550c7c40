"""XML with the line of every element, for error messages.

Start with `parse_xml`; `read_bytes` reads the file.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn
from xml.parsers import expat

from simrank.errors import ConfigError, ConfigProblem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_MAX_DEPTH = 64  # Assumed: far above what PCI trees nest, far below Python's own limit.


@dataclass(slots=True)
class XmlElement:
    """An element of a file.

    Attributes:
        file: For messages.
        name: Its tag.
        line: Where it begins.
        path: Its name in messages, for example `gpu[1].tb[0]`.
        attributes: As written.
        children: Elements in it, in order.
    """

    file: str
    name: str
    line: int
    path: str
    attributes: dict[str, str]
    children: list[XmlElement] = field(default_factory=list)

    def error(self, key: str, expected: str, got: str, to_fix: str | None = None) -> ConfigError:
        """Return the error for one of its attributes, or for itself where `key` is empty."""
        path = ".".join(part for part in (self.path, key) if part)
        return ConfigError(ConfigProblem(self.file, self.line, path, expected, got, to_fix))

    def fail(self, key: str, expected: str, got: str) -> NoReturn:
        """Raise ConfigError for one of its attributes, or for itself where `key` is empty."""
        raise self.error(key, expected, got)

    def inside(self, *names: str) -> list[XmlElement]:
        """Return the elements in it that have one of these names."""
        return [child for child in self.children if child.name in names]

    def below(self, name: str) -> Iterator[XmlElement]:
        """Yield the elements of a name in it, at any depth, in the file's order."""
        for child in self.children:
            if child.name == name:
                yield child
            yield from child.below(name)

    def text(self, key: str) -> str:
        """Return an attribute that has to be there."""
        if key not in self.attributes:
            self.fail(key, "a text", "nothing")
        return self.attributes[key]

    def word(self, key: str, choices: Iterable[str], default: str | None = None) -> str:
        """Return an attribute that is one of some words."""
        text = self.attributes.get(key, default)
        if text is None or text not in choices:
            self.fail(key, f"one of {', '.join(choices)}", "nothing" if text is None else text)
        return text

    def number(self, key: str, lowest: int, highest: int, default: int | None = None) -> int:
        """Return an integer attribute within bounds."""
        text = self.attributes.get(key, None if default is None else str(default))
        digits = (text or "").removeprefix("-")
        is_number = digits.isascii() and digits.isdecimal() and len(digits) < 10
        if text is None or not is_number or not lowest <= int(text) <= highest:
            expected = f"a whole number from {lowest} to {highest}"
            self.fail(key, expected, "nothing" if text is None else text)
        return int(text)

    def decimal(self, key: str, highest: float, default: float | None = None) -> float:
        """Return an attribute that is a number from 0 up to another."""
        text = self.attributes.get(key, None if default is None else str(default))
        try:
            value = float(text) if text is not None and text.isascii() else math.nan
        except ValueError:
            value = math.nan
        if not 0 <= value <= highest:
            expected = f"a number from 0 to {highest:g}"
            self.fail(key, expected, "nothing" if text is None else text)
        return value


def parse_xml(
    data: bytes, file: str, parents: Mapping[str, Iterable[str]], *, skips_others: bool = False
) -> XmlElement:
    """Read a tree of elements.

    Args:
        data: The content of the file.
        file: Its name, for messages.
        parents: Of each element the names of those that it may stand in; "": it is the outermost.
        skips_others: Whether elements that `parents` does not name are left out, with all that is
            in them.

    Raises:
        ConfigError: It is no XML, or an element stands where it may not.
    """
    return _Tree(file, parents, skips_others).parse(data)


class _Tree:
    """Makes a tree of elements with lines of an XML file."""

    def __init__(self, file: str, parents: Mapping[str, Iterable[str]], skips_others: bool) -> None:
        self._file = file
        self._parents = parents
        self._skips_others = skips_others
        self._num_skipped = 0  # Elements that are open, from the outermost that is left out.
        self._open: list[XmlElement] = []
        self._root: XmlElement | None = None
        self._parser = expat.ParserCreate()
        self._parser.StartElementHandler = self._begin
        self._parser.EndElementHandler = self._end
        self._parser.StartDoctypeDeclHandler = self._refuse_doctype

    def parse(self, data: bytes) -> XmlElement:
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
        parent = self._open[-1] if self._open else None
        if self._num_skipped or (parent and self._skips_others and name not in self._parents):
            self._num_skipped += 1
            return
        self._check_place(name, parent)
        path = ""
        if parent:
            own = f"{name}[{len(parent.inside(name))}]"
            path = f"{parent.path}.{own}" if parent.path else own
        node = XmlElement(self._file, name, self._parser.CurrentLineNumber, path, attributes)
        if parent:
            parent.children.append(node)
        else:
            self._root = node
        self._open.append(node)

    def _check_place(self, name: str, parent: XmlElement | None) -> None:
        """Refuse an element that may not stand there, or too deep."""
        line, path = self._parser.CurrentLineNumber, parent.path if parent else ""
        over = parent.name if parent else ""
        if over not in self._parents.get(name, ()):
            inside = f"in <{over}> " if parent else ""
            found = [f"<{child}>" for child, places in self._parents.items() if over in places]
            self._fail(line, path, inside + (" or ".join(found) or "no element"), f"<{name}>")
        if len(self._open) >= _MAX_DEPTH:
            self._fail(line, "", f"elements nested at most {_MAX_DEPTH} deep", f"<{name}>")

    def _end(self, name: str) -> None:
        del name
        if self._num_skipped:
            self._num_skipped -= 1
        else:
            self._open.pop()

    def _refuse_doctype(self, *_: object) -> None:
        line = self._parser.CurrentLineNumber
        self._fail(line, "", "a file without a document type", "<!DOCTYPE")

    def _fail(self, line: int, path: str, expected: str, got: str) -> NoReturn:
        raise ConfigError(ConfigProblem(self._file, line, path, expected, got)) from None
