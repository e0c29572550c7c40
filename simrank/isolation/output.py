"""`sys.stdout` and `sys.stderr` of ranks: each rank's own, whole lines only.

Ranks write in turns: `print` waits in the midst of a line if it prints a tensor that is still being
computed. While a Context is entered, what a rank prints is kept until its line is complete, and a
rank that puts something else in place of `sys.stdout` (`contextlib.redirect_stdout`) does so for
itself alone. That costs nothing when ranks take turns: the streams find the running rank.

A front door may give the ranks of a program an `Output`: a prefix per line, a file per rank.
"""

from __future__ import annotations

import io
import sys
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

from simrank.isolation import diagnostics
from simrank.isolation.package_state import see_handled
from simrank.isolation.process_state import argv_property
from simrank.ranks.current import current_program, started_as

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType

    from simrank.isolation.ledger import Ledger
    from simrank.ranks.current import Program

_NAMES = ("stdout", "stderr")
KEYS = {*(f"sys.{name}" for name in _NAMES), *(f"{name} line" for name in _NAMES)}  # In `local`.
_OUTPUT, _WRITES_AS = "output", "output as"


@dataclass(frozen=True)
class Output:
    """Destination of the ranks' lines.

    Attributes:
        prefix: What each line of a rank starts with.
        log: Given rank and "stdout" or "stderr", a file that gets each line too, without prefix.
        shows: Given the same, whether lines go to the program's own streams; None: all do.
    """

    prefix: Callable[[int], str] | None = None
    log: Callable[[int, str], TextIO | None] | None = None
    shows: Callable[[int, str], bool] | None = None


_PLAIN = Output()


def set_output(program: Program, output: Output) -> None:
    """Set the output of the ranks of a program, and of their ranks."""
    program.local[_OUTPUT] = output


def keep_lines(program: Program) -> Callable[[], dict[tuple[int, str], list[str]]]:
    """Keep the lines of the ranks of a program, and show none.

    Returns:
        A function that returns those so far, by rank and stream. What a rank has started writes to
        its streams in an order that timing decides: its lines are named apart.
    """
    texts: defaultdict[tuple[int, str], io.StringIO] = defaultdict(io.StringIO)

    def log(rank: int, stream: str) -> io.StringIO:
        writer = _writer()
        return texts[rank, stream + ("" if writer is None else started_as(writer))]

    set_output(program, Output(log=log, shows=lambda *_: False))
    return lambda: {key: text.getvalue().split("\n") for key, text in texts.items()}


def _output_of(program: Program) -> tuple[int, Output]:
    """Return the destination and the prefix of a rank's lines.

    What it spawned writes as it does, as child processes write to their parent's streams.
    """
    found: tuple[int, Output] | None = program.local.get(_WRITES_AS)
    if found is None:
        parent, found = program.parent, (program.started_rank or 0, _PLAIN)
        if parent is not None and _OUTPUT in parent.local:
            found = program.started_rank or 0, parent.local[_OUTPUT]
        elif parent is not None:
            above = _rank_of(parent)
            found = found if above is None else _output_of(above)
        program.local[_WRITES_AS] = found
    return found


def _rank_of(program: Program | None) -> Program | None:
    """Return the rank that a program is, or in which its Context was entered, if any."""
    while program is not None and program.rank is None:
        program = program.outer
    return program


def _writer() -> Program | None:
    """Return the rank that writes; None for the main program."""
    return _rank_of(current_program())


