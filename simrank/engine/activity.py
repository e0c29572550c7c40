"""Activities in flight that share resources: remaining work, rate, demands (E11)."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from simrank.engine.loop import Engine
    from simrank.engine.queue import Wakeup

# A float's error in work left, as a part of all the work: without it an end that should fall on a
# picosecond could slip to the next. Assumed: some 50 changes of rate, each off by half a last bit.
_ROUNDING = 1e-14


class Resource:
    """Something that activities share: SMs, memory bandwidth, one direction of a link.

    Args:
        name: For reports; or a function that returns it, for many that are never reported.
        capacity: As the attribute.

    Attributes:
        capacity: Units per picosecond that all activities together may use.
        held: Capacity that is taken away for now (a collective that spins on its SMs).
        users: The activities in flight that demand some of it, but for that of its claim.
        claim: What has it for itself, with others; None where nothing has.
    """

    __slots__ = ("_name", "capacity", "claim", "held", "users")

    def __init__(self, name: str | Callable[[], str], capacity: float) -> None:
        self._name = name
        self.capacity = capacity
        self.held = 0.0
        self.users: dict[Activity, None] = {}
        self.claim: Claim | None = None

    @property
    def name(self) -> str:
        """Return its name, for reports."""
        return self._name if isinstance(self._name, str) else self._name()

    @property
    def free(self) -> float:
        """Capacity that activities may share now."""
        return max(self.capacity - self.held, 0.0)


class Claim:
    """Resources that activities with the same demands use again and again, most often alone.

    While no other activity demands one of them, a start and an end are the claim's, whose resources
    need not be looked at: a collective crosses dozens of links, and thousands of groups do.

    Attributes:
        demands: As those activities'.
        is_whole: Whether it has all of them for itself.
        active: The activity that runs now, if it has.
    """

    __slots__ = ("active", "demands", "is_whole")

    def __init__(self, demands: Sequence[tuple[Resource, float]]) -> None:
        self.demands = demands
        self.is_whole = False
        self.active: Activity | None = None

    def take(self, activity: Activity) -> None:
        """Reserve all units of idle resources for one activity."""
        self.is_whole, self.active = True, activity
        for resource, _ in self.demands:
            resource.claim = self

    def give_up(self) -> None:
        """Share the resources again: the running activity becomes an ordinary user of them."""
        activity, self.active, self.is_whole = self.active, None, False
        for resource, _ in self.demands:
            resource.claim = None
            if activity is not None:
                resource.users[activity] = None


class Activity:
    """Work in flight.

    Attributes:
        work: All of it, in units of its own (bytes; or picoseconds of the time it takes alone).
        work_left: What is left of it.
        rate: Work done per picosecond now.
        demands: Per resource, how much of it one unit of work per picosecond uses.
        max_rate: The rate when nothing is shared; infinity if only resources limit it.
        weight: Where activities share, their rates are in proportion to their weights.
        alone_rate: The rate when nothing is shared, where its maker knows it.
        settled_ps: Up to when its pool has accounted for the work done.
        wakeup: Where its pool has queued its end, if that is known.
        claim: The claim of its idle resources; None if they are few.
        on_rate: Called with each new rate, or None.
    """

    __slots__ = (
        "alone_rate", "claim", "demands", "done", "max_rate", "on_rate", "rate", "settled_ps",
        "wakeup", "weight", "work", "work_left",
    )  # fmt: skip
    is_collective = None  # For the deadlock report, if it stalls forever.

    def __init__(
        self,
        work: float,
        demands: Sequence[tuple[Resource, float]],
        done: Callable[[], None],
        *,
        max_rate: float = float("inf"),
        weight: float = 1.0,
    ) -> None:
        self.work = self.work_left = work
        self.demands = tuple(demands)
        self.done = done
        self.max_rate = max_rate
        self.weight = weight
        self.rate = 0.0
        self.alone_rate: float | None = None
        self.settled_ps = 0
        self.wakeup: Wakeup | None = None
        self.claim: Claim | None = None
        self.on_rate: Callable[[float], None] | None = None

    def pending_ranks(self) -> Iterator[tuple[None, str, None]]:
        """Yield the cause of its delay, for the deadlock report; no rank has called it."""
        empty = [resource.name for resource, demand in self.demands if demand and not resource.free]
        yield None, f"work stalled, nothing left of {', '.join(empty) or 'what it needs'}", None

    def absent_ranks(self) -> Iterator[tuple[int, str]]:
        """Yield nothing: it waits for resources."""
        return iter(())


class Solver(Protocol):
    """Shares resources; simrank's is `hardware.sharing.solve_rates`."""

    def __call__(self, activities: Sequence[Activity]) -> Sequence[float]:
        """Return the rate of each activity, in work per picosecond."""


