"""YAML with the line of every key, so that every later complaint can say where.

Start with `read_yaml`. Keys are always text as written (`on:` is "on"), scalars are read by
PyYAML's safe rules, and the text behind each scalar is kept for messages.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from simrank.config import fast_yaml
from simrank.config.files import read_bytes
from simrank.errors import ConfigError, ConfigProblem

if TYPE_CHECKING:
    from collections.abc import Mapping

KeyPath = tuple[str | int, ...]

_MAX_REPEATS = 200_000  # Assumed: far above any real file, far below what aliases blow up to.
_MAX_DEPTH = 100  # Assumed: the deepest key of a configuration is the sixth.
_LARGE = 1_000_000  # Characters; measured: PyYAML's own parser takes 3 s for these.
_MERGE = "tag:yaml.org,2002:merge"
_TAGS = ("map", "seq", "str", "int", "float", "bool", "null", "timestamp", "merge", "value")


@dataclass(frozen=True)
class Source:
    """A configuration as plain data, and where each part of it stands.

    Attributes:
        file: The file as the user named it, or a word such as "command line".
        data: Mappings, lists and scalars.
        path: Where the file lies, or None for data that is in no file.
        lines: 1-based line of each key path; empty for data that is in no file.
        texts: The text of each scalar as written.
        prefix: Key path that problems are relative to, where a part is checked by itself.
    """

    file: str
    data: object
    path: Path | None = None
    lines: Mapping[KeyPath, int] = field(default_factory=dict)
    texts: Mapping[KeyPath, str] = field(default_factory=dict)
    prefix: KeyPath = ()

    def line(self, key_path: KeyPath) -> int | None:
        """Return the line of a key, or of the nearest key around it."""
        for length in range(len(key_path), -1, -1):
            if key_path[:length] in self.lines:
                return self.lines[key_path[:length]]
        return None

    def describe(self, key_path: KeyPath, value: object) -> str:
        """Return the text of a value, to follow "got"."""
        if value is None:
            return "nothing"
        if isinstance(value, dict):
            return "a mapping"
        if isinstance(value, list | tuple):
            return "a list"
        text = self.texts.get(key_path, str(value))
        return text if text.strip() else repr(text)

    def problem(
        self, key_path: KeyPath, expected: str, got: str, to_fix: str | None = None
    ) -> ConfigProblem:
        """Return a problem at a key, with its line."""
        path = (*self.prefix, *key_path)
        return ConfigProblem(
            self.file, self.line(path), format_key_path(path), expected, got, to_fix
        )


def format_key_path(key_path: KeyPath) -> str:
    """Return a key path as the user would write it, for example `links[0].bandwidth`."""
    text = ""
    for part in key_path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def read_yaml(path: str | Path) -> Source:
    """Read one YAML file.

    Args:
        path: The file.

    Returns:
        Its data, whose top level is a mapping, with lines.

    Raises:
        ConfigError: The file cannot be read, is no YAML, has a duplicate key or no mapping at
            its top level.
    """
    return parse_yaml(read_text(Path(path)), str(path), Path(path))


def parse_yaml(text: str, file: str, path: Path | None = None) -> Source:
    """Read YAML text; see `read_yaml`."""
    try:
        if len(text) > _LARGE and yaml.__with_libyaml__:
            data = fast_yaml.plain_data(text, _MAX_DEPTH)
            if isinstance(data, dict):
                where = fast_yaml.Late(lambda: fast_yaml.places_of(text))
                return Source(file, data, path, where.lines, where.texts)
            reader = _careful(text, file, yaml.CSafeLoader)
        else:
            reader = _careful(text, file, _ShallowLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        got = error.problem or error.context or "something else"
        raise ConfigError(ConfigProblem(file, line, "", "valid YAML", got)) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        got = f"the control character U+{ord(text[error.position]):04X}"
        raise ConfigError(ConfigProblem(file, line, "", "valid YAML", got)) from None
    if reader.problems:
        raise ConfigError(*reader.problems)
    return Source(file, reader.data, path, reader.lines, reader.texts)


def _careful(text: str, file: str, loader: type[yaml.SafeLoader | yaml.CSafeLoader]) -> _Reader:
    """Read text with the line of everything in it, and note all that is wrong."""
    reader = _Reader(file)
    node = yaml.compose(text, Loader=loader)
    if node is None:
        raise ConfigError(ConfigProblem(file, 1, "", "a mapping", "an empty file"))
    reader.data = reader.read(node, ())
    if not isinstance(reader.data, dict):
        is_list = isinstance(reader.data, list)
        got = "a list" if is_list else f"the text {str(reader.data)!r}"
        reader.problems.append(ConfigProblem(file, 1, "", "a mapping at the top level", got))
    return reader


def read_text(path: Path) -> str:
    """Return the text of a file, or raise with the reason why it cannot be read."""
    line = to_fix = None
    try:
        data = read_bytes(path)
        return data.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except FileNotFoundError:
        got = "no such file"
    except IsADirectoryError:
        got = "a directory"
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        got = f"bytes that are no UTF-8 at offset {error.start}"
        if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            got = "UTF-16 or UTF-32"
        to_fix = "save the file as UTF-8"
    except (OSError, ValueError) as error:
        got = getattr(error, "strerror", None) or str(error)
    raise ConfigError(ConfigProblem(str(path), line, "", "a readable file", got, to_fix))


class _ShallowLoader(yaml.SafeLoader):
    """A loader that rejects deep nesting before Python's recursion limit."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose a node, one level below the one around it."""
        is_open = self.check_event(yaml.CollectionStartEvent)
        if is_open and self._depth >= _MAX_DEPTH:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            problem = f"something nested deeper than {_MAX_DEPTH} levels"
            raise yaml.composer.ComposerError(None, None, problem, mark)
        self._depth += 1
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        return node


