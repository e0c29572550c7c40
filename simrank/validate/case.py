"""One request of a team, and the answers that came to it."""

from __future__ import annotations

import pickle
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from simrank.errors.base import add_note
from simrank.validate.channel import Kind

if TYPE_CHECKING:
    from simrank.validate.channel import Frame


@dataclass(frozen=True, slots=True)
class Answer:
    """A rank's answer to a request.

    Attributes:
        is_return: Whether it returned; else it raised.
        body: The pickled result, or the exception as `worker` sends it.
        state: What the worker says of itself: counts of calls, and whether its groups are whole.
        arrived_s: When, on the monotonic clock.
        shown: `Type: text` of the exception.
        traceback: Its traceback.
    """

    is_return: bool
    body: bytes
    state: dict[str, Any]
    arrived_s: float
    shown: str = ""
    traceback: str = ""

    def exception(self) -> BaseException:
        """Return the rank's exception, or its text if it cannot be unpickled."""
        try:
            error: BaseException = pickle.loads(self.body)
        except Exception:  # noqa: BLE001 - none was sent, or its class is not importable here
            return RuntimeError(self.shown)
        add_note(error, f"in the worker:\n{self.traceback}")
        return error


@dataclass(slots=True)
class Case:
    """A request and the answers to it.

    Attributes:
        number: The request's.
        ranks: Who was asked.
        answers: What came, by rank.
        timeout_s: How long was waited at most.
        waiting: The calls in which ranks wait for others that never come, by rank.
        waiting_since_s: When these were seen first, on the monotonic clock.
        has_diverged: Whether that was long enough ago to be believed.
    """

    number: int
    ranks: tuple[int, ...]
    answers: dict[int, Answer]
    timeout_s: float
    waiting: dict[int, Any] = field(default_factory=dict)
    waiting_since_s: float = field(default_factory=time.monotonic)
    has_diverged: bool = False

    @property
    def is_answered(self) -> bool:
        """Whether all answered."""
        return len(self.answers) == len(self.ranks)

    @property
    def has_failed(self) -> bool:
        """Whether one raised."""
        return any(not answer.is_return for answer in self.answers.values())


def answer_of(frame: Frame) -> Answer:
    """Return the answer that a frame holds."""
    state, body = pickle.loads(frame.body)
    if frame.kind == Kind.RETURNED:
        return Answer(True, body, state, time.monotonic())
    pickled, shown, traceback = pickle.loads(body)
    return Answer(False, pickled or b"", state, time.monotonic(), shown, traceback)
