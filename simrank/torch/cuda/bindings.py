"""Functions of `torch._C`, and names of NCCL, that only CUDA builds have."""

from __future__ import annotations

import enum
import functools
from datetime import timedelta
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from simrank.errors import UnsupportedError
from simrank.torch.cuda import memory, streams
from simrank.torch.cuda.library import (
    Initialized,
    call_before_use,
    native,
    operators,
    use_device,
)
from simrank.torch.cuda.streams import GraphBase, graph_pool_handle, is_capturing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from simrank.torch.cuda.switch import DeviceProperties


# ---- names of NCCL ----

VERSION = 2 << 32 | 28 << 16 | 9  # 2.28.9, which CUDA builds of torch 2.13 come with (assumed).


def nccl_versions() -> dict[str, Callable[[], object]]:
    """Return the functions of `torch._C` for NCCL's version."""
    return {"_nccl_version": lambda: VERSION, "_nccl_version_suffix": lambda: b""}


class NCCLConfig:
    """The configuration of a communicator; simulated groups show `cta_policy` in profiles alone."""

    def __init__(self) -> None:
        self.blocking = -1
        self.cga_cluster_size = -1
        self.min_ctas = -1
        self.max_ctas = -1
        self.net_name: str | None = None
        self.split_share = -1
        self.cta_policy = -1


class Options:
    """Replacement of `ProcessGroupNCCL.Options`, ignored by simulated groups."""

    def __init__(self, is_high_priority_stream: bool = False) -> None:
        self.is_high_priority_stream = is_high_priority_stream
        self.config = NCCLConfig()
        self.split_from: object = None
        self.split_color = 0
        self.global_ranks_in_group: list[int] = []
        self.group_name = ""
        self._timeout = timedelta(minutes=10)


class ProcessGroupNCCL:
    """Replacement of the class, for its options and `isinstance`."""

    Options = Options
    NCCLConfig = NCCLConfig
    NCCL_CTA_POLICY_DEFAULT = 0
    NCCL_CTA_POLICY_EFFICIENCY = 1
    NCCL_CTA_POLICY_ZERO = 2


# ---- functions of `torch._C` ----

CUDA_VERSION = "12.8"  # Assumed: one that torch 2.13 was released for.
_CUDA_NUMBER = 12080
_BLAS_HANDLE = 1


def device_count() -> int:
    """Return the number of devices that this thread's rank sees."""
    return int(native().simrank_num_devices())


def is_initialized() -> bool:
    """Return whether this thread's rank has used a device, and so initialised CUDA."""
    return bool(Initialized())


def call_or_defer(defer: Callable[..., None]) -> Callable[..., None]:
    """Return the function `torch.cuda._lazy_call`: immediate on threads that see devices."""

    @functools.wraps(defer)
    def lazy_call(call: Callable[[], None], **kwargs: Any) -> None:
        if device_count():
            call_before_use(call)
        else:
            defer(call, **kwargs)

    return lazy_call


def current_device() -> int:
    """Return the current device of this thread's rank."""
    use_device()
    return int(native().simrank_current_device())


def set_device(device: int) -> None:
    """Make a device current."""
    use_device()
    if device >= 0:
        operators.set_device(device)


def exchange_device(device: int) -> int:
    """Make a device current, and return the device before; negative numbers are ignored."""
    if device < 0:
        return -1
    before = current_device()
    if before != device:
        operators.set_device(device)
    return before


def maybe_exchange_device(device: int) -> int:
    """Do the same as `exchange_device`; torch.compile needs a different function."""
    return exchange_device(device)


def _index(device: int) -> int:
    return device if device >= 0 else current_device()


def global_device(device: int) -> int:
    """Return the number of a visible device among those of all nodes."""
    return int(native().simrank_first_device()) + _index(device)


def _current_stream(device: int) -> tuple[int, int, int]:
    index = _index(device)
    return native().simrank_current_stream(index), index, streams.CUDA_TYPE


def _default_stream(device: int) -> tuple[int, int, int]:
    return 0, _index(device), streams.CUDA_TYPE


def _external_stream(pointer: int, device: int) -> tuple[int, int, int]:
    return pointer, _index(device), streams.CUDA_TYPE


