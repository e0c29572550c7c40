"""Operators that ranks define: one entry in torch's dispatcher, one kernel per rank.

torch keeps operators per process, and a script that every rank executes defines them once per rank.
The first rank's operators are defined in torch, with kernels that call the running rank's. torch's
tables in Python (`torch.library`, custom operators, fake kernels) are each rank's own.

Operators of shared modules, and kernels of shared operators, belong to the process.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import MutableMapping, MutableSet
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakSet, ref

import torch
from torch import library
from torch._library import custom_ops, simple_registry

from simrank.errors import UnsupportedError
from simrank.isolation.private_modules import private_modules
from simrank.ranks.current import rank_program
from simrank.torch.cuda.switch import Switch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

    from simrank.ranks import Program

    Patches = list[tuple[Any, str, Any]]

# Modules whose frames are skipped to find the registering module.
_REGISTERING = (
    "torch.library", "torch._library", "simrank.torch.rank_state.custom_operators",
    "torch.serialization", "torch._weights_only_unpickler", "simrank.torch.rank_state.safe_globals",
)  # fmt: skip
_STANDARD_LIBRARY = sys.stdlib_module_names
_VIEWS_KEY = "ADInplaceOrView"  # The dispatch key of torch's fallback for views.
_KEY = "operators of torch"  # In `Program.local`: what the rank has for itself, by names.
_bindings: Any = torch._C  # noqa: SLF001 - what `torch.library` calls
_registry: Any = simple_registry.singleton
_new_library: Callable[..., Any] = _bindings._dispatch_library  # noqa: SLF001 - likewise
_schema_of: Callable[[str, str], Any] = _bindings._get_schema  # noqa: SLF001 - likewise
_kernel_of: Callable[[str, Any], Any] = _bindings._dispatch_get_computed_kernel_for_dispatch_key  # noqa: SLF001 - likewise
_has_kernel: Callable[[str, Any], bool] = _bindings._dispatch_has_kernel_for_dispatch_key  # noqa: SLF001 - likewise


def _clear(op_defs: set[str]) -> None:
    """Remove operators from `torch.ops`, where torch has no function for it (before 2.13)."""
    for name in op_defs:
        space, _, op = name.partition("::")
        op = op.partition(".")[0]
        if hasattr(torch.ops, space) and hasattr(getattr(torch.ops, space), op):
            delattr(getattr(torch.ops, space), op)


_clear_cache: Callable[[set[str]], None] = getattr(library, "_clear_torch_ops_cache", _clear)


def patches() -> Patches:
    """Return the patches of torch: owner, name and new value."""
    table, made = _Table(), custom_ops
    return [
        (Switch(table.turn), "is_on", True),
        (_bindings, "_dispatch_library", table.new_library),
        (_bindings, _has_kernel.__name__, table.has_kernel),
        (_bindings, _kernel_of.__name__, table.kernel_of),
        *(
            (library, name, _SetOfRank(name, getattr(library, name)))
            for name in ("_impls", "_defs")
        ),
        (made, "OPDEF_TO_LIB", _DictOfRank("libraries", made.OPDEF_TO_LIB)),
        (made, "OPDEFS", _DefinedByRank("custom operators", made.OPDEFS, table)),
        (_registry, "_data", _DefinedByRank("entries", _registry._data, table)),  # noqa: SLF001 - torch's name
    ]


def definer() -> Program | None:
    """Return the rank whose private module calls a registering function; None: a shared one."""
    program = rank_program()
    own = None if program is None else private_modules(program)
    if own is None or not own.has_any:
        return None
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - the documented way
    while frame is not None:
        name = str(frame.f_globals.get("__name__"))
        if not name.startswith(_REGISTERING) and name.partition(".")[0] not in _STANDARD_LIBRARY:
            module = own.own(name)
            return program if module is not None and vars(module) is frame.f_globals else None
        frame = frame.f_back
    return None


def _of(program: Program, name: str, make: Callable[[], Any]) -> Any:
    """Return a rank's own table of a name."""
    own = program.local.setdefault(_KEY, {})
    if name not in own:
        own[name] = make()
    return own[name]