class ActivityPool:
    """The activities that may share resources with one another, and their rates.

    A start, an end or a change of capacity settles the work done so far and re-queues the
    projected ends. Changes of one simulated time are solved once, and only for what shares
    something, directly or through others, with what has changed.
    """

    def __init__(self, engine: Engine, solve: Solver) -> None:
        self._engine = engine
        self._solve = solve
        self._active: dict[Activity, None] = {}
        self._changed: dict[Resource, None] = {}

    def __len__(self) -> int:
        """Return the number of activities in flight."""
        return len(self._active)

    def start(self, activity: Activity) -> None:
        """Put an activity in flight now; `activity.done()` is called from the hub at its end."""
        activity.settled_ps = self._engine.now_ps
        self._active[activity] = None
        claim = activity.claim
        if claim is not None and claim.is_whole and claim.active is None:
            claim.active, shared = activity, []
        else:
            shared = self._join(activity, claim)
        if shared:
            self._touch(shared)
        else:  # No sharing: the rate is known without a solve.
            known = activity.alone_rate
            self._set_rate(activity, rate_alone(activity) if known is None else known)

    def _join(self, activity: Activity, claim: Claim | None) -> list[Resource]:
        """Add an activity to its resources; return the activities whose rates may change."""
        shared, changed = [], self._changed
        for resource, _ in activity.demands:
            if resource.claim is not None:
                resource.claim.give_up()
            if resource.users or resource.held > 0 or resource in changed:
                shared.append(resource)
        if claim is not None and not shared:
            claim.take(activity)
        else:
            for resource, _ in activity.demands:
                resource.users[activity] = None
        return shared

    def change(self, resource: Resource, *, capacity: float | None = None, held: float = 0) -> None:
        """Change a resource now: set its capacity, and add `held` to its reserved units."""
        if resource.claim is not None:
            resource.claim.give_up()
        if capacity is not None:
            resource.capacity = capacity
        resource.held += held
        if resource.users:
            self._touch([resource])

    def drop(self, activity: Activity) -> None:
        """Take an activity out of flight without its end (its rank was aborted)."""
        if activity in self._active:
            self._remove(activity)
            if activity.wakeup is not None:
                self._engine.cancel(activity.wakeup)

    def _touch(self, resources: Iterable[Resource]) -> None:
        if not self._changed:
            self._engine.call_at(self._engine.now_ps, self._rebalance)
        self._changed.update(dict.fromkeys(resources))

    def _rebalance(self) -> None:
        now_ps = self._engine.now_ps
        activities = _connected(self._changed)
        self._changed = {}
        for activity in activities:
            elapsed_ps = now_ps - activity.settled_ps
            if elapsed_ps:  # An infinite rate times no time is not a number.
                activity.work_left = max(activity.work_left - activity.rate * elapsed_ps, 0.0)
                activity.settled_ps = now_ps
        if len(activities) == 1:  # Most often: no other one is left.
            self._set_rate(activities[0], rate_alone(activities[0]))
            return
        rates = self._solve(activities) if activities else ()
        for activity, rate in zip(activities, rates, strict=True):
            self._set_rate(activity, float(rate))

    def _set_rate(self, activity: Activity, rate: float) -> None:
        assert rate >= 0 <= activity.work_left, "work is not undone (E11)"
        wakeup = activity.wakeup
        if wakeup is not None:
            if rate == activity.rate:
                return
            self._engine.cancel(wakeup)
        activity.rate = rate
        activity.wakeup = None
        if activity.on_rate is not None:
            activity.on_rate(rate)
        work_left = activity.work_left - activity.work * _ROUNDING
        if work_left > 0 and rate <= 0:  # Until something is freed; if nothing is, a deadlock.
            self._engine.pending[activity] = None
            return
        self._engine.pending.pop(activity, None)
        left_ps = ceil(work_left / rate) if work_left > 0 else 0
        end_ps = self._engine.now_ps + left_ps
        activity.wakeup = self._engine.call_at(end_ps, lambda: self._end(activity))

    def _end(self, activity: Activity) -> None:
        self._remove(activity)
        activity.work_left = 0.0
        activity.wakeup = None  # It refers back: let reference counts free both.
        activity.done()

    def _remove(self, activity: Activity) -> None:
        del self._active[activity]
        self._engine.pending.pop(activity, None)
        claim = activity.claim
        if claim is not None and claim.active is activity:
            claim.active = None
            return
        left = []
        for resource, _ in activity.demands:
            resource.users.pop(activity, None)
            if resource.users:
                left.append(resource)
        if left:
            self._touch(left)


def _connected(resources: Iterable[Resource]) -> list[Activity]:
    """Return the activities that use some resources, and all that share a resource with them."""
    found: dict[Activity, None] = {}
    known = dict.fromkeys(resources)
    waiting = list(known)
    while waiting:
        for activity in waiting.pop().users:
            if activity in found:
                continue
            found[activity] = None
            for resource, _ in activity.demands:
                if resource not in known:
                    known[resource] = None
                    waiting.append(resource)
    return list(found)


def rate_alone(activity: Activity) -> float:
    """Return the rate of an activity that shares nothing."""
    limits = [resource.free / demand for resource, demand in activity.demands if demand > 0]
    return min([activity.max_rate, *limits])
