"""Patches that turn devices on at a rank's first use of CUDA.

A program queries devices, calls a function, constructs an object, or reads a name that only CUDA
builds have. The first use gives the same result as later ones: a test walks the names.
"""

from __future__ import annotations

import ctypes
import functools
import inspect
import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from simrank.ranks.current import rank_program
from simrank.torch.cuda import bindings, memory, streams
from simrank.torch.cuda.library import native
from simrank.torch.cuda.streams import GraphBase
from simrank.torch.cuda.switch import DefaultGenerators
from simrank.torch.devices import activation, rank_devices

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from simrank.ranks import Program

Patches = list[tuple[Any, str, Any]]
# Asked by torch itself on builds for CUDA, without using a device.
_QUERIES_OF_BUILDS = {
    "_cuda_isInBadFork",
    "_cuda_setDevice",
    "_ensureCUDADeviceGuardSet",
    "_cuda_isHistoryEnabled",
    "_set_cached_tensors_enabled",
    "_cuda_CUDAAllocator_AllocatorState",
    "_nvtx",
    "_cudart",
    "_CudaDeviceProperties",
    "_cuda_isCurrentStreamCapturing",
    "_cuda_getCompiledVersion",
    "_cuda_getArchFlags",
}
_compiled: Any = torch._C
_cuda: Any = torch.cuda
_accelerator: Any = import_module("torch.accelerator")
_optimizer: Any = torch.optim.Optimizer
# What torch looks for to know whether it was built for CUDA, which is a question, not a use.
_BUILD_QUERY = "_cuda_getDeviceCount"
_USE_QUERY = "_accelerator_isAllocatorInitialized"  # Likewise.
_FUNCTIONS_OF_CUDA = {
    name for name, value in bindings.private_functions().items() if callable(value)
} - {_BUILD_QUERY}


def _accelerator_of(program: Program) -> torch.device | None:
    return torch.device("cuda") if activation.sees_devices(program) else None


def _is_of_cuda(device: object) -> bool:
    """Return whether an argument names a CUDA device; numbers do."""
    if isinstance(device, torch.device):
        return device.type == "cuda"
    if isinstance(device, str):
        return device.partition(":")[0] == "cuda"
    return isinstance(device, int) and not isinstance(device, bool)


def _names_one(*args: object, **kwargs: object) -> bool:
    return any(map(_is_of_cuda, (*args, *kwargs.values())))


class _Kind(type):
    """The class of a class of C++, whose constructor can be patched through it."""

    __module__ = type.__dict__["__module__"]  # A string would be each class's.


def _kind_of(cls: type) -> type:
    """Return the class of a class, which gets one if it has none of its own, and keeps it.

    torch does this for `torch.Generator` from 2.13 on.
    """
    if type(cls) is type:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(_Kind))
        field = id(cls) + object.__basicsize__ - ctypes.sizeof(ctypes.c_void_p)
        ctypes.c_void_p.from_address(field).value = id(_Kind)
    return type(cls)


def _makes_generator(cls: type, *args: object, **kwargs: object) -> bool:
    return cls is torch.Generator and _names_one(*args, **kwargs)


def _always(*_: object, **__: object) -> bool:
    return True


def _names_type(_tensor: object, dtype: object = None, *_: object, **__: object) -> bool:
    return str(getattr(dtype, "__name__", dtype)).startswith("torch.cuda.")


def _makes_storage(_cls: type, *_: object, device: object = None, **__: object) -> bool:
    return _is_of_cuda(device)


# Queries, and their answers to torch itself before devices are on.
_QUERIES: tuple[tuple[Any, str, Callable[[Program], Any]], ...] = (
    (_cuda, "is_available", activation.sees_devices),
    (_cuda, "device_count", rank_devices.num_visible),
    (_cuda, "get_arch_list", lambda _: []),
    (_cuda, "get_gencode_flags", lambda _: ""),
    (_cuda.graphs, "is_current_stream_capturing", lambda _: False),
    (_accelerator, "is_available", activation.sees_devices),
    (_accelerator, "device_count", rank_devices.num_visible),
    (_accelerator, "current_accelerator", _accelerator_of),
    (torch.backends.cuda, "is_built", activation.sees_devices),
)
_USES = (
    (_cuda, ("_lazy_init", "_exchange_device", "_maybe_exchange_device")),
    (_cuda.graphs, ("graph_pool_handle",)),
    (_compiled, ("_cuda_setDevice",)),  # Where torch was built for CUDA.
)
_CLASSES = (
    _cuda.streams.Stream,
    _cuda.streams.Event,
    _cuda.streams.ExternalStream,
    _cuda.graphs.CUDAGraph,
    _cuda.memory.MemPool,
)
BASES = (
    (_cuda.streams.Stream, streams.StreamBase),
    (_cuda.streams.Event, streams.EventBase),
    (_cuda.graphs.CUDAGraph, GraphBase),
)
_NAMED = (
    (_kind_of(torch.Generator), "__call__", _makes_generator),  # It cannot be patched itself.
    (torch.UntypedStorage, "__new__", _makes_storage),
    (torch.Tensor, "type", _names_type),
    (torch.Tensor, "pin_memory", _always),
    (torch.UntypedStorage, "pin_memory", _always),
    (_compiled._nn, "_parse_to", _names_one),  # `module.to(rank)`
)


