"""Turn simulated CUDA devices on and off, and bind threads to ranks.

Start here: `enable`, one `RankState` per rank, `RankState.bind` on the rank's thread, `disable`.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
import uuid as uuids
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, overload

import torch

from simrank.engine.callsite import attributes_of, is_real
from simrank.engine.collector import look_at_all
from simrank.errors import UnsupportedError
from simrank.isolation.ledger import Ledger
from simrank.ranks.program_modules import PerModule, own_modules
from simrank.torch.cuda import bindings, memory, pools
from simrank.torch.cuda.library import (
    Initialized,
    enable_devices,
    native,
    operators,
    use_device,
)
from simrank.torch.cuda.operations import Callbacks, install
from simrank.torch.cuda.streams import forget_graphs, per_rank

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


# ---- properties of a simulated device ----

GIB = 1 << 30


@dataclass(frozen=True)
class DeviceProperties:
    """The fields of torch's `_CudaDeviceProperties`; defaults are an H100 SXM's.

    Source: NVIDIA H100 data sheet and CUDA C++ programming guide, compute capability 9.0.
    """

    name: str = "NVIDIA H100 80GB HBM3"
    major: int = 9
    minor: int = 0
    total_memory: int = 80 * GIB
    multi_processor_count: int = 132
    max_threads_per_multi_processor: int = 2048
    max_threads_per_block: int = 1024
    warp_size: int = 32
    regs_per_multiprocessor: int = 65536
    L2_cache_size: int = 50 << 20
    shared_memory_per_block: int = 48 << 10
    shared_memory_per_block_optin: int = 227 << 10
    shared_memory_per_multiprocessor: int = 228 << 10
    clock_rate: int = 1_980_000  # kHz
    memory_clock_rate: int = 2_619_000  # kHz
    memory_bus_width: int = 5120
    is_integrated: int = 0
    is_multi_gpu_board: int = 0
    pci_bus_id: int = 0
    pci_device_id: int = 0
    pci_domain_id: int = 0
    uuid: uuids.UUID = field(default=uuids.UUID(int=0))

    @property
    def gcnArchName(self) -> str:  # noqa: N802 - torch's name.
        """Return the device's name, as CUDA builds do."""
        return self.name

    def __str__(self) -> str:
        """Return torch's text."""
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory >> 20}MB, "
            f"multi_processor_count={self.multi_processor_count}, uuid={self.uuid}, "
            f"pci_bus_id={self.pci_bus_id}, pci_device_id={self.pci_device_id}, "
            f"pci_domain_id={self.pci_domain_id}, L2_cache_size={self.L2_cache_size >> 20}MB)"
        )

    __repr__ = __str__


# ---- devices on and off ----
# Start here: `enable`, one `RankState` per rank, `RankState.bind` on the rank's thread, `disable`.


class Switch:
    """A switch among replaced names, as `(Switch(turn), "is_on", True)`.

    Args:
        turn: Called with whether it is on from now on.
        is_on: Whether it is on before.
    """

    def __init__(self, turn: Callable[[bool], object], *, is_on: bool = False) -> None:
        self._turn = turn
        self._is_on = is_on

    @property
    def is_on(self) -> bool:
        """Whether the switch is on; setting it calls `turn`."""
        return self._is_on

    @is_on.setter
    def is_on(self, is_on: bool) -> None:
        self._turn(is_on)
        self._is_on = is_on


def replace_everywhere(ledger: Ledger, pairs: Sequence[tuple[object, object]]) -> None:
    """Replace objects (old, new) under every name that a module has for them.

    A program may have said `from torch.cuda import Stream` before.
    """
    holds_any = _holders(frozenset(id(old) for old, _ in pairs))
    modules = sys.modules.copy()
    cached = holds_any.cached(modules)
    own = set(map(id, own_modules()))
    for name, module in modules.items():  # Programs put anything into sys.modules.
        is_concerned = id(module) in own or cached.get(name)
        if is_concerned is None:
            is_concerned = is_real(module, ModuleType) and holds_any(module)
        if is_concerned:
            _replace_in(ledger, module, pairs)


