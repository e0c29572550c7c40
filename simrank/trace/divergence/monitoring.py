"""Python 3.12's monitoring, in place of a tracer: what is not followed runs at full speed.

Coverage and debuggers go on beside it. It sees all threads, so that each event asks who runs.

Source: the reference of `sys.monitoring`, PEP 669.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

    from simrank.trace.divergence.track import Code, Codes, Track

_monitoring: Any = getattr(sys, "monitoring", None)  # Python 3.11 has none.
_TOOLS = (3, 4)  # Those that Python gives to nobody.
_frame: Any = sys._getframe  # noqa: SLF001 - the documented way to a frame


def is_there() -> bool:
    """Whether this Python has it."""
    return _monitoring is not None


class Monitoring:
    """Follows the frames of ranks, on all threads; as `Tracing`.

    Args:
        codes: What is followed.
        track: Returns the track of the rank that runs, or None.
    """

    def __init__(self, codes: Codes, track: Callable[[], Track | None]) -> None:
        self._codes = codes
        self._track = track
        self._tool = -1
        self._num_running = 0

    def is_free(self) -> bool:
        """Whether a tool is left for it."""
        return self._tool >= 0 or any(_monitoring.get_tool(tool) is None for tool in _TOOLS)

    def run(self, body: Callable[[], None], *, is_shared: bool) -> None:  # noqa: ARG002 - for all
        """Call a function, with monitoring on."""
        if not self._num_running:
            self._start()
        self._num_running += 1
        try:
            body()
        finally:
            self._num_running -= 1
            if not self._num_running:
                self._stop()

    def without(self, call: Callable[[], Any]) -> Any:  # noqa: ANN401 - what it returns
        """Call a function; only the user's code is followed, and it is none of that."""
        return call()

    def _start(self) -> None:
        self._tool = next(tool for tool in _TOOLS if _monitoring.get_tool(tool) is None)
        _monitoring.use_tool_id(self._tool, "simrank")
        for event, call in self._calls().items():
            _monitoring.register_callback(self._tool, event, call)
        events = _monitoring.events
        everywhere = (events.PY_START, events.PY_RESUME, events.PY_THROW, events.PY_UNWIND)
        _monitoring.set_events(self._tool, sum(everywhere) | events.RAISE)
        _monitoring.restart_events()  # Those that another run has disabled.

    def _stop(self) -> None:
        _monitoring.set_events(self._tool, 0)
        for code in self._codes.known():
            _monitoring.set_local_events(self._tool, code, 0)
        for event in self._calls():
            _monitoring.register_callback(self._tool, event, None)
        _monitoring.free_tool_id(self._tool)
        self._tool = -1

    def _calls(self) -> dict[int, Callable[..., Any]]:
        events = _monitoring.events
        return {
            events.PY_START: self._begun, events.PY_RESUME: self._begun,
            events.PY_THROW: self._thrown_into, events.LINE: self._line,
            events.PY_RETURN: self._returned, events.PY_YIELD: self._returned,
            events.PY_UNWIND: self._unwound, events.RAISE: self._raised,
        }  # fmt: skip

    def _begun(self, code: CodeType, _: int) -> Any:  # noqa: ANN401 - Python's object
        own = self._codes.code(code)
        if own is None:
            return _monitoring.DISABLE
        events = _monitoring.events
        local = events.LINE | events.PY_RETURN | events.PY_YIELD
        if _monitoring.get_local_events(self._tool, code) != local:
            _monitoring.set_local_events(self._tool, code, local)
        self._begin(own)
        return None

    def _thrown_into(self, code: CodeType, _: int, __: BaseException) -> None:
        own = self._codes.code(code)
        if own is not None:
            self._begin(own)

    def _begin(self, own: Code) -> None:
        track = self._track()
        if track is not None:
            track.begin(own)

    def _within(self, code: CodeType) -> Track | None:
        """Return the track of who runs, if it has seen the frame begin."""
        own = self._codes.code(code)
        track = None if own is None else self._track()
        return track if own is not None and track is not None and track.is_in(own) else None

    def _line(self, code: CodeType, line: int) -> None:
        track = self._within(code)
        if track is not None:
            track.line(_frame(1), line)

    def _raised(self, code: CodeType, _: int, error: BaseException) -> None:
        track = self._within(code)
        if track is not None:
            track.raises(_frame(1), type(error))

    def _returned(self, code: CodeType, _: int, __: object) -> None:
        track = self._within(code)
        if track is not None:
            track.end(_frame(1), raised=False)

    def _unwound(self, code: CodeType, _: int, __: BaseException) -> None:
        track = self._within(code)
        if track is not None:
            track.end(_frame(1), raised=True)