class RankStream(io.TextIOBase):
    """Replacement of `sys.stdout` or `sys.stderr`: buffers a rank's text to whole lines.

    It is in the module's names, where `print` looks, and forwards to what a rank has put in its
    place. A rank that asks for `sys.stdout` gets `plain`, which forwards nothing: a tee may write
    to the stream that it replaces.

    Args:
        name: "stdout" or "stderr".
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._own = f"sys.{name}"
        self._line = f"{name} line"
        self._open: Program | None = None  # The one that has flushed the beginning of a line.
        self.plain: io.TextIOBase = _PlainStream(self)
        self.base: Any = None
        self.is_unread = False

    def take_base(self) -> Any:  # noqa: ANN401 - a stream
        """Return the program's stream, and drop it."""
        base, self.base = self.base, None
        return base

    def _target(self) -> Any:  # noqa: ANN401 - a stream
        """Return the program's stream: what it has put there, even after the last Context."""
        return self.base if self.base is not None else vars(sys)[f"__{self._name}__"]

    def _ranks_own(self, program: Program) -> Any:  # noqa: ANN401 - a stream or None
        own = program.local.get(self._own)
        return None if own is self or own is self.plain else own

    def write(self, text: str) -> int:
        """Write for the main program; for a rank, what completes its lines."""
        program = _writer()
        if program is None:
            return int(self._target().write(text))
        own = self._ranks_own(program)
        return self.write_plain(text) if own is None else int(own.write(text))

    def write_plain(self, text: str) -> int:
        """Write to the original stream."""
        program = _writer()
        if program is None:
            return int(self._target().write(text))
        see_handled(program)  # Programs print the exceptions that they catch.
        if (choices := program.engine.choices) is not None and program.task is not None:
            choices.printed(program.task, text)
        line = program.local.get(self._line, "") + text
        whole, end, rest = line.rpartition("\n")
        program.local[self._line] = rest
        if end:
            self._emit(program, whole + end)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:  # type: ignore[override]
        """Write them all."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Show what a rank has written of its line."""
        program = _writer()
        own = None if program is None else self._ranks_own(program)
        if own is None:
            self.flush_plain()
        else:
            own.flush()

    def flush_plain(self) -> None:
        """Flush the original stream."""
        program = _writer()
        if program is not None:
            rest = program.local.pop(self._line, "")
            if rest:
                self._emit(program, rest)
        self._target().flush()

    def _emit(self, program: Program, text: str) -> None:
        rank, output = _output_of(program)
        is_new = self._open is not program
        log = None if output.log is None else output.log(rank, self._name)
        if log is not None:
            log.write(text)
        if output.shows is not None and not output.shows(rank, self._name):
            return
        shown = text
        if output.prefix is not None:
            prefix, body, end = output.prefix(rank), text.removesuffix("\n"), text[-1:] == "\n"
            shown = body.replace("\n", "\n" + prefix) + "\n" * end
            shown = prefix + shown if is_new else shown
        if is_new and self._open is not None:  # Another rank's line is not to be continued.
            shown = "\n" + shown
        self._open = None if text.endswith("\n") else program
        try:
            self._target().write(shown)
        except BrokenPipeError:
            self.is_unread = True
            raise

    def rank_ended(self, program: Program) -> None:
        """Show what a rank has left of a line, and forget what it put in place of this."""
        program.local.pop(self._own, None)
        rest = program.local.pop(self._line, "")
        if rest:
            self._emit(program, rest + "\n")

    @property
    def buffer(self) -> Any:  # noqa: ANN401 - a binary stream
        """The program's; a rank's bytes go where its text goes."""
        return self._target().buffer if _writer() is None else _Bytes(self)

    # What else streams have is the program's.

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any value
        """As the program's stream."""
        return getattr(self._target(), name)

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """As the program's stream."""
        encoding: str = self._target().encoding
        return encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        """As the program's stream."""
        errors: str | None = self._target().errors
        return errors

    def fileno(self) -> int:
        """As the program's stream."""
        number: int = self._target().fileno()
        return number

    def isatty(self) -> bool:
        """As the program's stream."""
        return bool(self._target().isatty())

    def writable(self) -> bool:
        """Return True."""
        return True

    def close(self) -> None:
        """Do nothing: all ranks share the stream."""


