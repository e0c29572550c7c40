"""What simrank needs to know of Triton's objects for device functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol
from weakref import ref

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FunctionType


class Parameter(Protocol):
    """One parameter of a device function."""

    name: str
    is_constexpr: bool
    is_const: bool
    has_default: bool
    default: Any
    annotation_type: str
    do_not_specialize: bool
    do_not_specialize_on_alignment: bool


class Jit(Protocol):
    """A device function: triton's `JITFunction`."""

    fn: FunctionType
    src: str
    raw_src: Sequence[str]
    starting_line_number: int
    arg_names: Sequence[str]
    params: Sequence[Parameter]
    pre_run_hooks: Sequence[Callable[..., object]]
    run: Callable[..., Any]
    __name__: str


# ---- What is known of a kernel is kept with it ----
# Kernels that a function makes anew for every call would fill a table of the module without
# bound, and a table by `id` would take a new kernel for one that has gone. A
# `WeakKeyDictionary` would not do: what is known of a kernel refers to it, and triton's hash of
# one reads all of its source.

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
