"""Digests of a program's values, with all that can be read through them.

A value is looked into as `pickle` would do, but objects keep their identity: two names of one list
are no two lists. Functions, classes and modules of the program are values too, with what they keep:
closures, defaults, attributes, the globals that they read.
"""

from __future__ import annotations

import enum
import inspect
import sys
from collections import OrderedDict, defaultdict, deque
from datetime import date, timedelta, timezone
from functools import cache, partial
from pathlib import PurePath
from types import (
    BuiltinFunctionType,
    CellType,
    ClassMethodDescriptorType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import TYPE_CHECKING, Any
from weakref import ReferenceType, WeakKeyDictionary

import numpy as np

from simrank.engine.callsite import attributes_of, is_installed, module_text
from simrank.isolation.carrier_choice import imports_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    _Parts = Callable[["Inspection", Any], Iterable[Any]]

# Assumed: what lies deeper, or beyond so many values, is not looked into.
MAX_DEPTH, MAX_VALUES = 60, 5000
READS_ALL = frozenset({"eval", "exec", "globals", "locals", "vars", "dir", "import_module",
                       "__import__", "_getframe", "currentframe"})  # fmt: skip
_PLAIN = (int, float, str, bytes, bool, type(None), complex, range, slice, type(...),
          type(NotImplemented), date, timedelta, timezone)  # fmt: skip
_CONTAINERS = (list, tuple, set, frozenset, deque)  # Their order can be seen, also of a set.
_NAMED = (ClassMethodDescriptorType, GetSetDescriptorType, MemberDescriptorType,
          MethodDescriptorType, WrapperDescriptorType)  # fmt: skip
_BUILT_IN = (BuiltinFunctionType, MethodWrapperType)
# Of a module, by Python.
OF_MODULES = frozenset({"__annotations__", "__builtins__", "__cached__", "__doc__", "__file__",
                        "__loader__", "__name__", "__package__", "__path__",
                        "__spec__"})  # fmt: skip
_PICKLES = ("__reduce_ex__", "__reduce__", "__getstate__", "__getnewargs__", "__getnewargs_ex__")
_SIMULATED = ("simrank", "triton", "pybind11_builtins")
_DOES_NOT_PICKLE = frozenset({"itertools"})  # From Python 3.14 on; before, it warns.


class Inspection:
    """Looks into values, each once.

    Args:
        clocks: Types of readings of clocks.
        shown: Returns what is known of a reading.

    Attributes:
        is_sure: Whether all that it was shown could be looked into.
        is_whole: Whether none of it keeps state where calls of simrank alone can see it.
    """

    def __init__(
        self, clocks: type | tuple[type, ...] = (), shown: Callable[[Any], object] = str
    ) -> None:
        self.is_sure = self.is_whole = True
        self._clocks, self._shown = clocks, shown
        self._numbers: dict[object, int] = {}
        self._kept: list[object] = []  # So that no other object gets the id of one of them.

    def at(self, value: Any, depth: int = 0) -> object:  # noqa: ANN401 - any value
        """Return a digest of a value, equal for equal values."""
        kind = type(value)
        if issubclass(kind, self._clocks):
            return self._shown(value)
        if kind in _PLAIN:
            return kind.__name__, repr(value) if kind is not int else hex(value)
        if not self.is_sure:  # The rest does not count.
            return "..."
        number, is_new = self._numbered(id(value))
        if not is_new:
            return "the same as", number
        self._kept.append(value)
        if depth > MAX_DEPTH or number > MAX_VALUES:
            return self._unsure("...")
        parts = _look_at(kind)(self, value)
        return self.at(kind, depth + 1), [self.at(part, depth + 1) for part in parts]

    def _unsure(self, what: str) -> str:
        self.is_sure = False
        return what

    def _numbered(self, of: object) -> tuple[int, bool]:
        """Return the number of an object among those met, and whether it is new."""
        found = self._numbers.get(of)
        if found is not None:
            return found, False
        self._numbers[of] = len(self._numbers)
        return len(self._numbers) - 1, True

    # ---- what is to be looked at of values of each kind ----

    def function_parts(self, value: FunctionType) -> Iterator[Any]:
        """Yield the name of a function, and what it keeps and reads."""
        code = value.__code__
        yield from (code, value.__closure__, value.__defaults__, value.__kwdefaults__, vars(value))
        if not is_installed(code.co_filename):
            yield from self.globals_of(code, value.__globals__)

    def globals_of(
        self, code: CodeType, names: Mapping[str, Any], only: frozenset[str] | None = None
    ) -> Iterator[Any]:
        """Yield the globals that a code may read, with their names; `only` some of them."""
        read, imported = names_within(code) if only is None else only, _imports(code)
        for name in names if read & READS_ALL else sorted(read):
            if name in names and name not in OF_MODULES:
                yield from (name, names[name])
        for name in imported:
            module = sys.modules.get(name)
            if module is None:
                self._unsure(name)
            yield module

    def class_parts(self, value: type) -> Iterator[Any]:
        """Yield the name of a class, its bases and attributes."""
        name = _module_of(value)
        yield from (name, value.__qualname__)
        module = None if name == "__main__" else sys.modules.get(name)
        if module is not None and _is_librarys(module):
            return
        yield value.__bases__
        for name, each in attributes_of_class(value).items():
            if name not in _OF_CLASSES:
                yield from (name, each)

    @staticmethod
    def module_parts(value: ModuleType) -> Iterator[Any]:
        """Yield the name of a module, and the globals of one of the program's."""
        yield value.__name__
        if not _is_librarys(value):
            for name, each in attributes_of(value).items():
                if name not in OF_MODULES:
                    yield from (name, each)

    def method_parts(self, value: Any) -> Iterator[Any]:  # noqa: ANN401 - of any kind
        """Yield the name of a method, and its object."""
        yield value.__name__
        if not isinstance(value.__self__, ModuleType):
            yield value.__self__
        if isinstance(value, MethodType):
            yield value.__func__

    def cached_parts(self, value: Any) -> Iterator[Any]:  # noqa: ANN401 - of functools.cache
        """Yield a function with a cache, whose entries C hides."""
        yield from (value.__wrapped__, value.cache_info()[2:])
        if value.cache_info().currsize and not is_installed(value.__wrapped__.__code__.co_filename):
            self._unsure("what it keeps")

    @staticmethod
    def cell_parts(value: CellType) -> Iterator[Any]:
        """Yield what a variable of an outer function holds."""
        try:
            yield value.cell_contents
        except ValueError:
            yield "empty"

    def array_parts(self, array: np.ndarray[Any, Any]) -> Iterator[Any]:
        """Yield the values of an array, and where its memory lies: among those met, and in it."""
        if type(array) is not np.ndarray or array.dtype.hasobject:
            self._unsure("an array of a class of its own")
            return
        base: Any = array
        while isinstance(base.base, np.ndarray):
            base = base.base
        first = base.__array_interface__["data"][0]
        number, _ = self._numbered(("memory", first))
        self._kept.append(base)
        yield from (number, array.__array_interface__["data"][0] - first, array.strides)
        yield from (array.shape, str(array.dtype), array.flags.writeable)
        yield np.ascontiguousarray(base if base.dtype == array.dtype else array).tobytes()
        if base.dtype != array.dtype:
            self._unsure("an array of other numbers beneath")

    @staticmethod
    def container_parts(value: Any) -> Iterator[Any]:  # noqa: ANN401 - of any kind
        """Yield the elements in their order."""
        yield from list(value)
        yield getattr(value, "maxlen", None)
        if type(value) not in _CONTAINERS:
            yield _attributes(value)

    @staticmethod
    def mapping_parts(value: Any) -> Iterator[Any]:  # noqa: ANN401 - of any kind
        """Yield keys and values in their order."""
        for key, each in list(dict.items(value)):
            yield from (key, each)
        if type(value) not in (dict, OrderedDict):
            yield from (_attributes(value), getattr(value, "default_factory", None))

    def tensor_parts(self, value: Any) -> Iterator[Any]:  # noqa: ANN401 - a torch.Tensor
        """Yield the values of a tensor of the host, and where they lie."""
        array = _host_array(value)
        if array is not None:
            # What it was computed from, its hooks, and its memory beyond it are kept in C++.
            is_all = array.nbytes == value.untyped_storage().nbytes()
            self.is_whole &= value.grad_fn is None and is_all and not value._backward_hooks  # noqa: SLF001 - no other way
            yield vars(value)
            yield from (value.requires_grad, value.grad if value.is_leaf else None)
            yield from self._of_storage(value)
            yield from self.array_parts(array)
            return
        # What of it changes, changes with calls, which the history has.
        self.is_whole = False
        yield getattr(value, "_version", None)

    def _of_storage(self, value: Any) -> Iterator[Any]:  # noqa: ANN401 - a torch.Tensor
        storage = value.untyped_storage()
        self._kept.append(storage)
        yield from (self._numbered(("storage", storage.data_ptr()))[0], value.storage_offset())

    def simulated_parts(self, value: Any) -> Iterator[Any]:  # noqa: ANN401 - of any kind
        """Yield the name of an object of simrank: a look at it may be a call."""
        kernel = attributes_of(value).get("fn")
        if type(value).__name__ == "JITFunction" and kernel is not None:
            yield kernel
            return
        try:
            is_programs = not type(value).__module__.startswith(_SIMULATED)
            name = None if is_programs else object.__getattribute__(value, "made_as")
        except AttributeError:
            name = None
        self.is_whole &= name is not None
        yield name


def _pickled(look: Inspection, value: Any) -> Iterable[Any]:  # noqa: ANN401 - of any kind
    """Return the parts of an object, as `pickle` takes it apart."""
    try:
        parts = value.__reduce_ex__(2)
    except Exception:  # noqa: BLE001 - it has state that Python does not show, or not now
        return _hidden(look, value)
    if isinstance(parts, str):
        return [parts]
    return [list(part) if n > 2 and part is not None else part for n, part in enumerate(parts[:5])]


def _code_parts(_: Inspection, code: CodeType) -> Iterable[Any]:
    names = code.co_filename, code.co_firstlineno, code.co_qualname, code.co_names
    return [names, code.co_code, code.co_consts]


def _error_parts(look: Inspection, error: BaseException) -> Iterable[Any]:
    if error.__traceback__ is not None:  # With the frames of functions that have ended.
        look.is_sure = False
    return [error.args, vars(error), error.__cause__, error.__context__]


def _of_enum(_: Inspection, value: Any) -> Iterable[Any]:  # noqa: ANN401 - an enum of C++
    return [type(value).__qualname__, value.name]


def _plain(value: float | str | bytes) -> str:
    """Return the text of a number or a text, of a class of its own."""
    base = next(each for each in (int, float, str, bytes) if isinstance(value, each))
    return str(base.__repr__(value))


def _hidden(look: Inspection, value: Any) -> Iterable[Any]:  # noqa: ANN401 - of any kind
    """Return the name of the class of an object that cannot be looked into."""
    if "torch" in _tops(type(value)):  # What of it changes, changes with calls.
        look.is_whole = False
    else:
        look.is_sure = False
    return [type(value).__qualname__]


def _runs_nothing(kind: type, name: str) -> bool:
    """Return whether a method of a class is no code of a program."""
    found = inspect.getattr_static(kind, name, None)
    found = getattr(found, "__func__", found)
    if not isinstance(found, FunctionType):
        return True
    # What torch's own methods leave out is kept in C++.
    return is_installed(found.__code__.co_filename) and "/torch/" not in found.__code__.co_filename


def _is_librarys(module: ModuleType) -> bool:
    file = module_text(module, "__file__")
    return is_installed(file) if file is not None else module.__name__ in sys.builtin_module_names


def _attributes(value: object) -> dict[str, Any]:
    """Return the attributes of an object, those in slots too."""
    found = dict(attributes_of(value))
    for kind in type(value).__mro__:
        for name, each in attributes_of_class(kind).items():
            if type(each) is MemberDescriptorType and kind.__module__ != "builtins":
                try:
                    found[name] = each.__get__(value)
                except AttributeError:
                    found[name] = "deleted"
    return found


attributes_of_class: Callable[[type], Mapping[str, Any]] = type.__dict__["__dict__"].__get__
_OF_CLASSES = frozenset({"__dict__", "__weakref__", "__doc__", "__module__", "__qualname__",
                         "__firstlineno__", "__static_attributes__", "__annotations__",
                         "__parameters__", "__abstractmethods__", "_abc_impl"})  # fmt: skip


@cache
def names_within(code: CodeType) -> frozenset[str]:
    """Return the names of globals that a code, and functions within it, may read."""
    inner = (names_within(each) for each in code.co_consts if isinstance(each, CodeType))
    return frozenset(code.co_names).union(*inner)


def _imports(code: CodeType) -> Iterator[str]:
    """Yield the modules of the program that a function imports."""
    for name in imports_of(code):
        module = sys.modules.get(name)
        is_known = module is not None and _is_librarys(module)
        if not is_known and name.partition(".")[0] not in sys.stdlib_module_names:
            yield name


def _host_array(value: Any) -> np.ndarray[Any, Any] | None:  # noqa: ANN401 - a torch.Tensor
    """Return the numbers of a tensor of the host; None of any other."""
    torch = sys.modules["torch"]
    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        return None
    if value.device.type != "cpu" or value.layout != torch.strided:
        return None
    try:
        found: np.ndarray[Any, Any] = value.detach().numpy()
    except (RuntimeError, TypeError):  # A type that numpy lacks.
        return None
    return found


class _Tensors(type):
    """The class of tensors, once torch is there."""

    def __subclasscheck__(cls, kind: type) -> bool:
        torch = sys.modules.get("torch")
        return torch is not None and issubclass(kind, getattr(torch, "Tensor", ()))


class _Tensor(metaclass=_Tensors):
    """Any tensor."""


def _tops(kind: type) -> set[str]:
    return {_module_of(each).partition(".")[0] for each in kind.__mro__}


def _module_of(kind: type) -> str:
    found: object = kind.__module__
    return found if isinstance(found, str) else ""  # Some of Cython hide it.


def _look_at(kind: type) -> _Parts:
    """Return a function that returns what is to be looked at of values of a class."""
    found = _by_kind.get(kind)
    if found is None:
        tops = _tops(kind)
        if hasattr(kind, "__members__") and not issubclass(kind, (enum.Enum, type)):
            found = _of_enum
        elif not issubclass(kind, (type, ModuleType, _Tensor)) and tops & {*_SIMULATED}:
            found = Inspection.simulated_parts
        else:
            is_open = not tops & _DOES_NOT_PICKLE
            is_open &= all(_runs_nothing(kind, name) for name in _PICKLES)
            other = _pickled if is_open else _hidden
            found = next((look for kinds, look in _LOOKS if issubclass(kind, kinds)), other)
        _by_kind[kind] = found
    return found


_by_kind: WeakKeyDictionary[type, _Parts] = WeakKeyDictionary()
# By kind, the first that fits: what is to be looked at.
_LOOKS: tuple[tuple[Any, _Parts], ...] = (
    (FunctionType, Inspection.function_parts),
    (type, Inspection.class_parts),
    (ModuleType, lambda _, value: Inspection.module_parts(value)),
    ((MethodType, *_BUILT_IN), Inspection.method_parts),
    (CellType, lambda _, cell: Inspection.cell_parts(cell)),
    (_NAMED, lambda _, value: (value.__name__,)),
    (CodeType, _code_parts),
    (BaseException, _error_parts),
    (enum.Enum, lambda _, value: vars(value).values()),
    ((int, float, str, bytes), lambda _, value: (_plain(value), _attributes(value))),
    (PurePath, lambda _, value: (str(value),)),
    (property, lambda _, value: (value.fget, value.fset, value.fdel)),
    ((staticmethod, classmethod), lambda _, value: (value.__func__,)),
    (type(cache(len)), Inspection.cached_parts),
    (partial, lambda _, value: (value.func, value.args, value.keywords, vars(value))),
    (ReferenceType, lambda _, value: (value(),)),
    (MappingProxyType, lambda _, value: (dict(value),)),
    (_Tensor, Inspection.tensor_parts),
    (np.ndarray, Inspection.array_parts),
    ((dict, defaultdict), lambda _, value: Inspection.mapping_parts(value)),
    (_CONTAINERS, lambda _, value: Inspection.container_parts(value)),
)