class _Kernel:
    """A kernel that calls the running rank's, or that of the rank that spawned it."""

    def __init__(self, operator: str, key: str) -> None:
        self._operator, self._key = operator, key

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the kernel of the running rank.

        Raises:
            UnsupportedError: The rank has not defined the operator.
        """
        program = rank_program()
        while program is not None:
            own = _of(program, "kernels", dict).get((self._operator, self._key))
            if own is not None:
                return own(*args, **kwargs)
            program = program.parent
        raise UnsupportedError(
            f"{self._operator} is not defined on this rank: modules that each rank executes "
            "separately define operators per rank\n"
            "  to fix: import the module there, too"
        )


class _Definition(NamedTuple):
    """An operator that ranks have defined.

    Attributes:
        schema: As the first of them has written it.
        result: What defining it returns.
        library: What torch has it and its kernels of.
        kernels: The dispatch keys that torch has kernels for.
        views: torch's fallback for views and in-place changes, once it is registered.
        of: Libraries of ranks that have defined it.
    """

    schema: str
    result: object
    library: Any
    kernels: set[str]
    views: list[Any]
    of: list[_LibraryOfRank]


class _Table:
    """The operators that ranks have defined, until the last Context is left."""

    def __init__(self) -> None:
        self.definitions: dict[str, _Definition] = {}  # By namespace, name and overload.
        self._libraries: WeakSet[Any] = WeakSet()  # torch's own objects, of ranks.

    def turn(self, is_on: bool) -> None:
        """Remove all operators from torch as the last Context exits.

        torch keeps, for the end of a library, functions that hold the rank's module and it.
        """
        if not is_on:
            for name in list(self.definitions):
                self._take_out(name)
            for each in [*self._libraries]:
                for kept in (each._registration_handles, each._op_defs, each._op_impls):  # noqa: SLF001 - no public way
                    kept.clear()

    def new_library(self, kind: str, namespace: str, key: str, *where: Any) -> Any:
        """Replace the constructor of C++: private modules get a library of their rank."""
        program = definer()
        if program is None:
            return _new_library(kind, namespace, key, *where)
        if kind == "DEF":
            whole = _of(program, "whole namespaces", set)
            if namespace in whole:
                raise RuntimeError(
                    "Only a single TORCH_LIBRARY can be used to register the namespace "
                    f"{namespace}; please put all of your definitions in a single TORCH_LIBRARY "
                    "block."
                )
            whole.add(namespace)
        maker = sys._getframe(1).f_locals.get("self")  # noqa: SLF001 - the documented way
        if isinstance(maker, library.Library):
            self._libraries.add(maker)
        return _LibraryOfRank(self, program, (kind, namespace, key, *where))

    def has_kernel(self, name: str, key: Any) -> bool:
        """Return whether an operator has a kernel; a rank that registers one asks for its own."""
        own = self._own_kernels(name)
        return _has_kernel(name, key) if own is None else (name, _name_of(key)) in own

    def kernel_of(self, name: str, key: Any) -> Any:
        """Return an operator's kernel; what a rank registers calls the fallback, not itself."""
        own = self._own_kernels(name)
        if own is not None and _name_of(key) == _VIEWS_KEY and (name, _VIEWS_KEY) not in own:
            for views in self.definitions[name].views:
                return views
        return _kernel_of(name, key)

    def _own_kernels(self, name: str) -> dict[tuple[str, str], Any] | None:
        """Return the kernels of the rank that registers one of an operator; None for no rank."""
        program = definer() if name in self.definitions else None
        return None if program is None else _of(program, "kernels", dict)

    def define(self, of: _LibraryOfRank, schema: str, alias: str, tags: Sequence[Any]) -> object:
        """Define an operator unless it is defined already.

        Raises:
            UnsupportedError: Another rank has it with another schema.
        """
        name = f"{of.namespace}::{schema.partition('(')[0]}"
        known = self.definitions.get(name)
        if known is not None and known.schema != schema:
            known.of[:] = [each for each in known.of if each.is_alive]
            known = self._known_in_use(name)
        if known is None:
            made = _new_library("FRAGMENT", of.namespace, "", "", 0)
            result: object = schema.partition("(")[0]
            if not _is_known(name):
                result = made.define(schema, alias, tags)
            known = self.definitions[name] = _Definition(schema, result, made, set(), [], [])
        elif known.schema != schema:
            raise UnsupportedError(
                f"ranks define the operator {name} differently: {known.schema!r} and {schema!r}\n"
                "  to fix: give one of them another name, or wait in a barrier until no rank has "
                "the other"
            )
        known.of.append(of)
        return known.result

    def release(self, of: _LibraryOfRank, name: str) -> None:
        """Drop a rank's definition of an operator; the last one removes the operator."""
        known = self.definitions.get(name)
        if known is not None and of in known.of:
            known.of.remove(of)
            self._known_in_use(name)

    def _known_in_use(self, name: str) -> _Definition | None:
        """Return the definition that a rank uses; remove it from torch if no rank does."""
        known = self.definitions[name]
        if not known.of:
            self._take_out(name)
        return known if known.of else None

    def _take_out(self, name: str) -> None:
        self.definitions.pop(name).library.reset()
        _clear_cache({name.partition(".")[0]})

    def register(self, name: str, key: str, fn: Callable[..., Any], *, with_keyset: bool) -> None:
        """Register a kernel of an operator that ranks define; it dispatches to the running rank."""
        known = self.definitions[name]
        if key not in known.kernels:
            known.kernels.add(key)
            given = fn if fn is library.fallthrough_kernel else _Kernel(name, key)
            with warnings.catch_warnings():  # It may be the main program's that ranks override.
                warnings.simplefilter("ignore")
                known.library.impl(name, key, given, with_keyset)

    def follow_views(self, name: str) -> None:
        """Register torch's fallback for views and in-place changes before the ranks' kernels.

        A second time it would take the place of those, and no version would be counted.
        """
        known = self.definitions[name]
        if not known.views:
            known.library.register_ad_inplace_or_view_fallback(name.partition("::")[2])
            known.views.append(_kernel_of(name, _VIEWS_KEY))


