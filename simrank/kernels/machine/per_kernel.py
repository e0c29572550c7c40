"""What is known of a kernel is kept with it: it goes when the kernel goes, and is of no other.

Kernels that a function makes anew for every call would fill a table of the module without bound,
and a table by `id` would take a new kernel for one that has gone. A `WeakKeyDictionary` would not
do: what is known of a kernel refers to it, and triton's hash of one reads all of its source.
"""

from __future__ import annotations

from typing import Any
from weakref import ref

_NAME = "__simrank_kept__"


class Kept(dict[Any, Any]):
    """What is known of one object, by what asks; a copy of the object knows nothing yet."""

    def __init__(self, owner: object) -> None:
        super().__init__()
        self._owner = ref(owner)

    def is_of(self, owner: object) -> bool:
        """Return whether it is this object that it is about, not one that it was copied from."""
        return self._owner() is owner

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave everything out of copies and pickles of the object."""
        return dict, ()


def kept(owner: object) -> Kept:
    """Return what is known of a kernel, a function or a class, to read and to add to."""
    facts = vars(owner).get(_NAME)
    if not isinstance(facts, Kept) or not facts.is_of(owner):
        facts = Kept(owner)
        setattr(owner, _NAME, facts)
    return facts
