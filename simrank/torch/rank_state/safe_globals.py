"""Classes that `torch.load` may make: those that a rank's own modules allow are its own.

torch keeps a set per process. Classes that shared modules allow, as torch's do when they are
imported, are allowed for all ranks.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch._weights_only_unpickler as unpickler

from simrank.isolation.private_modules import private_modules
from simrank.ranks.current import rank_program
from simrank.torch.rank_state.custom_operators import definer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from simrank.ranks.current import Program

    Patches = list[tuple[Any, str, Any]]

_SET = "_marked_safe_globals_set"
_READERS = ("_get_safe_globals", "_get_user_allowed_globals")
_WRITERS = ("_add_safe_globals", "_clear_safe_globals", "_remove_safe_globals")
_KEY = "classes that torch.load may make"  # In `Program.local`: added, and removed.


def patches() -> Patches:
    """Return the patches of torch: owner, name and new value."""
    return [(unpickler, name, _of_rank(name)) for name in (*_READERS, *_WRITERS)]


def _of_rank(name: str) -> Callable[..., Any]:
    """Return a function that reads or changes the set of the running rank."""
    original = getattr(unpickler, name)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        program = rank_program()
        if program is None or (name in _WRITERS and not _is_ranks(program, *args)):
            return original(*args, **kwargs)
        common: set[Any] = getattr(unpickler, _SET)
        added, removed = program.local.get(_KEY, (set(), set()))
        try:
            setattr(unpickler, _SET, (common - removed) | added)
            result = original(*args, **kwargs)
            own = getattr(unpickler, _SET)
        finally:
            setattr(unpickler, _SET, common)
        program.local[_KEY] = (own - common, common - own)
        return result

    return call


def _is_ranks(program: Program, classes: Sequence[Any] = ()) -> bool:
    """Return whether a change is the rank's alone: by its module, or of classes that it defines."""
    own = private_modules(program)
    if definer() is not None:
        return True
    kinds = [each[0] if isinstance(each, tuple) else each for each in classes]
    homes = [getattr(each, "__module__", None) for each in kinds]
    return own is not None and any(home is not None and own.own(home) for home in homes)