def patches() -> Patches:
    """Return the patches of torch: owner, name and new value."""
    found: Patches = [
        (owner, name, _wrap_query(owner, name, answer)) for owner, name, answer in _QUERIES
    ]
    accelerated = [
        name
        for name in dir(_compiled)
        if name.startswith("_accelerator_") and name != "_accelerator_getAccelerator"
    ]
    own = sorted(_FUNCTIONS_OF_CUDA - _QUERIES_OF_BUILDS - {*accelerated})
    own = own if activation.is_built() else []
    for owner, names in (*_USES, (_compiled, accelerated), (_compiled, own)):
        found += [(owner, name, _wrap_use(owner, name)) for name in names if hasattr(owner, name)]
    found.append((_cuda, "_lazy_call", _wrap_lazy_call(_cuda._lazy_call)))
    found = _under_every_name(found)
    check = _optimizer._accelerator_graph_capture_health_check
    found.append((_optimizer, check.__name__, _skip_without_devices(check)))
    found.append((_compiled, "__getattr__", _missing_attribute))
    return [*found, *_class_patches(), *_object_patches()]


def _under_every_name(found: Patches) -> Patches:
    """Return the patches, and the same for torch's modules that import the functions by name."""
    new = {id(getattr(owner, name)): patch for owner, name, patch in found}
    taken = {(id(owner), name) for owner, name, _ in found}
    modules = [
        module
        for name, module in sys.modules.copy().items()
        if name.startswith("torch.cuda") and isinstance(module, ModuleType)
    ]
    return found + [
        (module, name, new[id(value)])
        for module in modules
        for name, value in vars(module).items()
        if id(value) in new and (id(module), name) not in taken
    ]


def _class_patches() -> Patches:
    """Return patches of the constructors that only CUDA builds have."""
    found: Patches = [(kind, "__new__", _wrap_constructor(kind)) for kind in _CLASSES]
    found += [
        (kind, name, value)
        for kind, base in BASES
        for name, value in vars(base).items()
        if not name.startswith("_") and not hasattr(kind, name)
    ]
    if activation.is_built():
        found += [
            (kind, name, staticmethod(_wrap_static(kind, name)))
            for kind, base in BASES
            for name, value in vars(base).items()
            if not name.startswith("_")
            and isinstance(value, staticmethod)
            and isinstance(inspect.getattr_static(kind, name, None), staticmethod)
        ]
    found += [(owner, name, _wrap_if_cuda(owner, name, is_use)) for owner, name, is_use in _NAMED]
    if activation.is_built():
        return found
    return found + [(_cuda, name, memory.legacy_type(name)) for name in memory.LEGACY_TYPES]


def _object_patches() -> Patches:
    """Return patches of torch's objects that are empty in CPU builds."""
    generators = [(_cuda, "default_generators", _Generators(_cuda.default_generators))]
    if activation.is_built():
        return generators
    nvtx: Any = import_module("torch.cuda.nvtx")
    return [*generators, (nvtx, "_nvtx", _Ranges(nvtx._nvtx))]


def _wrap_query(owner: Any, name: str, answer: Callable[[Program], Any]) -> Callable[..., Any]:
    """Wrap a query for devices: it turns them on, as `tensor.to(0)` may follow.

    torch's own questions take none: an optimizer asks, and a program for gloo needs no compiler.
    Where devices cannot be had, the answer is that of a build without CUDA.
    """
    original = getattr(owner, name)

    @functools.wraps(original)
    def ask(*args: Any, **kwargs: Any) -> Any:
        program = rank_program()
        if (
            program is None
            or activation.is_enabled()
            or not activation.are_available(program.context)
        ):
            return original(*args, **kwargs)
        is_own = _is_torchs_own(sys._getframe(1))
        if activation.sees_devices(program) and not is_own:
            activation.enable_for(program)
            return getattr(owner, name)(*args, **kwargs)
        return answer(program)

    return ask


