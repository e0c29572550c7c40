"""Triton's device functions: the attributes in use, and facts that are kept with them."""

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


# ---- Cached facts, kept in an attribute of the kernel ----
# A table in this module would grow with kernels that a function makes for every call, and a table
# by `id` would confuse new kernels with freed ones. A `WeakKeyDictionary` would keep all of them,
# as facts refer to their kernel, and triton's hash of a kernel reads all of its source.

_NAME = "__simrank_kept__"


class Kept(dict[Any, Any]):
    """Cached facts about one object, by key; copies of the object start without any."""

    def __init__(self, owner: object) -> None:
        super().__init__()
        self._owner = ref(owner)

    def is_of(self, owner: object) -> bool:
        """Return whether the facts belong to this object, and not to the original of a copy."""
        return self._owner() is owner

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave the facts out of copies and pickles of the object."""
        return dict, ()


def kept(owner: object) -> Kept:
    """Return the cached facts of a kernel, a function or a class."""
    facts = vars(owner).get(_NAME)
    if not isinstance(facts, Kept) or not facts.is_of(owner):
        facts = Kept(owner)
        setattr(owner, _NAME, facts)
    return facts
