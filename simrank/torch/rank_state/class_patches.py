"""Methods that a rank replaces on torch's classes, swapped at its turns.

Python sends no notice of a changed class, but it invalidates the version tag of the class and of
all its subclasses. So one class that is derived from all watched classes is checked as a turn ends
(40 ns). If its tag is invalid, the classes are compared with their saved attributes (0.3 ms), and
every difference becomes a patch of the rank.

Not watched: classes with a metaclass or a base of C++ (scripts, `autograd.Function`), those that
torch changes itself as it runs (`DistributedDataParallel`), and those imported while ranks run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.optim import optimizer as _optimizers

from simrank.isolation import mock_patches

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from simrank.engine import Engine, Task

_IS_CACHED = 1 << 19  # Source: Py_TPFLAGS_VALID_VERSION_TAG of CPython's object.h.
_KEPT_BY_PYTHON = ("__annotations__", "__slotnames__")  # Set at the first read.
_HOMES = ("torch.nn.modules.", "torch.optim.")


class Watched:
    """torch's classes whose methods programs replace, and their original attributes.

    Args:
        roots: They, and what torch has derived from them.
    """

    def __init__(self, roots: Sequence[type]) -> None:
        self._roots = tuple(roots)
        self._kinds: list[type] = []
        self._last: tuple[type, ...] = ()
        self._were: dict[type, dict[str, object]] = {}

    def look(self) -> None:
        """Save the attributes of the classes, unless they are saved already."""
        if self._kinds and not self.are_changed():
            return
        if not self._kinds:
            self._kinds = [kind for root in self._roots for kind in _derived_from(root)]
            bases = {base for kind in self._kinds for base in kind.__bases__}
            self._last = (*_of_all([kind for kind in self._kinds if kind not in bases]),)
        self._were = {kind: dict(vars(kind)) for kind in self._kinds}
        self._settle()

    def begin_turn(self, engine: Engine) -> None:
        """Save changes of the main program; swapped patches of ranks do not count."""
        if mock_patches.are_held(engine):
            self._settle()
        else:
            self.look()

    def end_turn(self, task: Task) -> None:
        """Record the changes of a rank as its patches."""
        for kind, were in self._were.items():
            for name, before in _changes(were, vars(kind)):
                value = vars(kind).get(name, mock_patches.ABSENT)
                if name in _KEPT_BY_PYTHON or _is_not_the_programs(before, value):
                    _update(were, name, value)
                else:
                    mock_patches.note(task, kind, name, before)
        mock_patches.drop_restored(task)
        self._settle()

    def are_changed(self) -> bool:
        """Return whether a class has changed since the last check."""
        for kind in self._last:  # noqa: SIM110 - a generator takes longer, twice a turn
            if not kind.__flags__ & _IS_CACHED:
                return True
        return False

    def _settle(self) -> None:
        for kind in self._last:  # Looking a name up marks a class, and its bases, as unchanged.
            getattr(kind, "__init__", None)


def _derived_from(root: type) -> Iterator[type]:
    """Yield a class and torch's subclasses of it that can be subclassed."""
    yield root
    kinds: list[type] = type.__subclasses__(root)
    for kind in kinds:
        is_plain = type(kind) is type(root) and "__init_subclass__" not in vars(kind)
        if is_plain and f"{kind.__module__}.".startswith(_HOMES):
            yield from _derived_from(kind)


def _of_all(kinds: Sequence[type]) -> Iterator[type]:
    """Yield classes derived from all of these; one, if their orders of bases agree."""
    kinds = list(dict.fromkeys(kinds))
    try:
        yield type(kinds[0])("_Last", tuple(kinds), {"__module__": __name__})
    except TypeError:
        if len(kinds) == 1:
            raise
        middle = len(kinds) // 2
        yield from _of_all(kinds[:middle])
        yield from _of_all(kinds[middle:])


def _changes(were: dict[str, object], are: Any) -> list[tuple[str, object]]:
    """Return the changed attributes of a class, with their former values."""
    found = [
        (name, value)
        for name, value in were.items()
        if are.get(name, mock_patches.ABSENT) is not value
    ]
    if len(found) + len(are) > len(were):  # Else nothing has come to it.
        found += [(name, mock_patches.ABSENT) for name in are if name not in were]
    return found


def _update(were: dict[str, object], name: str, value: object) -> None:
    if value is mock_patches.ABSENT:
        were.pop(name, None)
    else:
        were[name] = value


def _is_not_the_programs(before: object, value: object) -> bool:
    """Return whether simrank or torch changed an attribute, and not the program."""
    home, earlier = _home_of(value), _home_of(before)
    is_put_back = earlier.startswith("simrank.") and home.partition(".")[0] in ("", "torch")
    return is_put_back or home.startswith("simrank.") or home == _optimizers.__name__


def _home_of(value: Any) -> str:
    """Return the name of the module that defines a method or property."""
    function = getattr(value, "fget", None) or getattr(value, "__func__", value)
    return str(getattr(function, "__globals__", {}).get("__name__", ""))


_watched: list[Watched] = []


def look() -> None:
    """Save the attributes of the classes as a Context is entered."""
    if not _watched:
        _watched.extend(
            [Watched([torch.nn.Module]), Watched([torch.optim.Optimizer]), Watched([torch.Tensor])]
        )
    for each in _watched:
        each.look()


def begin_turn(engine: Engine) -> None:
    """Save changes of the main program."""
    for each in _watched:
        if each.are_changed():
            each.begin_turn(engine)


def end_turn(task: Task | None) -> None:
    """Record the changes of a rank in its turn."""
    for each in _watched:
        if task is not None and each.are_changed():
            each.end_turn(task)
