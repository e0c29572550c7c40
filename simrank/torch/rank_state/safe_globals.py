"""Classes that `torch.load` may make: those that a rank's own modules allow are its own.

torch keeps a set per process. Classes that shared modules allow, as torch's do when they are
imported, are allowed for all ranks.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch._weights_only_unpickler as unpickler

from simrank.ranks.current import rank_program
from simrank.torch.rank_state.custom_operators import definer

if TYPE_CHECKING:
    from collections.abc import Callable

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
        if program is None or (name in _WRITERS and definer() is None):
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