class _PlainStream(io.TextIOBase):
    """A rank's own stream, as its process would have started with it.

    Args:
        stream: The stream in the module's names.
    """

    def __init__(self, stream: RankStream) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write what completes lines."""
        return self._stream.write_plain(text)

    def flush(self) -> None:
        """Show what a rank has written of its line."""
        self._stream.flush_plain()

    def close(self) -> None:
        """Leave it open: all ranks write to the program's stream."""

    @property
    def buffer(self) -> Any:  # noqa: ANN401 - a binary stream
        """The program's; a rank's bytes go where its text goes."""
        stream = self._stream
        return stream._target().buffer if _writer() is None else _Bytes(self)  # noqa: SLF001 - its own

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """As the program's stream."""
        return self._stream.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        """As the program's stream."""
        return self._stream.errors

    def fileno(self) -> int:
        """As the program's stream."""
        return self._stream.fileno()

    def isatty(self) -> bool:
        """As the program's stream."""
        return self._stream.isatty()

    def writable(self) -> bool:
        """Return True."""
        return True

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any value
        """As the program's stream."""
        return getattr(self._stream, name)


class _Bytes(io.RawIOBase):
    """The `sys.stdout.buffer` of a rank: its bytes become text of the rank's lines.

    Args:
        stream: Where the text goes.
    """

    def __init__(self, stream: io.TextIOBase) -> None:
        self._stream = stream

    def write(self, data: Any) -> int:  # noqa: ANN401 - any value
        """Write what the bytes say; what is no text is escaped."""
        held = bytes(data)
        self._stream.write(held.decode("utf-8", "backslashreplace"))
        return len(held)

    def flush(self) -> None:
        """Show what has been written of a line."""
        self._stream.flush()

    def close(self) -> None:
        """Leave it open, and the line too: each look at `buffer` is another of these."""

    def writable(self) -> bool:
        """Return True."""
        return True


_streams = {name: RankStream(name) for name in _NAMES}


def _attribute(name: str) -> Any:  # noqa: ANN401 - a property
    stream, key = _streams[name], f"sys.{name}"

    def get(_: ModuleType) -> Any:  # noqa: ANN401 - a stream
        program = _writer()
        return stream.base if program is None else program.local.get(key, stream.plain)

    def put(_: ModuleType, value: object) -> None:
        program = _writer()
        if program is None:
            stream.base = value
        else:
            program.local[key] = value

    return property(get, put)


def _first(name: str) -> Any:  # noqa: ANN401 - a property
    stream, key = _streams[name], f"__{name}__"

    def get(module: ModuleType) -> Any:  # noqa: ANN401 - a stream
        return vars(module)[key] if _writer() is None else stream.plain

    return property(get, lambda module, value: vars(module).__setitem__(key, value))


class _Sys(diagnostics.LiveModule):
    """The module `sys` while a Context is entered: streams, hook and arguments are the rank's.

    `print` and the interpreter take them from the module's names, where the `RankStream` is.
    """

    stdout, stderr = _attribute("stdout"), _attribute("stderr")
    __stdout__, __stderr__ = _first("stdout"), _first("stderr")
    argv = argv_property()
    excepthook = diagnostics.of_sys()


def install(ledger: Ledger) -> None:
    """Replace the program's streams, until they are restored as the program has set them."""
    names = vars(sys)
    for name, stream in _streams.items():
        if names.get(name) is not None and names[name] is not stream:
            stream.base, stream.is_unread = names[name], False
            ledger.replace(sys, name, stream, yields=stream.take_base, home=__name__)
    ledger.replace(sys, "__class__", _Sys, home=__name__)


def is_unread() -> bool:
    """Return whether the reader of the ranks' output has closed its pipe."""
    return any(stream.is_unread for stream in _streams.values())


def rank_ended(program: Program) -> None:
    """Show what a rank that ends has left of its lines."""
    for stream in _streams.values():
        stream.rank_ended(program)
