"""GPUs before a rank uses them: patches that turn devices on; the main program's view.

A program queries devices, calls a function, constructs an object, or reads a name that only CUDA
builds have. The first use gives the same result as later ones: a test walks the names.
"""

from __future__ import annotations

import functools
import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from simrank.context import Context
from simrank.ranks.current import rank_program, running_task
from simrank.torch.cuda import bindings, memory, streams
from simrank.torch.cuda.bindings import nccl_versions
from simrank.torch.cuda.library import native
from simrank.torch.cuda.streams import GraphBase
from simrank.torch.cuda.switch import DefaultGenerators, is_enabled
from simrank.torch.devices import activation, rank_devices
from simrank.torch.devices.rank_devices import visible_in_node

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from simrank.hardware.cluster import Cluster
    from simrank.ranks import Program

Patches = list[tuple[Any, str, Any]]
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
_BASES = (
    (_cuda.streams.Stream, streams.StreamBase),
    (_cuda.streams.Event, streams.EventBase),
    (_cuda.graphs.CUDAGraph, GraphBase),
)
_NAMED = (
    (type(torch.Generator), "__call__", _makes_generator),  # The class itself cannot be patched.
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
    for owner, names in (*_USES, (_compiled, accelerated)):
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
        for kind, base in _BASES
        for name, value in vars(base).items()
        if not name.startswith("_") and not hasattr(kind, name)
    ]
    found += [(owner, name, _wrap_if_cuda(owner, name, is_use)) for owner, name, is_use in _NAMED]
    if activation.is_built():
        return found
    return found + [(_cuda, name, memory.legacy_type(name)) for name in memory.LEGACY_TYPES]


def _object_patches() -> Patches:
    """Return patches of torch's objects that are empty in CPU builds."""
    if activation.is_built():
        return []
    nvtx: Any = import_module("torch.cuda.nvtx")
    return [(_cuda, "default_generators", _Generators()), (nvtx, "_nvtx", _Ranges(nvtx._nvtx))]


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

    def __len__(self) -> int:
        """Turn devices on, and return the number of visible ones."""
        program = rank_program()
        if activation.turn_on_at_use(program):
            activation.enable_where_possible(program)
        return super().__len__() if activation.is_enabled() else 0

    def __getitem__(self, index: Any) -> Any:
        """Return the generator of a device."""
        return super().__getitem__(index) if len(self) else ()[index]


class _Ranges:
    """The functions of NVTX, for ranks."""

    def __init__(self, original: object) -> None:
        self._original = original

    def __getattr__(self, name: str) -> Any:
        """Return one of them."""
        is_meant = activation.may_be_used(rank_program())
        return getattr(bindings.Nvtx if is_meant else self._original, name)


# ---- GPUs as the main program of a test suite sees them: number and properties ----
# PyTorch's tests ask in the process that starts the ranks how many GPUs there are, to skip tests
# and to choose a world size and a backend, and whether GPUs reach each other. That process
# computes on none of them: its streams are idle, and all memory is free.

_asked: list[str | None] = []  # What "cuda" means, once devices are shown.