def _is_torchs_own(frame: FrameType) -> bool:
    """Return whether torch itself runs there; its tests are programs."""
    name = str(frame.f_globals.get("__name__"))
    return name.startswith("torch.") and not name.startswith("torch.testing.")


def _wrap_use(owner: Any, name: str) -> Callable[..., Any]:
    """Wrap a function of torch.cuda: the first call of a rank turns devices on.

    Raises:
        UnsupportedError: They cannot be had.
    """
    original = getattr(owner, name)

    @functools.wraps(original)
    def ask(*args: Any, **kwargs: Any) -> Any:
        program = rank_program()
        if activation.turn_on_at_use(program):
            activation.enable_for(program)
            return getattr(owner, name)(*args, **kwargs)
        if program is not None and activation.is_enabled() and name != _USE_QUERY:
            native().simrank_set_initialized(1)
        return original(*args, **kwargs)

    return ask


def _missing_attribute(name: str) -> Any:
    """Return a function that CPU builds lack; its call turns devices on.

    To look for it is no use: torch's compiler looks for all of them.

    Raises:
        AttributeError: It is none of CUDA's, or devices are torch's own.
    """
    if name not in _FUNCTIONS_OF_CUDA or not activation.turn_on_at_use(rank_program()):
        raise AttributeError(f"module 'torch._C' has no attribute '{name}'")

    def call(*args: Any, **kwargs: Any) -> Any:
        activation.enable_awaited()
        return getattr(_compiled, name)(*args, **kwargs)

    return call


def _skip_without_devices(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function that ranks skip until they use devices."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        is_off = activation.turn_on_at_use(rank_program())
        return None if is_off else original(*args, **kwargs)

    return call


def _wrap_lazy_call(original: Any) -> Callable[..., Any]:
    """Wrap `_lazy_call`: a rank's calls wait until it has devices."""

    @functools.wraps(original)
    def call(callable_: Callable[[], None], **kwargs: Any) -> None:
        program = rank_program()
        if activation.turn_on_at_use(program):
            activation.call_later(program, callable_)
        else:
            original(callable_, **kwargs)

    return call


def _wrap_constructor(kind: type) -> Callable[..., Any]:
    """Wrap a constructor that CPU builds lack: its first call turns devices on."""
    original, name = kind.__new__, kind.__name__

    def make(cls: type, *args: Any, **kwargs: Any) -> Any:
        program = rank_program()
        if not activation.turn_on_at_use(program):
            return original(cls, *args, **kwargs)
        activation.enable_for(program)
        return getattr(_cuda, name)(*args, **kwargs)

    return make


def _wrap_static(kind: type, name: str) -> Callable[..., Any]:
    """Wrap a static method that CUDA builds have: its first call turns devices on."""
    original = getattr(kind, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        program = rank_program()
        if not activation.turn_on_at_use(program):
            return original(*args, **kwargs)
        activation.enable_for(program)
        return getattr(getattr(_cuda, kind.__name__), name)(*args, **kwargs)

    return call


def _wrap_if_cuda(owner: Any, name: str, is_use: Callable[..., bool]) -> Callable[..., Any]:
    """Wrap a C++ function: a call with a CUDA device turns devices on."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if is_use(*args, **kwargs) and activation.turn_on_at_use(rank_program()):
            activation.enable_awaited()
            return getattr(owner, name)(*args, **kwargs)
        return original(*args, **kwargs)

    return call


class _Generators(DefaultGenerators):
    """`torch.cuda.default_generators` before the first use of a device."""

    def __init__(self, original: Any) -> None:
        self._original = original

    def __len__(self) -> int:
        """Turn devices on, and return the number of visible ones."""
        program = rank_program()
        if activation.turn_on_at_use(program):
            activation.enable_where_possible(program)
        return super().__len__() if activation.is_enabled() else len(self._original)

    def __getitem__(self, index: Any) -> Any:
        """Return the generator of a device."""
        return (
            super().__getitem__(index)
            if len(self) and activation.is_enabled()
            else self._original[index]
        )


class _Ranges:
    """The functions of NVTX, for ranks."""

    def __init__(self, original: object) -> None:
        self._original = original

    def __getattr__(self, name: str) -> Any:
        """Return one of them."""
        is_meant = activation.may_be_used(rank_program())
        return getattr(bindings.Nvtx if is_meant else self._original, name)
