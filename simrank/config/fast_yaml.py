"""Large YAML files, read fast: their data first, their lines only when a message needs them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Protocol

import yaml

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
    """Lines and texts, read at the first access.

    Args:
        read: Reads them.
    """

    def __init__(self, read: Callable[[], Places]) -> None:
        self._read = read
        self.lines: Mapping[Any, int] = _LateMapping(lambda: self._places.lines)
        self.texts: Mapping[Any, str] = _LateMapping(lambda: self._places.texts)

    @cached_property
    def _places(self) -> Places:
        return self._read()


class _LateMapping(Mapping[Any, Any]):
    def __init__(self, made: Callable[[], Mapping[Any, Any]]) -> None:
        self._made = made

    def __getitem__(self, key: object) -> object:
        return self._made()[key]

    def __iter__(self) -> Iterator[object]:
        return iter(self._made())

    def __len__(self) -> int:
        return len(self._made())


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

    These are anchors, tags, keys that are no words or stand twice, several documents, and tab
    characters, which libyaml takes at places where YAML has none.

    Raises:
        YAMLError: It is no YAML, or nested deeper than `max_depth`.
    """
    if "\t" in text:
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
