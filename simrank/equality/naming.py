"""Names of a rank's modules in the single program, found by the values of their parameters.

A stage of a pipeline counts its layers from zero, a wrapper adds a name in front of all others.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from simrank.equality.alignment import Elements
from simrank.equality.record import on_host, plain_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch.nn import Module

    from simrank.equality.record import Record

_MAX_ELEMENTS = 4_000_000  # Assumed: of models whose every parameter is looked up.


def names_of(
    parts: Sequence[Module], single: Record, renamed: Mapping[str, str]
) -> list[dict[str, str]]:
    """Return for each part the names of its modules that are others in the single program.

    Args:
        parts: The model of a rank, or its parts.
        single: What the single program did.
        renamed: Names that the user gives.
    """
    named = [[plain_name(n, renamed) for n, _ in part.named_parameters()] for part in parts]
    every = [name for names in named for name in names]
    count = sum(each.value.numel() for each in single.initial.values())
    are_known = set(every) <= set(single.initial) and len(set(every)) == len(every)
    if are_known and count > _MAX_ELEMENTS:
        return [dict(renamed) for _ in parts]
    elements = Elements(single.initial)
    return [{**_names_of(part, elements, renamed, single.kinds), **renamed} for part in parts]


def _names_of(
    part: Module, elements: Elements, renamed: Mapping[str, str], kinds: Mapping[str, str]
) -> dict[str, str]:
    """Return the shortest names that explain all names of a part's parameters."""
    own = {plain_name(name, renamed): type(each).__name__ for name, each in part.named_modules()}
    votes: Counter[tuple[str, str]] = Counter()
    for name, parameter in part.named_parameters():
        here = plain_name(name, renamed)
        places = elements.find(here, on_host(parameter))
        known = None if places is None else places[places >= 0]
        if known is None or not len(known):
            continue
        there = elements.name_of(int(known[0]))
        if there.rpartition(".")[2] == here.rpartition(".")[2]:
            pair = _without_common_end(here, there)
            # Tied parameters are those of modules of two types, which keep their names.
            if pair[0] not in kinds or own.get(pair[0]) == kinds.get(pair[1]):
                votes[pair] += 1
    found = {here: there for (here, there), _ in votes.most_common()[::-1] if here != there}
    return {**_by_number(part, found), **found}


def _without_common_end(here: str, there: str) -> tuple[str, str]:
    """Return two names without the parts at their ends that are the same."""
    one, other = here.split("."), there.split(".")
    while one and other and one[-1] == other[-1]:
        one.pop()
        other.pop()
    return ".".join(one), ".".join(other)


def _by_number(part: Module, found: Mapping[str, str]) -> dict[str, str]:
    """Return names of numbered modules without parameters, between those that have some."""
    shifts: dict[tuple[str, str], int] = {}
    for here, there in found.items():
        (home, _, number), (other, _, moved) = here.rpartition("."), there.rpartition(".")
        if number.isdigit() and moved.isdigit():
            shifts[home, other] = int(moved) - int(number)
    names = {}
    for name, _ in part.named_modules():
        home, _, number = plain_name(name).rpartition(".")
        for (here, there), shift in shifts.items():
            if home == here and number.isdigit():
                names[f"{home}.{number}".strip(".")] = f"{there}.{int(number) + shift}".strip(".")
    return names
