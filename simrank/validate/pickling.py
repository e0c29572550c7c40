"""Pickling of functions, arguments and results between a pool and its workers, by value.

A function goes by name, with the file of its module: a worker imports modules by name where that
finds the same file, and from the file otherwise (test modules are often not importable by name).
"""

from __future__ import annotations

import copyreg
import importlib
import importlib.machinery
import importlib.util
import io
import pickle
import sys
import types
from dataclasses import dataclass
from multiprocessing import context as mp_context
from multiprocessing import resource_sharer
from multiprocessing import spawn as mp_spawn
from multiprocessing.reduction import ForkingPickler
from typing import Any

from simrank.errors.base import add_note

_PROTOCOL = 5


@dataclass(frozen=True, slots=True)
class Parcel:
    """A pickle and where the modules that it names come from.

    Attributes:
        body: The pickle.
        files: Module name -> its file, or the folders of a package without one.
        main: How the worker makes the program's main module its own, if the pickle names it.
    """

    body: bytes
    files: dict[str, str | list[str]]
    main: dict[str, Any] | None

    def __bytes__(self) -> bytes:
        """Return the encoded value."""
        return pickle.dumps((self.body, self.files, self.main), _PROTOCOL)


class _Handing:
    """A spawning process for the pickler: queues and locks are pickled for such only.

    Descriptors are handed over by a socket, once for each pickle.
    """

    DupFd = staticmethod(resource_sharer.DupFd)

    def __init__(self) -> None:
        self.has_handed = False

    def duplicate_for_child(self, fd: int) -> int:
        """Return a descriptor to hand over."""
        self.has_handed = True
        return fd


class _Pickler(pickle.Pickler):
    """A pickler that records the modules of values pickled by name."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, _PROTOCOL)
        self.modules: set[str] = set()
        # Connections and locks as multiprocessing pickles them; tensors as copies, not shared.
        self.dispatch_table = {
            kind: reduce
            for kind, reduce in ForkingPickler._extra_reducers.items()  # type: ignore[attr-defined]  # noqa: SLF001 - what it registers
            if not kind.__module__.startswith("torch")
        } | copyreg.dispatch_table

    def reducer_override(self, value: object) -> Any:  # noqa: ANN401 - pickle's
        """Note a function's or a class's module; leave the pickling to pickle."""
        if isinstance(value, types.FunctionType | type):
            self.modules.add(value.__module__)
        return NotImplemented


def packed(value: object) -> bytes:
    """Pickle a value for a worker; see `parcels` for its errors."""
    return parcels(value, 1)[0]


def parcels(value: object, num_workers: int) -> list[bytes]:
    """Return a value for each of some workers; queues and locks of multiprocessing may be in it.

    Raises:
        PicklingError, AttributeError, TypeError: It cannot be pickled, for example a function
            that is defined inside another.
    """
    handing = _Handing()
    mp_context.set_spawning_popen(handing)  # type: ignore[arg-type]
    try:
        first = _parcel(value)
        if not handing.has_handed:
            return [first] * num_workers
        return [first, *(_parcel(value) for _ in range(num_workers - 1))]
    finally:
        mp_context.set_spawning_popen(None)


def _parcel(value: object) -> bytes:
    file = io.BytesIO()
    pickler = _Pickler(file)
    try:
        pickler.dump(value)
    except Exception as error:
        add_note(
            error,
            "simrank: a request is pickled for its workers, and this one could not\n"
            "  to fix: define the function at the top of a module",
        )
        raise
    files = {}
    for module in sorted(pickler.modules - {"__main__"}):
        parts = module.split(".")
        if parts[0] != "simrank":
            for name in (".".join(parts[: end + 1]) for end in range(len(parts))):
                if (place := _place(name)) is not None:
                    files[name] = place
    main = None
    if "__main__" in pickler.modules:
        given = mp_spawn.get_preparation_data("simrank worker")
        main = {key: given[key] for key in given if key.startswith("init_main")}
    return bytes(Parcel(file.getvalue(), files, main))


def unpacked(data: bytes) -> Any:  # noqa: ANN401 - what was packed
    """Unpickle a value of the pool in a worker, with its modules imported."""
    return _Unpickler(io.BytesIO(import_modules(data))).load()


def import_modules(data: bytes) -> bytes:
    """Import the modules of a packed value, and return its pickle."""
    body, files, main = pickle.loads(data)
    if main:
        mp_spawn.prepare(main)  # A second time does nothing: it is the main module by then.
    for name, place in files.items():
        if name not in sys.modules:
            _import(name, place)
    found: bytes = body
    return found


def _place(name: str) -> str | list[str] | None:
    module = sys.modules.get(name)
    path = getattr(module, "__file__", None)
    folders = getattr(module, "__path__", None)
    return list(folders) if path is None and folders is not None else path


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 - a function or class
        """Find a class, also in modules that were loaded from a file."""
        if module not in sys.modules:
            return super().find_class(module, name)
        found: Any = sys.modules[module]
        for part in name.split("."):
            found = getattr(found, part)
        return found


def _import(name: str, place: str | list[str]) -> None:
    """Import a module by its name where that finds the same file, else from the file."""
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, AttributeError, ValueError):  # A part of the name is no package.
        found = None
    if found is not None and place in (found.origin, found.submodule_search_locations):
        importlib.import_module(name)
        return
    if isinstance(place, str):
        spec = importlib.util.spec_from_file_location(name, place)
    else:
        spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = place
    assert spec is not None, "every file of Python's has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        if spec.loader is not None:
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    above, _, own = name.rpartition(".")
    if above in sys.modules:
        setattr(sys.modules[above], own, module)


class _ResultPickler(pickle.Pickler):
    """Takes results off their devices: the pool's process uses none."""

    def reducer_override(self, value: object) -> Any:  # noqa: ANN401 - pickle's
        """Return the reduction of a GPU tensor to a copy on the host."""
        if type(value).__module__.partition(".")[0] == "torch" and getattr(value, "is_cuda", False):
            tensor: Any = value
            return tensor.detach().cpu().__reduce_ex__(_PROTOCOL)
        return NotImplemented


def result(value: object) -> bytes:
    """Return a case's result for the pool.

    Raises:
        TypeError: It cannot be pickled.
    """
    file = io.BytesIO()
    try:
        _ResultPickler(file, _PROTOCOL).dump(value)
    except Exception as error:
        raise TypeError(f"the result, a {type(value).__name__}, cannot be pickled") from error
    return file.getvalue()


def failure(error: BaseException) -> bytes | None:
    """Return a pickled exception; None if it would not unpickle as its class."""
    try:
        data = pickle.dumps(error, _PROTOCOL)
        return data if type(pickle.loads(data)) is type(error) else None
    except Exception:  # noqa: BLE001 - a program's own classes may raise anything
        return None
