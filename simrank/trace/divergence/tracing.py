"""Python's tracer on the threads of ranks: on in the program, off where a library is imported.

While a thread has a tracer Python 3.11 runs all of its code slowly, also what nobody follows.
Importing a library is hundreds of thousands of lines of that kind.
"""

from __future__ import annotations

import builtins
import importlib.util
import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from simrank.trace.divergence.track import is_installed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import FrameType

    from simrank.trace.divergence.track import Code, Codes, Track


class Tracing:
    """Follows the frames that begin on the threads of ranks.

    Args:
        codes: What is followed.
        track: Returns the track of the rank that runs, or None.
    """

    def __init__(self, codes: Codes, track: Callable[[], Track | None]) -> None:
        self._codes = codes
        self._track = track
        self._enter = self._entered  # One object: each access to a method makes another.
        self._num_running = 0
        self._num_shared = 0
        self._import: Callable[..., Any] = builtins.__import__

    @property
    def _is_on(self) -> bool:
        """Whether the running thread is followed."""
        return sys.gettrace() is self._enter

    def is_free(self) -> bool:
        """Whether nobody else traces this thread: coverage, or a debugger."""
        return self._is_on or sys.gettrace() is None

    def run(self, body: Callable[[], None], *, is_shared: bool) -> None:
        """Call a function, with the tracer on.

        Args:
            body: The function.
            is_shared: Whether others like it run on this thread: the last one turns it off.
        """
        if not self._num_running:
            self._import = builtins.__import__
            builtins.__import__ = self._imported
        self._num_running += 1
        self._num_shared += is_shared
        sys.settrace(self._enter)
        try:
            body()
        finally:
            self._num_running -= 1
            self._num_shared -= is_shared
            if not (is_shared and self._num_shared):
                sys.settrace(None)
            if not self._num_running:
                builtins.__import__ = self._import

    def _entered(self, frame: FrameType, _: str, __: object) -> Callable[..., Any] | None:
        """Note that a frame begins, or goes on (a generator); return what follows its lines."""
        code = self._codes.code(frame.f_code)
        track = None if code is None else self._track()
        if code is None or track is None:
            return None
        track.begin(code)
        return _following(track, code)

    def without(self, call: Callable[[], Any]) -> Any:  # noqa: ANN401 - what it returns
        """Call a function with the tracer off; return what it does."""
        if not self._is_on:
            return call()
        sys.settrace(None)
        try:
            return call()
        finally:
            sys.settrace(self._enter)

    def _imported(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,  # noqa: A002 - Python's names
        locals: Mapping[str, object] | None = None,  # noqa: A002
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:  # noqa: ANN401 - as Python's
        """Import as ever, with the tracer off if it is a library's module."""
        original = self._import
        if not self._is_on or not _is_library(_top_of(name, globals, level)):
            return original(name, globals, locals, fromlist, level)
        return self.without(lambda: original(name, globals, locals, fromlist, level))


def _top_of(name: str, names: Mapping[str, object] | None, level: int) -> str:
    if level and names is not None:
        name = str(names.get("__package__") or names.get("__name__") or "")
    return name.partition(".")[0]


@lru_cache(maxsize=1024)
def _is_library(top: str) -> bool:
    """Whether a package is no part of the program: it is installed, or Python's own."""
    if top in sys.stdlib_module_names:
        return True
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return False
    if spec is None:
        return False
    places = [spec.origin or "", *(spec.submodule_search_locations or ())]
    return any(map(is_installed, places))


def _following(track: Track, code: Code) -> Callable[..., Any]:
    """Return what Python calls for the lines of a frame.

    A generator may be closed where nobody is followed, or another rank: that is none of the track.
    """

    def follow(frame: FrameType, event: str, arg: Any) -> Callable[..., Any]:  # noqa: ANN401 - Python's
        if not track.is_in(code):
            return follow
        if event == "line":
            track.line(frame, frame.f_lineno)
        elif event == "return":
            track.end(frame, raised=arg is None and track.is_raising)
        elif event == "exception":
            track.raises(frame, arg[0])
        return follow

    return follow