def _name_of(key: Any) -> str:
    """Return the name of a dispatch key, which torch takes as text, too."""
    return str(getattr(key, "name", key))


def _is_known(name: str) -> bool:
    """Return whether torch has an operator."""
    base, _, overload = name.partition(".")
    try:
        _schema_of(base, overload)
    except RuntimeError:
        return False
    return True


class _LibraryOfRank:
    """A library of operators of a rank's private module."""

    def __init__(self, table: _Table, program: Program, given: tuple[Any, ...]) -> None:
        self._table, self._program, self._given = table, ref(program), given
        self._kernels: list[tuple[str, str]] = []
        self._defined: list[str] = []
        self._real: Any = None

    @property
    def namespace(self) -> str:
        """The namespace of its operators."""
        return str(self._given[1])

    @property
    def is_alive(self) -> bool:
        """Whether the rank still runs."""
        program = self._program()
        return program is not None and (program.task is None or not program.task.finished)

    def define(self, schema: str, alias: str = "", tags: Sequence[Any] = ()) -> object:
        """Define an operator."""
        result = self._table.define(self, schema, alias, tags)
        self._defined.append(f"{self.namespace}::{schema.partition('(')[0]}")
        return result

    def impl(self, name: str, key: str, fn: Callable[..., Any], with_keyset: bool = False) -> None:
        """Register a kernel for the rank's operator; for shared operators, for all ranks."""
        full_name = self._full(name)
        if full_name in self._table.definitions:
            program = self._program()
            assert program is not None, "its module runs"
            _of(program, "kernels", dict)[full_name, key] = fn
            self._kernels.append((full_name, key))
            self._table.register(full_name, key, fn, with_keyset=with_keyset)
        else:
            self._own().impl(name, key, fn, with_keyset)

    def register_ad_inplace_or_view_fallback(self, name: str) -> None:
        """Register torch's fallback for views and in-place changes."""
        if self._full(name) in self._table.definitions:
            self._table.follow_views(self._full(name))
        else:
            self._own().register_ad_inplace_or_view_fallback(name)

    def _full(self, name: str) -> str:
        return name if "::" in name else f"{self.namespace}::{name}"

    def __getattr__(self, name: str) -> Any:
        """Return another attribute of the library."""
        return getattr(self._own(), name)

    def reset(self) -> None:
        """Remove the rank's kernels and definitions."""
        if (program := self._program()) is not None:
            for kernel in self._kernels:
                _of(program, "kernels", dict).pop(kernel, None)
        self._kernels.clear()
        for name in self._defined:
            self._table.release(self, name)
        self._defined.clear()
        if self._real is not None:
            self._real.reset()

    def _own(self) -> Any:
        if self._real is None:
            kind, *rest = self._given
            self._real = _new_library("FRAGMENT" if kind == "DEF" else kind, *rest)
        return self._real


class _SetOfRank(MutableSet[Any]):
    """A set of torch: the registering rank's, or the process's."""

    def __init__(self, name: str, outside: set[Any]) -> None:
        self._name, self._outside = name, outside

    def _set(self) -> set[Any]:
        program = definer()
        found: set[Any] = _of(program, self._name, set) if program is not None else self._outside
        return found

    def __contains__(self, value: object) -> bool:
        return value in self._set()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._set())

    def __len__(self) -> int:
        return len(self._set())

    def add(self, value: Any) -> None:
        """Add a value."""
        self._set().add(value)

    def discard(self, value: Any) -> None:
        """Remove a value."""
        self._set().discard(value)


class _DictOfRank(MutableMapping[Any, Any]):
    """A dict of torch: the registering rank's, or the process's."""

    def __init__(self, name: str, outside: Any) -> None:
        self._name, self._outside = name, outside

    def _of_key(self, key: object) -> Any:
        """Return the dict of a key."""
        del key
        program = definer()
        return self._outside if program is None else _of(program, self._name, dict)

    def __getitem__(self, key: object) -> Any:
        return self._of_key(key)[key]

    def __setitem__(self, key: object, value: Any) -> None:
        self._of_key(key)[key] = value

    def __delitem__(self, key: object) -> None:
        del self._of_key(key)[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._outside)

    def __len__(self) -> int:
        return len(self._outside)


class _DefinedByRank(_DictOfRank):
    """A dict by names of operators: a rank's for operators that ranks have defined."""

    def __init__(self, name: str, outside: Any, table: _Table) -> None:
        super().__init__(name, outside)
        self._table = table

    def _of_key(self, key: object) -> Any:
        program = rank_program() if key in self._table.definitions else None
        return self._outside if program is None else _of(program, self._name, dict)