def _set_stream(stream_id: int, device_index: int, device_type: int) -> None:  # noqa: ARG001 - torch's.
    operators.set_device(device_index)
    native().simrank_set_stream(device_index, stream_id)


def _synchronize() -> None:
    operators.synchronize(current_device())


def _snapshot(*_: object) -> dict[str, Any]:
    segments = []
    for device in range(device_count()):
        segments += memory.memory_segments(global_device(device), device)
    settings = {"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1, "expandable_segments": False}
    traces = [memory.memory_trace(global_device(device)) for device in range(device_count())]
    return {"segments": segments, "device_traces": traces, "allocator_settings": settings}


def _record_memory_history(enabled: str | None, *_: object, **__: object) -> None:
    native().simrank_trace_memory(int(enabled is not None))


def _raw_alloc(size: int, stream: int) -> int:
    device = current_device()
    before = native().simrank_current_stream(device)
    native().simrank_set_stream(device, stream)
    try:
        tensor = torch.empty(size, dtype=torch.uint8, device=torch.device("cuda", device))
    finally:
        native().simrank_set_stream(device, before)
    _raw[tensor.data_ptr()] = tensor
    return tensor.data_ptr()


_raw: dict[int, torch.Tensor] = {}


def _raw_delete(pointer: int) -> None:
    del _raw[pointer]


def refused(what: str) -> Callable[..., Any]:
    """Return a function that raises an error with its name."""

    def refuse(*_: object, **__: object) -> None:
        raise UnsupportedError(f"{what} on simulated CUDA devices")

    return refuse


def _set_sync_debug_mode(mode: int) -> None:
    if mode:
        raise UnsupportedError("torch.cuda.set_sync_debug_mode on simulated CUDA devices")


def _ignored(*_: object, **__: object) -> None:
    """Do nothing."""


class Cudart(ModuleType):
    """Replacement of `torch._C._cudart`."""

    class cudaError(enum.IntEnum):  # noqa: N801 - CUDA's name.
        """The result of all calls: success."""

        success = 0

    @staticmethod
    def cudaGetErrorString(error: int) -> str:  # noqa: N802 - CUDA's name.
        """Return CUDA's text for a result."""
        return "no error" if error == 0 else f"error {error}"

    @staticmethod
    def cudaMemGetInfo(device: int) -> tuple[int, int]:  # noqa: N802 - CUDA's name.
        """Return free and total bytes."""
        return memory.memory_info(global_device(device))

    cudaProfilerStart = cudaProfilerStop = staticmethod(lambda: 0)  # noqa: N815 - CUDA's names.
    cudaHostRegister = cudaHostUnregister = staticmethod(lambda *_: 0)  # noqa: N815


class Nvtx:
    """Replacement of `torch._C._nvtx`: ranges nest and have no effect."""

    _depth = 0
    _ranges = 0

    @classmethod
    def rangePushA(cls, _message: str) -> int:  # noqa: N802 - NVTX's name.
        """Return the depth at which the range starts."""
        cls._depth += 1
        return cls._depth - 1

    @classmethod
    def rangePop(cls) -> int:  # noqa: N802 - NVTX's name.
        """Return the depth of the range that ends."""
        cls._depth -= 1
        return cls._depth

    @classmethod
    def rangeStartA(cls, _message: str) -> int:  # noqa: N802 - NVTX's name.
        """Return the range's number."""
        cls._ranges += 1
        return cls._ranges

    markA = rangeEnd = staticmethod(_ignored)  # noqa: N815 - NVTX's names.
    deviceRangeStart = deviceRangeEnd = staticmethod(_ignored)  # noqa: N815


def _device_functions() -> dict[str, object]:
    return {
        "_cuda_getDeviceCount": device_count,
        "_cuda_init": use_device,
        "_cuda_isInBadFork": lambda: False,
        "_cuda_getDevice": current_device,
        "_cuda_setDevice": set_device,
        "_cuda_exchangeDevice": exchange_device,
        "_cuda_maybeExchangeDevice": maybe_exchange_device,
        "_cuda_hasPrimaryContext": lambda _device: is_initialized(),
        "_cuda_canDeviceAccessPeer": lambda _device, _peer: True,
        "_cuda_synchronize": _synchronize,
        "_cuda_sleep": lambda cycles: operators.sleep(int(cycles)),
        "_cuda_getArchFlags": lambda: "sm_80 sm_90 sm_100",
        "_cuda_getCompiledVersion": lambda: _CUDA_NUMBER,
        "_cuda_getDriverVersion": lambda: _CUDA_NUMBER,
        "_cuda_ipc_collect": _ignored,
        "_cuda_set_sync_debug_mode": _set_sync_debug_mode,
        "_cuda_get_sync_debug_mode": lambda: 0,
        "_cuda_getCurrentBlasHandle": lambda: _BLAS_HANDLE,
        "_cuda_getCurrentSolverHandle": lambda: _BLAS_HANDLE,
        "_cuda_clearCublasWorkspaces": _ignored,
        "_nccl_version": lambda: VERSION,
        "_nccl_version_suffix": lambda: b"",
        "_has_cuda": True,
    }


def _stream_functions() -> dict[str, object]:
    return {
        "_cuda_getCurrentStream": _current_stream,
        "_cuda_getDefaultStream": _default_stream,
        "_cuda_getStreamFromExternal": _external_stream,
        "_cuda_getCurrentRawStream": lambda device: _current_stream(device)[0],
        "_cuda_setStream": _set_stream,
        "_CudaStreamBase": streams.StreamBase,
        "_CudaEventBase": streams.EventBase,
        "_CUDAGraph": GraphBase,
        "_graph_pool_handle": graph_pool_handle,
        "_cuda_isCurrentStreamCapturing": is_capturing,
    }


def _memory_functions() -> dict[str, object]:
    return {
        "_cuda_emptyCache": torch._C._accelerator_emptyCache,
        "_cuda_memoryStats": lambda device: memory.memory_stats(global_device(device)),
        "_cuda_memorySnapshot": _snapshot,
        "_cuda_resetPeakMemoryStats": lambda d: torch._C._accelerator_resetPeakStats(_index(d)),
        "_cuda_resetAccumulatedMemoryStats": lambda d: torch._C._accelerator_resetAccumulatedStats(
            _index(d)
        ),
        "_cuda_setMemoryFraction": _set_fraction,
        "_cuda_getMemoryFraction": lambda device: _fractions.get(global_device(device), 1.0),
        "_cuda_getAllocatorBackend": lambda: "native",
        "_cuda_record_memory_history": _record_memory_history,
        "_cuda_record_memory_history_legacy": refused("legacy memory histories"),
        "_cuda_cudaCachingAllocator_raw_alloc": _raw_alloc,
        "_cuda_cudaCachingAllocator_raw_delete": _raw_delete,
        "_cuda_cudaCachingAllocator_is_enabled": lambda: True,
        "_cuda_cudaCachingAllocator_enable": _ignored,
        "_cuda_cudaHostAllocator": lambda: 0,
        "_host_emptyCache": _ignored,
        "_accelerator_emptyHostCache": _ignored,  # torch's own looks for a cache without asking.
        "_cuda_hostMemoryStats": refused("torch.cuda.host_memory_stats"),
        "_cuda_resetPeakHostMemoryStats": refused("torch.cuda.reset_peak_host_memory_stats"),
        "_cuda_resetAccumulatedHostMemoryStats": refused(
            "torch.cuda.reset_accumulated_host_memory_stats"
        ),
        "_cuda_lock_mutex": _ignored,
        "_cuda_unlock_mutex": _ignored,
        "_cuda_customAllocator": refused("torch.cuda.memory.CUDAPluggableAllocator"),
    }


_fractions: dict[int, float] = {}


def forget() -> None:
    """Reset limits and raw allocations of programs."""
    _fractions.clear()
    _raw.clear()


def _set_fraction(fraction: float, device: int) -> None:
    which = global_device(device)
    total = torch.cuda.get_device_properties(_index(device)).total_memory
    native().simrank_set_memory_limit(which, int(total * fraction))
    _fractions[which] = fraction


def private_functions() -> dict[str, object]:
    """Return the functions to add to `torch._C`, by name."""
    return {
        **_device_functions(),
        **_stream_functions(),
        **_memory_functions(),
        **FUNCTIONS,
        "_cuda_jiterator_compile_and_launch_kernel": refused("torch.cuda.jiterator"),
        # torch.compile imports these, and uses them for CUDA graphs only.
        "_cuda_CUDAAllocator_AllocatorState": refused("inductor's CUDA graph trees"),
        "_ensureCUDADeviceGuardSet": _ignored,  # FakeTensorMode's: it would replace the devices.
        "_set_cached_tensors_enabled": _ignored,  # Of those trees, of which there are none.
        "_cudart": Cudart("_cudart"),
        "_nvtx": Nvtx,
        "_CudaDeviceProperties": SimpleNamespace,
    }


def properties_getter(properties: DeviceProperties) -> Callable[[int], DeviceProperties]:
    """Return `torch.cuda._get_device_properties` for identical devices."""
    return lambda _device: properties


# ---- What `torch.cuda.comm`, and so `DataParallel`, has in C++ ----

_HOST = -1


def _on(device: int) -> torch.device:
    return torch.device("cpu") if device == _HOST else torch.device("cuda", device)


def broadcast(tensor: torch.Tensor, devices: Sequence[int]) -> list[torch.Tensor]:
    """Return copies of the tensor on each device; its own device gets the tensor itself."""
    return [tensor.to(_on(device), non_blocking=True) for device in devices]


def broadcast_out(tensor: torch.Tensor, out: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copy the tensor into each of `out`."""
    return [target.copy_(tensor, non_blocking=True) for target in out]


def broadcast_coalesced(
    tensors: Sequence[torch.Tensor],
    devices: Sequence[int],
    buffer_size: int,  # noqa: ARG001 - torch's signature.
) -> list[list[torch.Tensor]]:
    """Return all tensors on each device."""
    return [[broadcast(tensor, [device])[0] for tensor in tensors] for device in devices]


def _chunks(
    tensor: torch.Tensor, count: int, sizes: Sequence[int] | None, dim: int
) -> list[torch.Tensor]:
    if sizes is None:
        return list(tensor.chunk(count, dim))
    return list(tensor.split_with_sizes(list(sizes), dim))


def scatter(
    tensor: torch.Tensor,
    devices: Sequence[int],
    chunk_sizes: Sequence[int] | None = None,
    dim: int = 0,
    streams: Sequence[torch.Stream | None] | None = None,
) -> list[torch.Tensor]:
    """Return one chunk on each device, copied on its stream if there is one."""
    chunks = _chunks(tensor, len(devices), chunk_sizes, dim)
    results = []
    for index, (chunk, device) in enumerate(zip(chunks, devices, strict=False)):
        stream = streams[index] if streams else None
        with torch.cuda.stream(stream):  # type: ignore[arg-type]
            results.append(chunk.contiguous().to(_on(device), non_blocking=True))
    return results


def scatter_out(
    tensor: torch.Tensor,
    out: Sequence[torch.Tensor],
    dim: int = 0,
    streams: Sequence[torch.Stream | None] | None = None,  # noqa: ARG001 - torch's signature.
) -> list[torch.Tensor]:
    """Copy one chunk into each of `out`."""
    chunks = _chunks(tensor, len(out), [target.size(dim) for target in out], dim)
    return [target.copy_(chunk) for target, chunk in zip(out, chunks, strict=True)]


def gather(tensors: Sequence[torch.Tensor], dim: int, destination: int | None) -> torch.Tensor:
    """Return the tensors side by side on one device, by default the current one."""
    device = torch.cuda.current_device() if destination is None else destination
    return torch.cat([tensor.to(_on(device)) for tensor in tensors], dim)


def gather_out(tensors: Sequence[torch.Tensor], out: torch.Tensor, dim: int) -> torch.Tensor:
    """Write the tensors side by side into `out`."""
    return out.copy_(torch.cat([tensor.to(out.device) for tensor in tensors], dim))


FUNCTIONS = {
    "_broadcast": broadcast,
    "_broadcast_out": broadcast_out,
    "_broadcast_coalesced": broadcast_coalesced,
    "_scatter": scatter,
    "_scatter_out": scatter_out,
    "_gather": gather,
    "_gather_out": gather_out,
}