def _replace_in(ledger: Ledger, module: ModuleType, pairs: Sequence[tuple[object, object]]) -> None:
    """Replace objects (old, new) under every name that one module has for them."""
    new = {id(old): replacement for old, replacement in pairs}
    for name, value in list(attributes_of(module).items()):
        if id(value) in new:
            ledger.replace(module, name, new[id(value)])


@lru_cache(maxsize=1)
def _holders(wanted: frozenset[int]) -> PerModule[bool]:
    """Return a cached test of whether a module holds any of some objects; a search takes 20 ms."""
    return PerModule(lambda module: not wanted.isdisjoint(map(id, attributes_of(module).values())))


# ---- Turns simulated CUDA devices on and off, and says which rank a thread carries ----

BASE_ADDRESS = 1 << 44  # Above what small programs map, below where Linux puts programs.
_LOW_ADDRESS = 1 << 40  # For clusters that fit in no other way.
_END_ADDRESS = 84 << 40  # Where Linux may put position-independent programs: 0x55....
_MAX_VISIBLE = 127  # torch's DeviceIndex is an int8.


@dataclass(frozen=True)
class Layout:
    """Addresses of device memory: device g begins at `base + g * span_bytes`.

    Attributes:
        num_devices: Devices that have addresses: of all nodes, or at most those that are used.
        memory_bytes: Memory of each.
        base: First address.
        span_bytes: Addresses per device; None for twice its memory, so that fragments hurt no
            more than on hardware (which maps pages anywhere), or once where that is too much.
    """

    num_devices: int
    memory_bytes: int
    base: int = BASE_ADDRESS
    span_bytes: int | None = None

    @property
    def span(self) -> int:
        """Addresses per device."""
        if self.span_bytes is not None:
            return self.span_bytes
        once = -(-self.memory_bytes // GIB) * GIB
        twice = 2 * once
        return twice if self.base + self.num_devices * twice <= _END_ADDRESS else once

    @classmethod
    def of(cls, num_devices: int, memory_bytes: int) -> Layout:
        """Return the default layout of a number of devices."""
        usual = cls(num_devices, memory_bytes)
        fits = usual.base + num_devices * usual.span <= _END_ADDRESS
        return usual if fits else replace(usual, base=_LOW_ADDRESS)

    def check(self) -> None:
        """Raise ValueError if the addresses are unusable."""
        if self.span < self.memory_bytes or self.span % GIB or self.base % GIB:
            raise ValueError(f"base and span must be whole GiB, and a span hold a device: {self}")
        if self.base + self.num_devices * self.span > _END_ADDRESS:
            raise ValueError(f"{self} does not fit below address {_END_ADDRESS:#x}")


class RankState:
    """C++'s state of one rank: devices, current device, streams and generators.

    Attributes:
        rank: The number that callbacks get.
        num_devices: How many devices it sees, cuda:0 to cuda:(num_devices - 1).

    Args:
        seed: What random numbers of its devices start from, each from another, until they are
            seeded.
    """

    def __init__(self, rank: int, *, first_device: int, num_devices: int, seed: int = 0) -> None:
        if not 0 < num_devices <= _MAX_VISIBLE:
            raise ValueError(f"a rank sees 1 to {_MAX_VISIBLE} devices, not {num_devices}")
        self.rank = rank
        self.num_devices = num_devices
        new = native().simrank_rank_new
        self._handle: int | None = new(rank, first_device, num_devices, seed)

    def bind(self) -> None:
        """Bind the calling thread, and threads that torch makes for it, to the rank."""
        native().simrank_bind(self._handle)

    def bind_other_threads(self) -> None:
        """Bind every unbound thread to the rank."""
        native().simrank_bind_other_threads(self._handle)

    def free(self) -> None:
        """Free the rank's state; no thread may be bound to it."""
        handle, self._handle = self._handle, None
        native().simrank_rank_free(handle)


def unbind() -> None:
    """Unbind the calling thread: it sees no device, as in a CPU build of torch."""
    native().simrank_bind(None)


_patches = Ledger(__name__)
_enabled: list[Layout] = []
_is_seen = [False]  # Whether torch saw a GPU before simulated devices were turned on.


def is_enabled() -> bool:
    """Return whether simulated devices are on."""
    return bool(_enabled)


def enable(  # noqa: PLR0913 - each a keyword of its own
    num_devices: int,
    properties: DeviceProperties | None = None,
    *,
    layout: Layout | None = None,
    callbacks: Callbacks | None = None,
    fill_fresh: bool = False,
    replace_real_devices: bool = False,
    value_limits: tuple[int, int] | None = None,
    num_used: int | None = None,
) -> Layout:
    """Turn simulated CUDA devices on for the process, until `disable`.

    Threads see them once they carry a rank (`RankState.bind`).

    Args:
        num_devices: Devices of all nodes together.
        properties: What every device says of itself; its `total_memory` is what it has.
        layout: Addresses of the devices' memory; the default follows from the first two.
        callbacks: Its listeners.
        fill_fresh: Fill fresh memory with 0xFF, which is NaN in every floating-point dtype.
        replace_real_devices: Hide the GPUs that torch sees.
        value_limits: Bytes up to which tensors have values, and those of integers; None: all.
        num_used: How many devices are used at most, in any order; None: all.

    Returns:
        Where the devices' memory lies: as asked, unless tensors of an earlier simulation are
        still alive there; then behind them.

    Raises:
        UnsupportedError: torch sees real GPUs and `replace_real_devices` is not set; or the
            library cannot be had (see `library.load`).
        RuntimeError: Devices are enabled already, or the addresses are taken.
        ValueError: The devices do not fit into the address space.
    """
    if _enabled:
        raise RuntimeError("simulated CUDA devices are enabled already")
    if has_real_devices() and not replace_real_devices:
        raise UnsupportedError(
            "this torch has real CUDA devices; simulated ones would hide them\n"
            "  to fix: enable(..., replace_real_devices=True), or CUDA_VISIBLE_DEVICES=''"
        )
    properties = properties or DeviceProperties()
    layout = _placed(layout or Layout.of(num_used or num_devices, properties.total_memory))
    words = (num_devices, layout.num_devices, layout.base, layout.span, layout.memory_bytes)
    enable_devices(words, fill_fresh=fill_fresh, value_limits=value_limits)
    native().simrank_processors(
        properties.multi_processor_count, properties.max_threads_per_multi_processor
    )
    install(callbacks or Callbacks())
    _enabled.append(layout)
    try:
        _patch(properties)
    except BaseException:
        disable()
        raise
    return layout


def has_real_devices() -> bool:
    """Return whether torch sees real GPUs, patched or not."""
    if not _enabled:
        _is_seen[0] = bool(inspect.unwrap(torch.cuda.is_available)())
    return _is_seen[0]


def _placed(layout: Layout) -> Layout:
    """Return the layout after live tensors of earlier simulations."""
    layout.check()
    if native().simrank_num_live_blocks():
        look_at_all()
    size = layout.num_devices * layout.span
    moved = replace(
        layout, base=native().simrank_free_base(layout.base, size), span_bytes=layout.span
    )
    moved.check()
    return moved


def disable() -> None:
    """Restore torch. Tensors on devices stay alive, but cannot be used."""
    if not _enabled:
        return
    _patches.restore()
    _reset_leftovers()
    install(Callbacks())
    native().simrank_bind_other_threads(None)
    native().simrank_disable()
    _enabled.clear()


@contextmanager
def standalone(num_devices: int = 1, **options: Any) -> Iterator[RankState]:
    """Turn devices on for a block, as one rank that every thread belongs to."""
    enable(num_devices, **options)
    try:
        state = RankState(0, first_device=0, num_devices=num_devices)
        state.bind_other_threads()
        use_device()
        yield state
        state.free()
    finally:
        disable()


def _reset_leftovers() -> None:
    """Reset state that a simulation may have left."""
    bindings.forget()
    forget_graphs()
    native().simrank_trace_memory(0)
    native().simrank_record(0)
    native().simrank_watch_scopes(0)
    native().simrank_forget_recorded()
    native().simrank_pending_clear()


def _patch(properties: DeviceProperties) -> None:
    """Patch torch's Python functions that query devices."""
    for name, value in bindings.private_functions().items():
        _patches.replace(torch._C, name, value)
    _patch_cuda_module(properties)
    _patch_classes()
    _patch_storages()
    if torch.version.cuda is None:  # Packages with kernels compare it with their own build's.
        _patches.replace(torch.version, "cuda", bindings.CUDA_VERSION)
    _patches.replace(torch.cuda.nvtx, "_nvtx", bindings.Nvtx)
    # Otherwise it warns that torch was built without cuDNN, which is none of the program's fault.
    _patches.replace(torch.backends.cudnn, "is_acceptable", lambda _tensor: False)
    _patches.replace(
        torch.cuda.nccl, "is_available", lambda _tensors: False
    )  # Nor is it without CUDA.
    fuses = torch._C._jit_can_fuse_on_gpu()
    fusion = Switch(torch._C._jit_override_can_fuse_on_gpu, is_on=fuses)
    _patches.replace(fusion, "is_on", False)  # NVRTC does that.
    if torch.distributed.is_available():
        symmetric: Any = importlib.import_module("torch.distributed._symmetric_memory")
        _patches.replace(symmetric, "_should_use_implicit_mempool", lambda: False)


def _patch_cuda_module(properties: DeviceProperties) -> None:
    replacements = {
        "_lazy_init": use_device,
        "_lazy_call": bindings.call_or_defer(torch.cuda._lazy_call),
        "_initialized": Initialized(),
        "_cached_device_count": None,  # What torch itself counted outlives a simulation.
        "_cudart": bindings.Cudart("_cudart"),
        "_exchange_device": bindings.exchange_device,
        "_maybe_exchange_device": bindings.maybe_exchange_device,
        "_CudaDeviceProperties": DeviceProperties,
        "_get_device_properties": bindings.properties_getter(properties),
        "default_generators": DefaultGenerators(),
    }
    for name, value in replacements.items():
        _patches.replace(torch.cuda, name, value)
    _patches.replace(torch.cuda.random, "_lazy_call", torch.cuda._lazy_call)
    _patches.replace(torch.cuda, "MemPool", pools.MemPool)
    for name, value in pools.functions().items():
        _patches.replace(torch.cuda.memory, name, value)


_CLASSES = {
    "torch.cuda.streams": ("Stream", "Event", "ExternalStream"),
    "torch.cuda.graphs": (
        "CUDAGraph",
        "graph",
        "graph_pool_handle",
        "is_current_stream_capturing",
        "make_graphed_callables",
    ),
}
_copies: dict[str, ModuleType] = {}


def _patch_classes() -> None:
    """Replace torch's classes over dummy bases by classes over simulated bases.

    They are made once: what a program keeps of one simulation has the classes of the next.
    """
    pairs: list[tuple[object, object]] = []
    for module_name, names in _CLASSES.items():
        if module_name not in _copies:
            made: Any = _executed_again(module_name)
            _copies[module_name] = made
            if hasattr(made, "graph"):
                made.graph = per_rank(made.graph)
        old, new = sys.modules[module_name], _copies[module_name]
        pairs += [(getattr(old, name), getattr(new, name)) for name in names]
    replace_everywhere(_patches, pairs)
    # Separately: these are other functions in each simulation, and programs import them by name.
    asked = [
        (torch.cuda.device_count, bindings.device_count),
        (torch.cuda.is_initialized, bindings.is_initialized),
    ]
    for module in (torch.cuda, torch.cuda.memory, torch.cuda.random, *own_modules()):
        _replace_in(_patches, module, asked)


def _executed_again(module_name: str) -> ModuleType:
    """Execute a module again: `torch._C` now has the base classes that it needs."""
    original = sys.modules[module_name].__spec__
    assert original is not None
    assert original.origin is not None
    spec = importlib.util.spec_from_file_location(module_name, original.origin)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _patch_storages() -> None:
    untyped = torch.UntypedStorage
    _patches.replace(untyped, "resize_", memory.resizer(untyped.resize_))
    _patches.replace(untyped, "__new__", staticmethod(memory.maker(torch._C.StorageBase.__new__)))
    for name in memory.LEGACY_TYPES:
        _patches.replace(torch.cuda, name, memory.legacy_type(name))


# ---- `torch.cuda.default_generators` of the rank that asks ----


class DefaultGenerators(Sequence[torch.Generator]):
    """One generator per visible device; each rank has its own."""

    def __len__(self) -> int:
        """Return the number of visible devices."""
        return int(native().simrank_num_devices())

    @overload
    def __getitem__(self, index: int) -> torch.Generator: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[torch.Generator, ...]: ...
    def __getitem__(self, index: int | slice) -> torch.Generator | tuple[torch.Generator, ...]:
        """Return the generator of a device."""
        if isinstance(index, slice):
            return tuple(self[device] for device in range(len(self))[index])
        device = range(len(self))[index]
        generator: torch.Generator = operators.default_generator(device)
        return generator


# ---- names of torch that simulated devices replace or call ----

# Replaced while devices are enabled: module, attribute.
REPLACED = (
    ("torch.cuda", "_lazy_init"),
    ("torch.cuda", "_lazy_call"),
    ("torch.cuda.random", "_lazy_call"),
    ("torch.cuda", "_initialized"),
    ("torch.cuda", "is_initialized"),
    ("torch.cuda", "_cached_device_count"),
    ("torch.cuda", "_cudart"),
    ("torch.cuda", "_exchange_device"),
    ("torch.cuda", "_maybe_exchange_device"),
    ("torch.cuda", "_CudaDeviceProperties"),
    ("torch.cuda", "default_generators"),
    ("torch.cuda", "device_count"),
    ("torch.cuda", "MemPool"),
    ("torch.cuda.memory", "MemPool"),
    ("torch.cuda.memory", "_cuda_beginAllocateCurrentThreadToPool"),
    ("torch.cuda.memory", "_cuda_beginAllocateToPool"),
    ("torch.cuda.memory", "_cuda_endAllocateToPool"),
    ("torch.cuda.memory", "_cuda_releasePool"),
    ("torch.cuda.streams", "Stream"),
    ("torch.cuda.streams", "Event"),
    ("torch.cuda.streams", "ExternalStream"),
    ("torch.cuda.graphs", "CUDAGraph"),
    ("torch.cuda.graphs", "graph"),
    ("torch.cuda.graphs", "graph_pool_handle"),
    ("torch.cuda.graphs", "is_current_stream_capturing"),
    ("torch.cuda.graphs", "make_graphed_callables"),
    ("torch.cuda.nvtx", "_nvtx"),
    ("torch.cuda.nccl", "is_available"),
    ("torch.version", "cuda"),
    ("torch.backends.cudnn", "is_acceptable"),
    ("torch.distributed._symmetric_memory", "_should_use_implicit_mempool"),
)
# Called.
CALLED = (
    ("torch._C", "_accelerator_emptyCache"),
    ("torch._C", "_accelerator_resetPeakStats"),
    ("torch._C", "_accelerator_resetAccumulatedStats"),
    ("torch._C", "StorageBase"),
    ("torch._C", "_has_cuda"),
    ("torch._C", "_jit_can_fuse_on_gpu"),
    ("torch._C", "_jit_override_can_fuse_on_gpu"),
)
# In C++: at::detail::getCUDAHooks (an object without data), c10::impl::registerDeviceGuard,
# c10::SetAllocator, c10::SetCPUAllocator, c10::ThreadLocalDebugInfo, c10d::TimerRegistry,
# at::native::_fused_sdp_choice_stub, at::native::templates, c10d::symmetric_memory.
