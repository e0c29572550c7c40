"""YAML with the line of every key, so that every later complaint can say where.

Start with `read_yaml`. Keys are always text as written (`on:` is "on"), scalars are read by
PyYAML's safe rules, and the text behind each scalar is kept for messages.
"""

from __future__ import annotations

import codecs
import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

import yaml

from simrank.config.files import read_bytes
from simrank.errors import ConfigError, ConfigProblem

# ---- Large YAML files ----

_MAX_DIGITS = 1_000  # Assumed: longer ones are no numbers, and take long to read as such.
_MAX_BITS = 128
_MAX_KNOWN = 100_000  # Scalars whose data is remembered.


class Places(Protocol):
    """The interface to positions of data in a file.

    Attributes:
        lines: Line of each key path.
        texts: Text of each scalar.
    """

    lines: dict[tuple[str | int, ...], int]
    texts: dict[tuple[str | int, ...], str]


class Late:
    """Lines and texts, read at the first access; both can be pickled if `read` can.

    Args:
        read: Reads them.
    """

    def __init__(self, read: Callable[[], Places]) -> None:
        self._read = read
        self.lines: Mapping[Any, int] = _LateMapping(self, "lines")
        self.texts: Mapping[Any, str] = _LateMapping(self, "texts")

    @cached_property
    def places(self) -> Places:
        """Lines and texts."""
        return self._read()


class _LateMapping(Mapping[Any, Any]):
    """One of the mappings of `Places`.

    Args:
        late: Reads them.
        name: Which.
    """

    def __init__(self, late: Late, name: str) -> None:
        self._late, self._name = late, name

    @property
    def _mapping(self) -> Mapping[Any, Any]:
        found: Mapping[Any, Any] = getattr(self._late.places, self._name)
        return found

    def __getitem__(self, key: object) -> object:
        return self._mapping[key]

    def __iter__(self) -> Iterator[object]:
        return iter(self._mapping)

    def __len__(self) -> int:
        return len(self._mapping)


def scalar_data(node: yaml.ScalarNode, loader: yaml.SafeLoader) -> object:
    """Return the value of a plain scalar; other types of YAML stay text."""
    text = str(node.value)
    if len(text) > _MAX_DIGITS:
        return text
    try:
        data: object = loader.construct_object(node)
    except (yaml.YAMLError, ValueError, OverflowError):
        return text  # For example the date 2026-99-99: leave it to the model.
    if isinstance(data, int) and data.bit_length() > _MAX_BITS:
        return text  # No number here is so large: leave it to the model.
    # Dates and bytes are text here.
    return data if data is None or isinstance(data, bool | int | float | str) else text


def plain_data(text: str, max_depth: int) -> object:
    """Return the data of text, or None where something in it needs a closer look.

    These are anchors, tags, keys that are no words or stand twice, several documents, and
    characters that libyaml takes at places where PyYAML has none.

    Raises:
        YAMLError: It is no YAML, or nested deeper than `max_depth`.
    """
    if any(character in text for character in "\t?\ufeff"):
        return None
    builder = _Builder(max_depth)
    try:
        _build(text, builder)
    except _UnusualError:
        return None
    return builder.root[0] if len(builder.root) == 1 else None


def places_of(text: str) -> Places:
    """Return the positions of the data that `plain_data` has read from a text."""
    placer = _Placer(len(text))
    _build(text, placer)
    return placer


