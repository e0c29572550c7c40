"""Seeded, bounded delays of calls, wakeups, operations and transfers, to find races.

How long a delay is depends only on the seed and on its point: the kind, the rank, and the number of
the point among those of that kind on that rank. So one delay can be left out without moving the
others, and a failure can be shrunk to the delays that it needs (ADR 0011). A run also hashes the
order in which ranks come to what they share, to show whether a delay has changed one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple
from weakref import ref

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from simrank.engine.callsite import CallSite

DEFAULT_MAX_PS = 1_000_000_000  # assumed: 1 ms is far above a launch, below a user's timeout
HOST, WAKE, STREAM, TRANSFER, SHARED = "h", "w", "s", "t", "c"
KINDS = {
    HOST: "a host call",
    WAKE: "a wakeup",
    STREAM: "the start of an operation",
    TRANSFER: "a transfer",
    SHARED: "a call on a shared object",
}
_MASK = (1 << 64) - 1
# Assumed: a seed picks one value of each. Few long delays find other bugs than many short ones do,
# and one slow rank finds others than many slow ranks.
_ONE_IN = (2, 8, 32, 128)
_SHRUNK_BY = (1, 10, 100, 1000)
_RANKS_ONE_IN = (1, 2, 8)


class DelayPoint(NamedTuple):
    """A point of a run that may be late.

    Attributes:
        kind: One of `KINDS`.
        rank: The rank that it belongs to; -1 if it belongs to none.
        number: Its number among the points of this kind on this rank, from 0.
    """

    kind: str
    rank: int
    number: int

    def __str__(self) -> str:
        """Return the point as `--delays` takes it, for example `h3.12`."""
        return f"{self.kind}{self.rank}.{self.number}"


@dataclass(frozen=True, slots=True)
class Delay:
    """A delay that was applied.

    Attributes:
        point: What was late.
        delay_ps: By how much, in picoseconds.
        site: The user's line; None without a request, or if unknown.
    """

    point: DelayPoint
    delay_ps: int
    site: CallSite | None = None

    def __str__(self) -> str:
        """Return a report line: rank, kind of delay, source line and amount."""
        whose = "no rank's" if self.point.rank < 0 else f"rank {self.point.rank}:"
        where = "" if self.site is None else f" at {self.site.line()}"
        kind = KINDS[self.point.kind]
        return f"{whose} {kind}{where} is {self.delay_ps / 1e6:.3f} us late ({self.point})"


class Delays:
    """Injected delays of one run; their seed also permutes equal simulated times.

    Args:
        seed: Decides which points are late, and by how much.
        max_ps: The longest delay, in picoseconds.
        only: The points that may be late; None for all that the seed picks.

    Attributes:
        applied: The delays of the run so far, in order.
        orders: The order in which ranks came to what they share.
        exit_codes: Of the processes that ranks started and that have ended, by rank.
        clock_scale: Factor of the times that programs read, and of no other.
    """

    clock_scale = 1

    def __init__(
        self, seed: int, *, max_ps: int = DEFAULT_MAX_PS, only: Iterable[DelayPoint] | None = None
    ) -> None:
        if seed < 1:
            raise ValueError(f"delays of seed {seed}: expected a seed from 1")
        if max_ps < 1:
            raise ValueError(f"delays of at most {max_ps} ps: expected 1 or more")
        self.seed = seed
        self.max_ps = max_ps
        self.only = None if only is None else frozenset(only)
        self.applied: list[Delay] = []
        self.orders = Orders()
        self.exit_codes: dict[int | None, list[int]] = {}
        self._tracks: dict[tuple[str, int], _Track] = {}
        picked = _mix(seed)
        self._one_in = _ONE_IN[picked % len(_ONE_IN)]
        self._bound_ps = max(max_ps // _SHRUNK_BY[(picked >> 8) % len(_SHRUNK_BY)], 1)
        self._ranks_one_in = _RANKS_ONE_IN[(picked >> 16) % len(_RANKS_ONE_IN)]

    @classmethod
    def parse(cls, text: str, *, max_ps: int = DEFAULT_MAX_PS) -> Delays:
        """Return the delays that a text stands for, as `str` writes them.

        `17` is all delays of seed 17, `17:h3.12,w0.4` two of them, `17:` none.

        Raises:
            ValueError: The text is none of these.
        """
        seed, colon, listed = text.partition(":")
        try:
            points = [_parse_point(part) for part in listed.split(",") if part]
            return cls(int(seed), max_ps=max_ps, only=points if colon else None)
        except (ValueError, IndexError):
            expected = "a seed from 1, with points such as 17:h3.12,w0.4"
            raise ValueError(f"expected {expected}, got {text!r}") from None

    @classmethod
    def none(cls, seed: int = 0, *, clock_scale: int = 1) -> Delays:
        """Return no delays, for a run that others are compared with; `seed` is the Context's."""
        made = cls(1, only=())
        made.seed, made.clock_scale = seed, clock_scale
        return made

    def __str__(self) -> str:
        """Return the text that replays these delays, given the same `max_ps`."""
        if self.only is None:
            return str(self.seed)
        return f"{self.seed}:{','.join(str(point) for point in sorted(self.only))}"

    def afresh(self, only: Iterable[DelayPoint] | None = None) -> Delays:
        """Return equal delays for another run; with `only`, at these points alone."""
        return Delays(self.seed, max_ps=self.max_ps, only=self.only if only is None else only)

    def draw(self, kind: str, rank: int | None, site: Callable[[], CallSite | None]) -> int:
        """Return the delay of the next point of a kind and rank, in picoseconds; often 0.

        Args:
            kind: One of `KINDS`.
            rank: The rank that the point belongs to, or None.
            site: Returns the user's line. It is called only in a replay of listed points, since it
                takes time.
        """
        owner = -1 if rank is None else rank
        key = (kind, owner)
        track = self._tracks.get(key)
        if track is None:
            track = self._tracks[key] = self._new_track(kind, owner)
        number = track.num_points
        track.num_points = number + 1
        if not track.is_late:
            return 0
        # `_mix`, written out: it is drawn at every step of a run.
        mixed = (((number << 8) | track.kind) + 0x9E37_79B9_7F4A_7C15) & _MASK
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58_476D_1CE4_E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D0_49BB_1331_11EB) & _MASK
        drawn = _mix(track.own ^ mixed ^ (mixed >> 31))
        if drawn % self._one_in:
            return 0
        point = DelayPoint(kind, owner, number)
        if self.only is not None and point not in self.only:
            return 0
        delay_ps = 1 + ((drawn >> 16) & 0xFFFF_FFFF) * self._bound_ps // (1 << 32)
        self.applied.append(Delay(point, delay_ps, None if self.only is None else site()))
        return delay_ps

    def _new_track(self, kind: str, owner: int) -> _Track:
        """Return the points of a kind and rank: none is late where the seed spares the rank."""
        own = _mix(self.seed ^ _mix(owner + 2))
        return _Track(ord(kind), own, is_late=own % self._ranks_one_in == 0)


