"""Max-min fair sharing of resources among activities: links, SMs and memory bandwidth alike.

Each activity runs at one rate and loads a few resources in proportion to it. `max_min_rates`
raises all rates together; where a resource is full, the activities that use it stay at the rate
they have. So flows of equal demand that cross the same full link get equal rates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simrank.engine import Activity, Resource

FloatArray = npt.NDArray[np.float64]

# Assumed: levels that agree to this are equal within rounding.
_TOLERANCE = 1e-12


class _Entries(NamedTuple):
    """The demands as parallel arrays, one entry per (activity, resource) pair."""

    activity: npt.NDArray[np.int64]
    resource: npt.NDArray[np.int64]
    demand: FloatArray


def max_min_rates(
    demands: Sequence[Sequence[tuple[int, float]]],
    capacities: npt.ArrayLike,
    caps: npt.ArrayLike | None = None,
    weights: npt.ArrayLike | None = None,
) -> FloatArray:
    """Return the weighted max-min fair rate of each activity, by progressive filling.

    Args:
        demands: For each activity its (resource, demand) pairs: units of the resource per unit
            of rate, above zero. A link is (link, 1.0) for a rate in bytes per second.
        capacities: [R] units that each resource has per second; `inf` is no limit.
        caps: [N] rate that each activity does not exceed, or None for no limit.
        weights: [N] an activity of weight 2 gets twice the rate of one of weight 1, or None for
            equal weights.

    Returns:
        [N] rates; `inf` for an activity that nothing limits.

    Raises:
        ValueError: A demand, capacity, cap or weight is out of range.

    Source: Bertsekas and Gallager, "Data Networks", 1992, section 6.5.2.
    """
    num_activities = len(demands)
    capacity = np.asarray(capacities, dtype=np.float64)
    cap = _per_activity(caps, num_activities, np.inf, "caps")
    weight = _per_activity(weights, num_activities, 1.0, "weights")
    counts = np.array([len(pairs) for pairs in demands], dtype=np.int64)
    activity = np.repeat(np.arange(num_activities), counts)
    pairs = [pair for pairs in demands for pair in pairs]
    resource = np.array([pair[0] for pair in pairs], dtype=np.int64)
    demand = np.array([pair[1] for pair in pairs], dtype=np.float64)
    _check_range(resource, demand, capacity, cap, weight)
    return _fill(_Entries(activity, resource, demand), capacity, cap, weight)


def _fill(
    entries: _Entries, capacity: FloatArray, cap: FloatArray, weight: FloatArray
) -> FloatArray:
    """Freeze bottlenecks until every activity has its rate.

    A resource that would be full before every other resource of its activities is a bottleneck
    independently of the rest, because the level at which a resource is full only rises when
    others freeze. So all of them are frozen at once instead of the lowest one alone.
    """
    rates = np.full(len(cap), np.inf)
    active = np.ones(len(cap), dtype=bool)
    left = capacity.copy()
    while active.any():
        activity, resource, demand = entries
        running = np.bincount(resource, demand * weight[activity], len(capacity))
        with np.errstate(divide="ignore", invalid="ignore"):
            full_at = np.where(running > 0, np.maximum(left, 0.0) / running, np.inf)
        level = np.where(active, cap / weight, np.inf)
        np.minimum.at(level, activity, full_at[resource])
        is_later = level[activity] < full_at[resource] * (1 - _TOLERANCE)
        is_bottleneck = np.bincount(resource, is_later, len(capacity)) == 0
        is_capped = cap / weight <= level
        frozen = active & is_capped
        frozen[activity[is_bottleneck[resource]]] = True
        frozen &= level < np.inf
        if not frozen.any():
            break
        rates[frozen] = np.where(is_capped, cap, np.minimum(level * weight, cap))[frozen]
        active &= ~frozen
        is_spent = frozen[activity]
        spent = demand[is_spent] * rates[activity[is_spent]]
        left -= np.bincount(resource[is_spent], spent, len(capacity))
        stays = ~is_spent
        entries = _Entries(activity[stays], resource[stays], demand[stays])
    return rates


def _per_activity(
    values: npt.ArrayLike | None, num_activities: int, default: float, name: str
) -> FloatArray:
    """Return one number per activity."""
    if values is None:
        return np.full(num_activities, default)
    array = np.asarray(values, dtype=np.float64)
    if array.shape != (num_activities,):
        raise ValueError(f"{name} must hold {num_activities} numbers, got shape {array.shape}")
    return array


def _check_range(
    resource: npt.NDArray[np.int64],
    demand: FloatArray,
    capacity: FloatArray,
    cap: FloatArray,
    weight: FloatArray,
) -> None:
    """Raise if a number is out of range."""
    if resource.size and not (resource.min() >= 0 and resource.max() < len(capacity)):
        raise ValueError(f"resources are 0 to {len(capacity) - 1}")
    if not ((demand > 0) & np.isfinite(demand)).all():
        raise ValueError("a demand must be above zero and finite")
    if not (capacity >= 0).all() or not (cap >= 0).all():
        raise ValueError("capacities and caps must not be negative")
    if not ((weight > 0) & np.isfinite(weight)).all():
        raise ValueError("a weight must be above zero and finite")


# ---- Max-min sharing, for the engine's activities ----


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
