"""How devices are turned on as a rank first uses one, by whatever name it does.

A program asks what there is, calls a function, makes an object, or reaches for what CUDA builds
alone have. What a rank meets first is what it would meet later: a test walks the names.
"""

from __future__ import annotations

import functools
import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from simrank.ranks.current import rank_program
from simrank.torch.cuda import bindings, graphs, memory, streams
from simrank.torch.cuda.native import native
from simrank.torch.cuda.switch import DefaultGenerators
from simrank.torch.devices import activation, rank_devices

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from simrank.ranks import Program

Patches = list[tuple[Any, str, Any]]
_compiled: Any = torch._C
_cuda: Any = torch.cuda
_accelerator: Any = import_module("torch.accelerator")
_optimizer: Any = torch.optim.Optimizer
# What torch looks for to know whether it was built for CUDA, which is a question, not a use.
_TELLS_THE_BUILD = "_cuda_getDeviceCount"
_TELLS_THE_USE = "_accelerator_isAllocatorInitialized"  # Likewise.
_FUNCTIONS_OF_CUDA = {
    name for name, value in bindings.private_functions().items() if callable(value)
} - {_TELLS_THE_BUILD}


def _accelerator_of(program: Program) -> torch.device | None:
    return torch.device("cuda") if activation.sees_some(program) else None


def _is_of_cuda(device: object) -> bool:
    """Return whether an argument names a CUDA device; numbers do."""
    if isinstance(device, torch.device):
        return device.type == "cuda"
    if isinstance(device, str):
        return device.partition(":")[0] == "cuda"
    return isinstance(device, int) and not isinstance(device, bool)


def _names_one(*args: object, **kwargs: object) -> bool:
    return any(map(_is_of_cuda, (*args, *kwargs.values())))


def _makes_generator(cls: type, *args: object, **kwargs: object) -> bool:
    return cls is torch.Generator and _names_one(*args, **kwargs)


def _always(*_: object, **__: object) -> bool:
    return True


def _names_type(_tensor: object, dtype: object = None, *_: object, **__: object) -> bool:
    return str(getattr(dtype, "__name__", dtype)).startswith("torch.cuda.")


def _makes_storage(_cls: type, *_: object, device: object = None, **__: object) -> bool:
    return _is_of_cuda(device)


