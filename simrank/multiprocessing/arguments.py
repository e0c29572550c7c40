"""Copies of spawn's arguments for each rank, as pickling would make them.

torch.multiprocessing.spawn pickles the function and its arguments for each process. Here they are
pickled once, when spawn is called, and unpickled when a rank starts. What processes would share
goes by reference, and so does what pickle cannot copy: functions, classes, modules, open files.
What a rank alone has, in modules that it executed for itself, goes by name as in a real pickle, and
is what the receiver has under that name.
"""

from __future__ import annotations

import copyreg
import io
import os
import pickle
import types
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn
from weakref import WeakKeyDictionary

from simrank.engine.callsite import is_real
from simrank.errors.base import add_note
from simrank.ranks.current import current_engine, rank_program

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from simrank.ranks.current import Program
    from simrank.ranks.extensions import Reference

    Call = Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]  # Returns a function and args.
    Refer = Callable[[object, str | None], Reference | None]

_PROTOCOL = 4  # What multiprocessing itself uses.
# Modules whose classes make what ranks share: locks and queues, and simrank's own things.
_SHARED_MODULES = ("simrank", "threading", "_thread", "queue", "_queue", "multiprocessing")
_NOT_SHARED = "multiprocessing.pool"  # Its errors of workers are values.
_THREADS_ONLY = ("queue", "_queue", "_thread")  # Of these, what a real spawn cannot pickle.
# Real processes share a tensor's memory. torch is not imported to ask (its layer is above).
_SHARED_CLASSES = (("torch", "Tensor"), ("torch.storage", "UntypedStorage"))
# Ends of pipes, and sockets: a process gets a descriptor of its own, which stays open if the
# sender closes its end.
_DESCRIPTORS = frozenset({("multiprocessing.connection", "Connection"), ("socket", "socket")})
_RECEIVED = "descriptors received"  # In `Program.local`.
IS_LOCAL = "_simrank_is_local"  # An attribute of connections with both ends in this process.
_REFERENCES = (type, types.FunctionType, types.ModuleType)
_ATOMS = (int, float, complex, str, bytes, bool, types.NoneType, types.EllipsisType, range)

_shared_types: WeakKeyDictionary[type, bool] = WeakKeyDictionary()


def per_rank(
    fn: Callable[..., Any],
    args: Sequence[Any],
    *,
    shared: bool,
    refer: Refer | None = None,
) -> Call:
    """Return a call that makes a rank's own function and arguments when the rank starts.

    Args:
        fn: What spawn was given. The object of a bound method is an argument like any other.
        args: What spawn was given.
        shared: Whether every rank gets the very objects.
        refer: Returns a call that finds an object by name on a rank; None: objects are copied.
    """
    given = (fn, tuple(args))
    refer = _never if refer is None else refer
    if shared or is_immutable(given, refer):
        if not shared:
            _note_tensors(args)
        return lambda: given
    try:
        pickled, table = pickle_by_reference(given, refer)
    except RecursionError:  # As pickle: nested too deep to be copied.
        return lambda: given
    _note_tensors(table)
    return partial(_unpickled, pickled, table)


def _note_tensors(values: Sequence[Any]) -> None:
    """Name tensors to a search of every timing: processes share their memory from now on."""
    engine = current_engine()
    if engine is None or engine.choices is None:
        return
    for value in values:
        if type(value) is tuple:
            _note_tensors(value)
        elif any(
            (kind.__module__, kind.__name__) in _SHARED_CLASSES for kind in type(value).__mro__
        ):
            engine.choices.pass_over("a tensor in memory that processes share")


def check_picklable(fn: Callable[..., Any], args: Sequence[Any], *, shared: bool) -> None:
    """Raise pickle's error if a real spawn would raise it, for `Context(strict=True)`.

    Args:
        fn: What spawn was given.
        args: What spawn was given.
        shared: Whether the arguments are never to be pickled.
    """
    for index, value in enumerate([fn] if shared else [fn, *args]):
        try:
            _StrictPickler(io.BytesIO(), _PROTOCOL).dump(value)
        except Exception as error:
            what = "its function" if index == 0 else f"argument {index} after the rank"
            note = f"simrank: strict: a real spawn pickles {what}, and could not"
            if isinstance(value, types.FunctionType):
                note += "\n  to fix: define the function at the top of a module"
            error.add_note(note)
            raise


def _never(value: object, name: str | None) -> None:
    """Find nothing by name: ranks share all modules."""


def is_immutable(value: Any, refer: Refer) -> bool:  # noqa: ANN401 - anything
    """Return whether a copy of a value would be indistinguishable from it."""
    kind = type(value)
    if kind is tuple:
        return all(is_immutable(each, refer) for each in value)
    if is_real(value, _REFERENCES):
        return refer(value, None) is None
    return kind in _ATOMS or _is_shared(kind)


def _is_shared(kind: type) -> bool:
    """Return whether processes would share an instance: a lock, a queue, a tensor, ..."""
    is_shared = _shared_types.get(kind)
    if is_shared is None:
        is_shared = _shared_types[kind] = any(
            (
                base.__module__.partition(".")[0] in _SHARED_MODULES
                and base.__module__ != _NOT_SHARED
            )
            or (base.__module__, base.__name__) in _SHARED_CLASSES
            for base in kind.__mro__
        )
    return is_shared


