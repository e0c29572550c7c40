"""Triton's driver for the simulated device of the running program.

Programs that query the active device at import time, autotuning, and `triton.testing.do_bench` work
without a GPU; their measurements are simulated time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from triton.backends.driver import DriverBase

from simrank.device import current_device, current_stream
from simrank.device.stream import devices_of
from simrank.errors import UnsupportedError
from simrank.kernels import library_tensors
from simrank.kernels.compiler.launcher import SimulatedLauncher, binary_resources
from simrank.kernels.compiler.targets import most_shared_bytes, target_of
from simrank.ranks import require_program

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from triton.backends.compiler import GPUTarget

    from simrank.device.device import Device
    from simrank.device.tensors.namespace import CudaNames

_MAX_THREADS = 1024  # per program: CUDA C++ Programming Guide, since compute capability 2.0
_NUM_TIMED = 3  # runs of a benchmark: simulated times repeat, but the first may find cold clocks


class ContextOfDriver(Protocol):
    """The part of a Context that this module uses."""

    @property
    def cuda(self) -> CudaNames:
        """Namespace with the names of torch.cuda."""


def _cuda_of(call: str) -> CudaNames:
    library = library_tensors.running()
    if library is not None:
        names: CudaNames = library.namespace
        return names
    return cast("ContextOfDriver", require_program(call).context).cuda


def _device() -> Device:
    library = library_tensors.running()
    if library is not None:
        library.prepare()
    return current_device(require_program("triton.runtime.driver"))


def clear_l2() -> None:
    """Keep the device busy like a fill of 256 MB, as triton's benchmarks do before each run.

    Operations launched behind it are queued before it ends, so their host time does not count.
    """
    library = library_tensors.running()
    if library is not None:
        library.prepare()
    stream = current_stream()
    num_bytes = 256 * 1000 * 1000
    stream.device.launch(
        stream, "clear of the caches", None, num_elements=num_bytes // 4, bytes_moved=num_bytes
    )


class EmptyCache:
    """Replacement of the tensor that benchmarks fill between runs to flush caches."""

    def zero_(self) -> EmptyCache:
        """Keep the device busy for the time of the fill."""
        clear_l2()
        return self


class Loaded(NamedTuple):
    """Result of loading a binary: handles and resources of a thread."""

    module: object
    function: object
    n_regs: int
    n_spills: int
    n_max_threads: int


class SimulatedDriver(DriverBase):  # type: ignore[misc]
    """Triton's driver while a Context is entered."""

    @classmethod
    def is_active(cls) -> bool:
        """Return True: a Context is entered."""
        return True

    def map_python_to_cpp_type(self, ty: str) -> str:
        """Raise: no C launcher is built."""
        raise UnsupportedError(f"the C type of {ty}: no launcher is built for simulated devices")

    def get_current_target(self) -> GPUTarget:
        """Return the compile target of the current device."""
        return target_of(_device().spec)

    def get_current_device(self) -> int:
        """Return the index of the current device."""
        library = library_tensors.running()
        return _device().index if library is None else library.current_device()

    def set_current_device(self, device: int) -> None:
        """Set the current device."""
        _cuda_of("set_current_device").set_device(device)

    def get_current_stream(self, device: int) -> int:
        """Return torch's stream handle; 0 for simrank's own streams, which are objects."""
        library = library_tensors.running()
        return 0 if library is None else library.current_stream(device)

    def get_active_torch_device(self) -> Any:
        """Return the current device; torch's device object in a program that uses torch."""
        library = library_tensors.running() or library_tensors.asked_by_user()
        return _device() if library is None else library.device()

    def get_device_interface(self) -> Any:
        """Return an object with `Event`, `synchronize` and `current_device`, as torch.cuda."""
        return _cuda_of("get_device_interface")

    def get_benchmarker(self) -> Callable[..., Any]:
        """Return the benchmark function of autotuning, which measures simulated time."""
        return do_bench

    def get_empty_cache_for_benchmark(self) -> EmptyCache:
        """Return the replacement of the tensor that benchmarks fill between runs."""
        return EmptyCache()

    def clear_cache(self, cache: object) -> None:
        """Keep the device busy like a cache flush, so that later launches queue up behind it."""
        del cache
        clear_l2()

    launcher_cls = SimulatedLauncher

    def load_binary(self, name: str, kernel: bytes, shared: int, device: int) -> Loaded:
        """Return the resources of a binary, without loading it.

        Raises:
            UnsupportedError: The binary is not for NVIDIA GPUs.
        """
        del shared, device
        if not kernel.startswith(b"\x7fELF") or target_of(_device().spec).backend != "cuda":
            raise UnsupportedError(f"'{name}' on {_device().spec.name}: registers are not known")
        return Loaded(object(), object(), *binary_resources(kernel), _MAX_THREADS)

    def unload_module(self, module: object) -> None:
        """Ignore the call: no module was loaded."""

    @property
    def utils(self) -> SimulatedDriver:
        """The driver itself, which has `get_device_properties`."""
        return self

    def get_device_properties(self, device: int) -> dict[str, int]:
        """Return the properties by which kernels choose their sizes.

        Source: CUDA C++ Programming Guide, technical specifications per compute capability; LDS of
        AMD's devices: CDNA 3 and 4 ISA guides. The number of SMs is the simulated device's.
        """
        spec = devices_of(require_program("get_device_properties"))[device].spec
        target = target_of(spec)
        is_cuda = target.backend == "cuda"
        lds_bytes = (160 if target.arch == "gfx950" else 64) * 1024
        return {
            "max_shared_mem": most_shared_bytes(int(target.arch)) if is_cuda else lds_bytes,
            "multiprocessor_count": spec.num_sms,
            "max_num_regs": 64 * 1024,
            "warpSize": target.warp_size,
        }


def do_bench(
    fn: Callable[[], Any],
    warmup: object = None,
    rep: object = None,
    grad_to_none: object = None,
    quantiles: Sequence[float] | None = None,
    return_mode: str = "mean",
) -> float | list[float]:
    """Return the simulated milliseconds of a call, in the form of `triton.testing.do_bench`.

    Args:
        fn: The measured call: from the start of its first operation to the end of its last one.
        warmup: Ignored, part of triton's signature: one call warms up.
        rep: Ignored, part of triton's signature: simulated times repeat.
        grad_to_none: Ignored, part of triton's signature.
        quantiles: Quantiles of the times to return as a list; or None.
        return_mode: "mean", "median", "min", "max" or "all".
    """
    del warmup, rep, grad_to_none
    if return_mode not in ("mean", "median", "min", "max", "all"):
        raise ValueError(f"return_mode={return_mode!r}; choices: mean, median, min, max, all")
    cuda = _cuda_of("do_bench")
    fn()
    cuda.synchronize()  # As triton: a failing kernel fails before it is timed.
    times_ms = []
    for _ in range(_NUM_TIMED):
        clear_l2()
        first, last = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        first.record()
        fn()
        last.record()
        cuda.synchronize()
        times_ms.append(first.elapsed_time(last))
    return _summary(sorted(times_ms), quantiles, return_mode)


def _summary(
    times_ms: list[float], quantiles: Sequence[float] | None, return_mode: str
) -> float | list[float]:
    if quantiles is not None:
        result = [times_ms[round(q * (len(times_ms) - 1))] for q in quantiles]
        return result[0] if len(result) == 1 else result
    if return_mode == "all":
        return times_ms
    middle = times_ms[len(times_ms) // 2]
    mean = sum(times_ms) / len(times_ms)
    return {"mean": mean, "median": middle, "min": times_ms[0], "max": times_ms[-1]}[return_mode]