def show_devices(cuda_devices: str | None = None) -> None:
    """Show the GPUs of a node to the main program; ranks are not affected.

    Args:
        cuda_devices: As for a Context.
    """
    if _asked:
        _asked[0] = cuda_devices
        _of_node.cache_clear()
        return
    _asked.append(cuda_devices)
    c10d: Any = import_module("torch.distributed.distributed_c10d")
    answers: list[tuple[Any, str, Callable[..., Any]]] = [
        (torch.cuda, "is_available", _has_some),
        (torch.cuda, "device_count", _num_devices),
        (torch.cuda, "current_device", lambda: 0),
        (
            torch.cuda,
            "get_device_properties",
            lambda _device=None: activation.properties_of(_node()),
        ),
        (torch.cuda, "can_device_access_peer", _reach_each_other),
        (torch.cuda, "mem_get_info", _memory),
        (torch.cuda.memory, "mem_get_info", _memory),
        (torch.cuda, "is_current_stream_capturing", _never),
        (torch.cuda.graphs, "is_current_stream_capturing", _never),
        (torch.cuda, "synchronize", lambda _device=None: None),
        (torch.accelerator, "is_available", _has_some),
        (torch.accelerator, "device_count", _num_devices),
        (torch.accelerator, "current_accelerator", _first_device),
        (torch.accelerator, "current_device_index", lambda: 0),
        (torch.accelerator, "current_device_idx", lambda: 0),
        (torch.accelerator, "current_stream", IdleStream),
        (torch.accelerator, "synchronize", lambda _device=None: None),
        (torch, "get_device_module", _module_of),
        (torch.distributed, "is_nccl_available", lambda: True),
        (c10d, "is_nccl_available", lambda: True),
    ]
    asks: dict[Any, Any] = {}  # By original: modules that share one share its replacement.
    for owner, name, answer in answers:
        original = getattr(owner, name)
        if original not in asks:
            asks[original] = _in_main_program(original, answer)
        setattr(owner, name, asks[original])
    bindings: Any = import_module("torch._C")
    for name, version in nccl_versions().items():
        if not hasattr(bindings, name):
            setattr(bindings, name, version)
    kind: Any = import_module("torch.testing._internal.common_device_type").CUDATestBase
    kind.setUpClass = classmethod(_choose_device)


class IdleStream:
    """The current stream of a device on which the main program computes nothing.

    Args:
        device: The device; None: the first one.

    Attributes:
        device: The device.
        stream_id: Its number: a device's default stream.
    """

    def __init__(self, device: Any = None) -> None:
        self.device = torch.device("cuda", _index_of(device))
        self.stream_id = 0

    def is_capturing(self) -> bool:
        """Return False: nothing is captured here."""
        return False

    def query(self) -> bool:
        """Return True: nothing runs here."""
        return True

    def synchronize(self) -> None:
        """Do nothing: nothing runs here."""


def _never() -> bool:
    return False


def _index_of(device: Any) -> int:
    """Return the index of a device; 0 if none is given.

    Raises:
        AssertionError: There is no such device; torch's words.
    """
    if device is None:
        return 0
    index = device if isinstance(device, int) else torch.device(device).index or 0
    if not 0 <= index < _num_devices():
        raise AssertionError("Invalid device id")
    return index


def _reach_each_other(device: Any, peer_device: Any) -> bool:
    """Return whether two devices exist: devices of a node have peer access."""
    return _index_of(device) >= 0 and _index_of(peer_device) >= 0


def _memory(device: Any = None) -> tuple[int, int]:
    """Return the free and total bytes of a device."""
    _index_of(device)
    total_bytes = activation.properties_of(_node()).total_memory
    return total_bytes, total_bytes


def _module_of(device: Any = None) -> Any:
    return getattr(torch, "cuda" if device is None else torch.device(device).type)


def _choose_device(cls: Any) -> None:
    """Replace the constants that PyTorch's tests find by computing on a device."""
    cls.no_magma = cls.no_cudnn = True
    cls.cudnn_version = None
    cls.primary_device = "cuda:0"


def _in_main_program(original: Callable[..., Any], answer: Callable[..., Any]) -> Any:
    @functools.wraps(original)
    def ask(*args: object, **kwargs: object) -> Any:
        has_own = is_enabled() and native().simrank_num_devices()  # A block of `standalone`.
        if running_task() is not None or has_own or not activation.are_available(_of_node()):
            return original(*args, **kwargs)
        return answer(*args, **kwargs)

    return ask


@functools.cache
def _of_node() -> Context:
    return Context.for_ranks(1, cuda_devices=_asked[0])


def _node() -> Cluster:
    return _of_node().cluster


def _num_devices() -> int:
    return len(visible_in_node(range(_node().devices_per_node)))


def _has_some() -> bool:
    return _num_devices() > 0


def _first_device(check_available: bool = False) -> torch.device | None:
    del check_available
    return torch.device("cuda") if _num_devices() else None