@contextmanager
def uncollected() -> Iterator[None]:
    """Disable the garbage collector while large data are read."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _build(text: str, builder: _Builder) -> None:
    act_on = {
        yaml.ScalarEvent: builder.scalar,
        yaml.MappingStartEvent: lambda event: builder.open(event, {}),
        yaml.SequenceStartEvent: lambda event: builder.open(event, []),
        yaml.MappingEndEvent: builder.close,
        yaml.SequenceEndEvent: builder.close,
        yaml.AliasEvent: builder.refuse,
    }
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        act = act_on.get(type(event))
        if act is not None:
            act(event)


class _UnusualError(Exception):
    """Something needs a closer look."""


class _Builder:
    """Makes data of a parser's events.

    Args:
        max_depth: What is nested deeper is refused.

    Attributes:
        root: The documents.
    """

    def __init__(self, max_depth: int) -> None:
        self.root: list[object] = []
        self._max_depth = max_depth
        self._loader = yaml.SafeLoader("")
        self._known: dict[str, object] = {}
        self._stack: list[tuple[Any, str | None]] = []  # What is open, and its current key.
        self._here: Any = self.root
        self._key: str | None = None

    def scalar(self, event: Any) -> None:  # noqa: ANN401 - PyYAML's, which is not typed
        """Take a key, or an item."""
        if event.anchor is not None or event.tag is not None:
            raise _UnusualError
        value: str = event.value
        if self._key is None and type(self._here) is dict:
            if value in self._here or value == "<<":
                raise _UnusualError
            self._key = value
            return
        self._add(self._resolved(value) if event.implicit[0] else value)

    def open(self, event: Any, data: object) -> None:  # noqa: ANN401 - PyYAML's
        """Begin a mapping or a list."""
        is_key = self._key is None and type(self._here) is dict
        if is_key or event.anchor is not None or event.tag is not None:
            raise _UnusualError
        if len(self._stack) >= self._max_depth:
            problem = f"something nested deeper than {self._max_depth} levels"
            raise yaml.composer.ComposerError(None, None, problem, event.start_mark)
        self._stack.append((self._here, self._key))
        self._here, self._key = data, None

    def close(self, _event: object) -> None:
        """End the mapping or list that is open."""
        data = self._here
        self._here, self._key = self._stack.pop()
        self._add(data)

    def refuse(self, _event: object) -> None:
        """Reject an alias: the full loader reads such files."""
        raise _UnusualError

    def _add(self, item: object) -> None:
        if self._key is None:
            self._here.append(item)
        else:
            self._here[self._key] = item
            self._key = None

    def _resolved(self, value: str) -> object:
        """Return the value of a plain scalar."""
        item = self._known.get(value, self)
        if item is self:
            tag = self._loader.resolve(yaml.ScalarNode, value, (True, False))  # type: ignore[no-untyped-call]
            item = scalar_data(yaml.ScalarNode(tag, value), self._loader)
            if len(self._known) < _MAX_KNOWN:
                self._known[value] = item
        return item


class _Placer(_Builder):
    """Notes where everything stands, too."""

    def __init__(self, max_depth: int) -> None:
        super().__init__(max_depth)
        self.lines: dict[tuple[str | int, ...], int] = {}
        self.texts: dict[tuple[str | int, ...], str] = {}
        self._paths: list[tuple[str | int, ...]] = []

    def scalar(self, event: Any) -> None:  # noqa: ANN401 - PyYAML's
        """Note the line of a key, or the text of an item."""
        is_key = self._key is None and type(self._here) is dict
        if is_key:
            self.lines[(*self._paths[-1], event.value)] = event.start_mark.line + 1
        else:
            self.texts[self._place(event)] = event.value
        super().scalar(event)

    def open(self, event: Any, data: object) -> None:  # noqa: ANN401 - PyYAML's
        """Note the line of a mapping or a list."""
        self._paths.append(self._place(event))
        super().open(event, data)

    def close(self, event: object) -> None:
        """Close the open collection."""
        self._paths.pop()
        super().close(event)

    def _place(self, event: Any) -> tuple[str | int, ...]:  # noqa: ANN401 - PyYAML's
        """Return the key path of an item that begins; one of a mapping has its key's line."""
        if not self._paths:
            path: tuple[str | int, ...] = ()
        else:
            path = (*self._paths[-1], len(self._here) if self._key is None else self._key)
        self.lines.setdefault(path, event.start_mark.line + 1)
        return path


# ---- YAML with the line of every key, so that every later complaint can say where ----

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
    data: object = None
    loader: type[yaml.SafeLoader | yaml.CSafeLoader] = _ShallowLoader
    try:
        if yaml.__with_libyaml__:
            if len(text) > _LARGE:
                data, loader = plain_data(text, _MAX_DEPTH), yaml.CSafeLoader
            else:
                with suppress(yaml.YAMLError):  # The careful reader's message is better.
                    data = plain_data(text, _MAX_DEPTH)
        if isinstance(data, dict):
            where = Late(partial(places_of, text))
            return Source(file, data, path, where.lines, where.texts)
        reader = _careful(text, file, loader)
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
        return scalar_data(node, self._scalars)

    def _problem(self, node: yaml.Node, key_path: KeyPath, expected: str, got: str) -> None:
        line = node.start_mark.line + 1
        where = format_key_path(key_path)
        self.problems.append(ConfigProblem(self.file, line, where, expected, got))