class _Reader:
    """Turns composed nodes into plain data and notes the lines on the way."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.data: object = None
        self.problems: list[ConfigProblem] = []
        self.lines: dict[KeyPath, int] = {}
        self.texts: dict[KeyPath, str] = {}
        self._scalars = yaml.SafeLoader("")
        self._open: set[int] = set()
        self._seen: set[int] = set()
        self._num_repeats = 0

    def read(self, node: yaml.Node, key_path: KeyPath) -> object:
        """Return the data of a node; problems are collected, not raised."""
        self.lines.setdefault(key_path, node.start_mark.line + 1)
        self._num_repeats += id(node) in self._seen
        self._seen.add(id(node))
        if id(node) in self._open or self._num_repeats > _MAX_REPEATS:
            if self._num_repeats <= _MAX_REPEATS + 1:
                self._problem(node, key_path, "plain data", "an alias that repeats without end")
            return None
        if node.tag.removeprefix("tag:yaml.org,2002:") not in _TAGS:
            self._problem(node, key_path, "plain data", f"the tag {node.tag}")
            return None
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, key_path)
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.SequenceNode):
                children = enumerate(node.value)
                return [self.read(child, (*key_path, index)) for index, child in children]
            assert isinstance(node, yaml.MappingNode)
            return self._mapping(node, key_path)
        finally:
            self._open.discard(id(node))

    def _mapping(self, node: yaml.MappingNode, key_path: KeyPath) -> dict[str, object]:
        data: dict[str, object] = {}
        first_lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self._problem(key_node, key_path, "a plain word as key", "a list or a mapping")
                continue
            if key_node.tag == _MERGE:
                got = f"the merge key `{key_node.value}`"
                self._problem(key_node, key_path, "keys that are written out", got)
                continue
            key = str(key_node.value)
            line = key_node.start_mark.line + 1
            if key in data:
                child = (*key_path, key)
                got = f"a second one; the first is on line {first_lines[key]}"
                self._problem(key_node, child, "each key once", got)
                continue
            first_lines[key] = line
            self.lines.setdefault((*key_path, key), line)
            data[key] = self.read(value_node, (*key_path, key))
        return data

    def _scalar(self, node: yaml.ScalarNode, key_path: KeyPath) -> object:
        self.texts[key_path] = str(node.value)
        return fast_yaml.scalar_data(node, self._scalars)

    def _problem(self, node: yaml.Node, key_path: KeyPath, expected: str, got: str) -> None:
        line = node.start_mark.line + 1
        where = format_key_path(key_path)
        self.problems.append(ConfigProblem(self.file, line, where, expected, got))