class _Pickler(pickle.Pickler):
    """Pickles values; functions, classes and shared objects are indices into a table.

    Private objects of the running rank are written by name, and found there by the rank that
    reads it.

    The C pickler asks `reducer_override` about all but numbers, strings and plain containers.
    """

    def __init__(self, file: io.BytesIO, table: list[Any], refer: Refer) -> None:
        super().__init__(file, _PROTOCOL)
        self._table = table
        self._refer = refer

    def reducer_override(self, value: object) -> Any:  # noqa: ANN401 - anything
        """Return the parts of an object, or its index in the table."""
        if value is _entry or value is _duplicate_entry:
            return NotImplemented
        if (type(value).__module__, type(value).__name__) in _DESCRIPTORS:
            self._table.append(_duplicate(value))
            return _duplicate_entry, (len(self._table) - 1,)
        if is_real(value, _REFERENCES) or _is_shared(type(value)):
            return self.refer(value)
        by_table = copyreg.dispatch_table.get(type(value))
        parts = value.__reduce_ex__(_PROTOCOL) if by_table is None else by_table(value)
        # Text is the name of a global, and a copy of that is the thing itself.
        return self.refer(value, parts) if isinstance(parts, str) else parts

    def refer(self, value: object, name: str | None = None) -> tuple[Any, ...]:
        """Return the pickled form of an object: its index in the table, or its name."""
        by_name = self._refer(value, name)
        if by_name is not None:
            return by_name
        self._table.append(value)
        return _entry, (len(self._table) - 1,)


class _LenientPickler(_Pickler):
    """Refers to an object that cannot be copied whole, for example one that holds an open file.

    Plain containers are copied with any contents.
    """

    def reducer_override(self, value: object) -> Any:  # noqa: ANN401 - anything
        """Return the parts of an object, or its index in the table."""
        if value is _entry or value is _duplicate_entry:
            return NotImplemented
        try:
            _Pickler(io.BytesIO(), [], self._refer).dump(value)
        except Exception:  # noqa: BLE001 - its methods may raise anything: it is shared
            return self.refer(value)
        return super().reducer_override(value)


class _StrictPickler(pickle.Pickler):
    """Raises if a real spawn could not pickle a value; shareable objects pass."""

    def reducer_override(self, value: object) -> Any:  # noqa: ANN401 - anything
        """Return a placeholder for a shared object; pickle handles all other values."""
        kind = type(value)
        if kind.__module__ in _THREADS_ONLY:  # The lock in a queue may be one of `isolation.locks`.
            raise TypeError(f"cannot pickle '{kind.__module__}.{kind.__qualname__}' object")
        if is_real(value, type) or not _is_shared(kind):
            return NotImplemented
        return str, ()


def _entry(index: int) -> NoReturn:
    """Mark an entry of the table in a pickle; the unpickler replaces it by the table's getter."""
    raise AssertionError(f"entry {index} of no table")


def _duplicate_entry(index: int) -> NoReturn:
    """Mark an entry that holds a descriptor; each reader gets a duplicate."""
    raise AssertionError(f"entry {index} of no table")


def _duplicate(value: Any) -> Any:  # noqa: ANN401 - a connection or a socket
    """Return a connection or a socket with a descriptor of its own."""
    if hasattr(value, "dup"):
        return value.dup()
    made = type(value)(os.dup(value.fileno()), value.readable, value.writable)
    if IS_LOCAL in vars(value):
        vars(made)[IS_LOCAL] = True
    return made


def _received_duplicate(value: Any) -> Any:  # noqa: ANN401 - as above
    made, program = _duplicate(value), rank_program()
    if program is not None:
        program.local.setdefault(_RECEIVED, []).append(weakref.ref(made))
    return made


def close_received(program: Program) -> None:
    """Close the descriptors that a process has received, as its exit does."""
    for reference in program.local.pop(_RECEIVED, ()):
        made = reference()
        if made is not None:
            made.close()


def _close_all(table: list[Any]) -> None:
    for value in table:
        if (type(value).__module__, type(value).__name__) in _DESCRIPTORS:
            value.close()


def called_once(call: Call) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return the function and the arguments, and close the duplicates that the call keeps."""
    found = call()
    if isinstance(call, partial):
        _close_all(call.args[1])
    return found


class _Unpickler(pickle.Unpickler):
    def __init__(self, pickled: bytes, table: list[Any]) -> None:
        super().__init__(io.BytesIO(pickled))
        self._table = table

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 - a function or class
        if name == _entry.__name__ and module == __name__:
            return self._table.__getitem__
        if name == _duplicate_entry.__name__ and module == __name__:
            return lambda index: _received_duplicate(self._table[index])
        return super().find_class(module, name)


def pickle_by_reference(given: object, refer: Refer) -> tuple[bytes, list[Any]]:
    """Return a pickle, and the table of the objects that it refers to."""
    file, table = io.BytesIO(), list[Any]()
    try:
        _Pickler(file, table, refer).dump(given)
    except Exception:  # noqa: BLE001 - something in it cannot be copied: now look for it
        _close_all(table)
        file, table = io.BytesIO(), []
        _LenientPickler(file, table, refer).dump(given)
    return file.getvalue(), table


def unpickle_references(pickled: bytes, table: list[Any]) -> Any:  # noqa: ANN401 - a value
    """Return the value of a pickle that `pickle_by_reference` made."""
    return _Unpickler(pickled, table).load()


def _unpickled(pickled: bytes, table: list[Any]) -> Any:  # noqa: ANN401 - what was given
    try:
        return _Unpickler(pickled, table).load()
    except Exception as error:
        add_note(error, "simrank: raised while spawn copied its arguments for this rank")
        raise