class Orders:
    """Hashes of the order in which ranks came to each shared object, per kind of object."""

    def __init__(self) -> None:
        self._turns: dict[tuple[str, Hashable], _Turns] = {}
        self._ended: dict[str, int] = {}

    def note(self, kind: str, key: Hashable, caller: Hashable, owner: object = None) -> None:
        """Note that a rank, or a thread of one, comes to an object.

        Args:
            kind: Of the object, in the plural, for reports.
            key: Tells the object from others of its kind while it lives.
            caller: The rank, or what tells its thread from others.
            owner: The object whose end is the end of the key; None: the key stays.
        """
        turns = self._turns.get((kind, key))
        if turns is None:
            turns = self._turns[kind, key] = _Turns()
            if owner is not None:
                turns.owner = ref(owner, lambda _: self._end(kind, key))
        if turns.last != caller:  # Polls of one rank count once.
            turns.num_changes += 1
            turns.last = caller
            turns.digest = _mix(turns.digest ^ hash(caller) & _MASK)

    def _end(self, kind: str, key: Hashable) -> None:
        """Fold an object that is gone into the sum of its kind."""
        turns = self._turns.pop((kind, key))
        if turns.num_changes > 1:
            self._ended[kind] = self._ended.get(kind, 0) + turns.digest & _MASK

    def digests(self) -> dict[str, int]:
        """Return a number per kind of which two ranks shared an object; another order, another."""
        digests = dict(self._ended)
        for (kind, _), turns in list(self._turns.items()):
            if turns.num_changes > 1:
                digests[kind] = digests.get(kind, 0) + turns.digest & _MASK
        return digests


class _Turns:
    """The ranks that came to one object: the last, the number of changes, a hash of all."""

    __slots__ = ("digest", "last", "num_changes", "owner")

    def __init__(self) -> None:
        self.last: Hashable = None
        self.num_changes = self.digest = 0
        self.owner: object = None


class _Track:
    """The points of one kind on one rank."""

    __slots__ = ("is_late", "kind", "num_points", "own")

    def __init__(self, kind: int, own: int, *, is_late: bool) -> None:
        self.kind = kind
        self.own = own
        self.is_late = is_late
        self.num_points = 0


def _parse_point(text: str) -> DelayPoint:
    rank, _, number = text[1:].partition(".")
    if text[0] not in KINDS:
        raise ValueError(text)
    return DelayPoint(text[0], int(rank), int(number))


def _mix(number: int) -> int:
    """Return 64 well mixed bits (splitmix64, Steele, Lea and Flood 2014)."""
    mixed = (number + 0x9E37_79B9_7F4A_7C15) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58_476D_1CE4_E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D0_49BB_1331_11EB) & _MASK
    return mixed ^ (mixed >> 31)
