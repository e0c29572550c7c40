"""Cost levels: how long a collective takes, behind one interface.

`ScheduleCost` plays the schedule on the cluster's links. Further levels (closed forms of a library,
flows that share links with other groups) satisfy `CostModel` and can wrap one another.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from simrank.collectives.schedule import IntArray, Schedule
from simrank.collectives.time_network import NOT_ARRIVED, NOT_KNOWN, Interconnect
from simrank.collectives.time_rounds import TimePlayer

_Key: TypeAlias = tuple[Schedule, bytes, int, bytes]

# Assumed: 32 MiB of remembered completions, and routes of as many recent calls as a step has.
MAX_MEMO_ELEMENTS = 4 << 20
MAX_PLAYERS = 64


class CostModel(Protocol):
    """Says when the ranks of a collective are done."""

    @property
    def level(self) -> str:
        """Name of the level, for reports: "schedule" or "nccl"."""

    @property
    def network(self) -> Interconnect:
        """The hardware of the level."""

    @property
    def version(self) -> int:
        """Grows whenever equal questions get other answers from then on (a link is slow now)."""

    def completions(
        self, schedule: Schedule, arrivals_ps: npt.ArrayLike, *, devices: IntArray, itemsize: int
    ) -> IntArray:
        """Return when each rank is done, in picoseconds.

        Shapes: (n ranks)
            arrivals_ps, devices, returns: [n]

        Args:
            schedule: What the ranks run.
            arrivals_ps: When each rank calls, or `NOT_ARRIVED`.
            devices: Device of each rank.
            itemsize: Bytes of an element.

        Returns:
            Final times, and `NOT_KNOWN` where they depend on a rank that has not arrived.
        """


@dataclass(frozen=True, slots=True)
class Stretch:
    """A library's predicted time, and the time of the schedule that represents it.

    A library's closed form says how long a collective takes when all ranks arrive together on the
    cluster as it is described. Its schedule says what late ranks and slow links change. So its
    steps are played as much longer, or shorter, as the library takes in all (rule C3).

    Attributes:
        duration_ps: What the library takes, from the common arrival to the last completion.
        played_ps: What the schedule takes then.
        latency_ps: What of the duration is no flow of bytes.
    """

    duration_ps: int
    played_ps: int
    latency_ps: int = 0

    def completions(
        self,
        cost: CostModel,
        schedule: Schedule,
        arrivals_ps: npt.ArrayLike,
        *,
        devices: IntArray,
        itemsize: int,
    ) -> IntArray:
        """Return when each rank is done, in picoseconds; see `CostModel`.

        Times are linear in the costs of all steps: with arrivals that are that much closer
        together, the schedule is played at its own speed, and its ends are put that much later.
        Where all depend on all, they end together: of a time that is one number for all ranks, the
        differences of the schedule's ends would be invented.
        """
        arrivals = np.asarray(arrivals_ps, dtype=np.int64)
        known = arrivals < NOT_ARRIVED
        if not known.any():
            return np.full_like(arrivals, NOT_KNOWN)
        last = int(arrivals[known].max())
        ahead = np.rint((last - arrivals[known]) / self.duration_ps * self.played_ps)
        played = np.full_like(arrivals, NOT_ARRIVED)
        played[known] = ahead.max() - ahead
        ends = cost.completions(schedule, played, devices=devices, itemsize=itemsize)
        done = ends < NOT_KNOWN
        stretched = np.full_like(ends, NOT_KNOWN)
        after = (ends[done] - ahead.max()) / self.played_ps * self.duration_ps
        if schedule.synchronizing and done.all():
            after[:] = after.max()
        stretched[done] = last + np.rint(after).astype(np.int64)
        return stretched


def cost_level(network: Interconnect) -> CostModel:
    """Return the schedule level of some hardware."""
    return ScheduleCost(network)


class ScheduleCost:
    """The schedule level: round by round on the cluster's links.

    Completions depend on arrivals only through their differences, so a collective that repeats
    with the same skew is looked up.

    Attributes:
        network: The hardware; frozen, as long as this object lives.
    """

    level = "schedule"
    version = 0  # The hardware is frozen.

    def __init__(self, network: Interconnect) -> None:
        self.network = network
        self._players: OrderedDict[tuple[Schedule, bytes, int], TimePlayer] = OrderedDict()
        self._memo: OrderedDict[_Key, IntArray] = OrderedDict()
        self._memo_elements = 0

    def completions(
        self, schedule: Schedule, arrivals_ps: npt.ArrayLike, *, devices: IntArray, itemsize: int
    ) -> IntArray:
        """Return when each rank is done, in picoseconds; see `CostModel`."""
        arrivals = np.asarray(arrivals_ps, dtype=np.int64)
        known = arrivals < NOT_ARRIVED
        if not known.any():
            return np.full_like(arrivals, NOT_KNOWN)
        begin = int(arrivals.min())
        skew = np.where(known, arrivals - begin, NOT_ARRIVED)
        key = (schedule, devices.tobytes(), itemsize, skew.tobytes() if skew.any() else b"")
        ends = self._memo.get(key)
        if ends is None:
            ends = self._player(schedule, devices, itemsize).completions(skew)
            self._remember(key, ends)
        else:
            self._memo.move_to_end(key)
        return np.where(ends < NOT_KNOWN, ends + begin, NOT_KNOWN)

    def _player(self, schedule: Schedule, devices: IntArray, itemsize: int) -> TimePlayer:
        key = (schedule, devices.tobytes(), itemsize)
        if key not in self._players:
            if len(self._players) >= MAX_PLAYERS:
                self._players.popitem(last=False)
            self._players[key] = TimePlayer(
                schedule, network=self.network, devices=devices, itemsize=itemsize
            )
        return self._players[key]

    def _remember(self, key: _Key, ends: IntArray) -> None:
        self._memo[key] = ends
        self._memo_elements += len(ends)
        while self._memo_elements > MAX_MEMO_ELEMENTS and len(self._memo) > 1:
            _, dropped = self._memo.popitem(last=False)
            self._memo_elements -= len(dropped)
