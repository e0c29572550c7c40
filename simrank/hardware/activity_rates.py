"""Max-min sharing, for the engine's activities: one solver serves links, SMs and memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simrank.hardware.sharing import max_min_rates

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simrank.engine import Activity, Resource


def solve_rates(activities: Sequence[Activity]) -> Sequence[float]:
    """Return the rates of activities that share resources.

    A resource gives what is not held; an activity never runs faster than alone.
    """
    numbers: dict[Resource, int] = {}
    demands = [
        [(numbers.setdefault(r, len(numbers)), demand) for r, demand in activity.demands if demand]
        for activity in activities
    ]
    capacities = [resource.free for resource in numbers]
    rates: Sequence[float] = max_min_rates(
        demands,
        capacities,
        [activity.max_rate for activity in activities],
        [activity.weight for activity in activities],
    ).tolist()
    return rates