# Questions, and what torch itself is told before there are devices.
_QUESTIONS: tuple[tuple[Any, str, Callable[[Program], Any]], ...] = (
    (_cuda, "is_available", activation.sees_some),
    (_cuda, "device_count", rank_devices.num_visible),
    (_cuda, "get_arch_list", lambda _: []),
    (_cuda, "get_gencode_flags", lambda _: ""),
    (_cuda.graphs, "is_current_stream_capturing", lambda _: False),
    (_accelerator, "is_available", activation.sees_some),
    (_accelerator, "device_count", rank_devices.num_visible),
    (_accelerator, "current_accelerator", _accelerator_of),
    (torch.backends.cuda, "is_built", activation.sees_some),
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
_BASES = (
    (_cuda.streams.Stream, streams.StreamBase),
    (_cuda.streams.Event, streams.EventBase),
    (_cuda.graphs.CUDAGraph, graphs.GraphBase),
)
_NAMED = (
    (type(torch.Generator), "__call__", _makes_generator),  # Of the class itself nobody can.
    (torch.UntypedStorage, "__new__", _makes_storage),
    (torch.Tensor, "type", _names_type),
    (torch.Tensor, "pin_memory", _always),
    (torch.UntypedStorage, "pin_memory", _always),
    (_compiled._nn, "_parse_to", _names_one),  # `module.to(rank)`
)


def patches() -> Patches:
    """Return what to replace in torch: owner, name and stand-in."""
    found: Patches = [
        (owner, name, _answering(owner, name, answer)) for owner, name, answer in _QUESTIONS
    ]
    accelerated = [
        name
        for name in dir(_compiled)
        if name.startswith("_accelerator_") and name != "_accelerator_getAccelerator"
    ]
    for owner, names in (*_USES, (_compiled, accelerated)):
        found += [(owner, name, _asking(owner, name)) for name in names if hasattr(owner, name)]
    found.append((_cuda, "_lazy_call", _calling(_cuda._lazy_call)))
    found = _under_every_name(found)
    check = _optimizer._accelerator_graph_capture_health_check
    found.append((_optimizer, check.__name__, _unless_off(check)))
    found.append((_compiled, "__getattr__", _find_what_cuda_builds_have))
    return [*found, *_of_classes(), *_of_objects()]


def _under_every_name(found: Patches) -> Patches:
    """Return stand-ins for the same functions in torch's modules that import them by name, too."""
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


def _of_classes() -> Patches:
    """Return what stands for the making of what CUDA builds alone can make."""
    found: Patches = [(kind, "__new__", _making(kind)) for kind in _CLASSES]
    found += [
        (kind, name, value)
        for kind, base in _BASES
        for name, value in vars(base).items()
        if not name.startswith("_") and not hasattr(kind, name)
    ]
    found += [(owner, name, _where(owner, name, is_use)) for owner, name, is_use in _NAMED]
    if activation.is_built():
        return found
    return found + [(_cuda, name, memory.legacy_type(name)) for name in memory.LEGACY_TYPES]


def _of_objects() -> Patches:
    """Return what stands for objects of torch's that hold nothing in builds without CUDA."""
    if activation.is_built():
        return []
    nvtx: Any = import_module("torch.cuda.nvtx")
    return [(_cuda, "default_generators", _Generators()), (nvtx, "_nvtx", _Ranges(nvtx._nvtx))]


def _answering(owner: Any, name: str, answer: Callable[[Program], Any]) -> Callable[..., Any]:
    """Turn devices on as a program asks what there is: it may say `tensor.to(0)` next.

    torch's own questions take none: an optimizer asks, and a program for gloo needs no compiler.
    Where devices cannot be had, the answer is that of a build without CUDA.
    """
    original = getattr(owner, name)

    @functools.wraps(original)
    def ask(*args: Any, **kwargs: Any) -> Any:
        program = rank_program()
        if program is None or activation.is_enabled() or not activation.may_be_had(program.context):
            return original(*args, **kwargs)
        is_own = _is_torchs_own(sys._getframe(1))
        if activation.sees_some(program) and not is_own:
            activation.enable_for(program)
            return getattr(owner, name)(*args, **kwargs)
        return answer(program)

    return ask


def _is_torchs_own(frame: FrameType) -> bool:
    """Return whether torch itself runs there; its tests are programs."""
    name = str(frame.f_globals.get("__name__"))
    return name.startswith("torch.") and not name.startswith("torch.testing.")


def _asking(owner: Any, name: str) -> Callable[..., Any]:
    """Turn devices on as a rank first uses them; then torch does what CUDA builds do.

    Raises:
        UnsupportedError: They cannot be had.
    """
    original = getattr(owner, name)

    @functools.wraps(original)
    def ask(*args: Any, **kwargs: Any) -> Any:
        program = rank_program()
        if activation.are_awaited(program):
            activation.enable_for(program)
            return getattr(owner, name)(*args, **kwargs)
        if program is not None and activation.is_enabled() and name != _TELLS_THE_USE:
            native().simrank_set_initialized(1)
        return original(*args, **kwargs)

    return ask


def _find_what_cuda_builds_have(name: str) -> Any:
    """Return what turns devices on as a rank calls a function that a CPU build has not.

    To look for it is no use: torch's compiler looks for all of them.

    Raises:
        AttributeError: It is none of CUDA's, or devices are torch's own.
    """
    if name not in _FUNCTIONS_OF_CUDA or not activation.are_awaited(rank_program()):
        raise AttributeError(f"module 'torch._C' has no attribute '{name}'")

    def call(*args: Any, **kwargs: Any) -> Any:
        activation.enable_awaited()
        return getattr(_compiled, name)(*args, **kwargs)

    return call


def _unless_off(original: Callable[..., Any]) -> Callable[..., Any]:
    """Leave out in ranks what is about devices that nobody has used yet."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        is_off = activation.are_awaited(rank_program())
        return None if is_off else original(*args, **kwargs)

    return call


def _calling(original: Any) -> Callable[..., Any]:
    """Keep what a rank wants done once it has devices: a seed, above all."""

    @functools.wraps(original)
    def call(callable_: Callable[[], None], **kwargs: Any) -> None:
        program = rank_program()
        if activation.are_awaited(program):
            activation.call_later(program, callable_)
        else:
            original(callable_, **kwargs)

    return call


def _making(kind: type) -> Callable[..., Any]:
    """Turn devices on as a rank first makes an object of a class that a CPU build cannot make."""
    original, name = kind.__new__, kind.__name__

    def make(cls: type, *args: Any, **kwargs: Any) -> Any:
        program = rank_program()
        if not activation.are_awaited(program):
            return original(cls, *args, **kwargs)
        activation.enable_for(program)
        return getattr(_cuda, name)(*args, **kwargs)

    return make


def _where(owner: Any, name: str, is_use: Callable[..., bool]) -> Callable[..., Any]:
    """Turn devices on as a rank first means one to a function of C++ that asks nobody for them."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if is_use(*args, **kwargs) and activation.are_awaited(rank_program()):
            activation.enable_awaited()
            return getattr(owner, name)(*args, **kwargs)
        return original(*args, **kwargs)

    return call


class _Generators(DefaultGenerators):
    """`torch.cuda.default_generators` of who has used no device yet."""

    def __len__(self) -> int:
        """Return the number of visible devices, which are turned on."""
        program = rank_program()
        if activation.are_awaited(program):
            activation.enable_where_possible(program)
        return super().__len__() if activation.is_enabled() else 0

    def __getitem__(self, index: Any) -> Any:
        """Return the generator of a device."""
        return super().__getitem__(index) if len(self) else ()[index]


class _Ranges:
    """NVTX's functions: ranks have them."""

    def __init__(self, original: object) -> None:
        self._original = original

    def __getattr__(self, name: str) -> Any:
        """Return one of them."""
        is_meant = activation.may_be_used(rank_program())
        return getattr(bindings.Nvtx if is_meant else self._original, name)
