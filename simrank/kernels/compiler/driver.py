"""Triton's driver for the simulated device of the running program, and its compile target.

Programs that query the active device at import time, autotuning, and `triton.testing.do_bench` work
without a GPU; their measurements are simulated time.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase

from simrank.device import current_device, current_stream
from simrank.device.stream import devices_of
from simrank.errors import ConfigError, ConfigProblem, UnsupportedError
from simrank.hardware.spec import compute_capability
from simrank.kernels import library_tensors
from simrank.ranks import require_program

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from triton.compiler import ASTSource

    from simrank.device.device import Device
    from simrank.device.tensors.namespace import CudaNames
    from simrank.hardware.spec import DeviceSpec


# ---- launches of kernels that triton has compiled ----
# `triton.compile(...)` and `kernel.warmup(...)` return triton's objects, which get this launcher
# from the driver. The kernel's source is run; the binary only gives the resources.

_USED = re.compile(r"REG:(\d+) STACK:(\d+)")
_BYTES_PER_REGISTER = 4
_OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")


class BinaryResources(NamedTuple):
    """Resources of a thread of a binary.

    Attributes:
        registers: Number of registers.
        spills: Number of spilled registers.
    """

    registers: int
    spills: int


def binary_resources(cubin: bytes) -> BinaryResources:
    """Read the resources of a binary with NVIDIA's tool.

    Raises:
        UnsupportedError: The output of triton's cuobjdump has no registers.
    """
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        tool = triton.knobs.nvidia.cuobjdump.path
        command = [tool, "--dump-resource-usage", file.name]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    match = _USED.search(shown)
    if match is None:
        raise UnsupportedError(f"cuobjdump says nothing of registers: {shown!r}")
    return BinaryResources(int(match.group(1)), int(match.group(2)) // _BYTES_PER_REGISTER)


class SimulatedLauncher:
    """Launches a compiled kernel: its source, with its constants and options.

    Args:
        source: The compiled source.
        metadata: The compiler's metadata, options included.

    Raises:
        UnsupportedError: The source is not a kernel but a file in the compiler's own language.
    """

    def __init__(self, source: ASTSource, metadata: Any) -> None:
        self._jit: Any = getattr(source, "fn", None)
        if not isinstance(self._jit, triton.JITFunction):
            raise UnsupportedError(
                f"launch of '{metadata.name}', which was compiled from no kernel's source\n"
                "  to fix: compile or call the @triton.jit function"
            )
        names = self._jit.arg_names
        constants = {(names.index(k),) if isinstance(k, str) else k: v
                     for k, v in source.constants.items()}  # fmt: skip
        self._constants = {names[path[0]]: v for path, v in constants.items() if len(path) == 1}
        given = {name: getattr(metadata, name, None) for name in _OPTIONS}
        self._options = {k: v for k, v in given.items() if v is not None and k not in names}

    def __call__(self, *given: Any) -> None:
        """Launch the kernel on the current stream.

        Args:
            *given: As triton passes them: the grid's three sizes, the stream, the binary's handle,
                    its packed metadata, metadata of the launch, two hooks, and all arguments of
                    the kernel; constants among them are ignored.
        """
        grid, stream, args = given[:3], given[3], given[9:]
        driver = triton.runtime.driver.active
        current = driver.get_current_stream(driver.get_current_device())
        if stream not in (None, current):
            raise UnsupportedError(
                f"launch of a compiled kernel on stream {stream:#x}, which is not the current one\n"
                "  to fix: make it the current stream"
            )
        named = dict(zip(self._jit.arg_names, args, strict=True)) | self._constants
        self._jit.run(grid=grid, warmup=False, **self._options, **named)


# ---- compile targets by device name ----

# By a part of the device's name; NVIDIA's are in `hardware/spec.py`.
_OTHERS = (
    ("MI300", GPUTarget("hip", "gfx942", 64)),
    ("MI325", GPUTarget("hip", "gfx942", 64)),
    ("MI35", GPUTarget("hip", "gfx950", 64)),
)
_HOPPER = GPUTarget("cuda", 90, 32)

# Shared memory per SM, and the part per program that the system reserves.
# Source: CUDA C++ Programming Guide, technical specifications per compute capability.
_SHARED_BYTES = {80: 164 * 1024, 89: 100 * 1024}
_SHARED_BYTES_OF_OTHERS = 228 * 1024  # 9.0 to 10.3
SHARED_BYTES_RESERVED = 1024


def shared_bytes_of_sm(arch: int) -> int:
    """Return the shared memory of an NVIDIA SM in bytes."""
    return _SHARED_BYTES.get(arch, _SHARED_BYTES_OF_OTHERS)


def most_shared_bytes(arch: int) -> int:
    """Return the largest shared memory of a program in bytes."""
    return shared_bytes_of_sm(arch) - SHARED_BYTES_RESERVED


def target_of(spec: DeviceSpec) -> GPUTarget:
    """Return the compile target of a device; an H100's for unknown names."""
    return _target(spec.name)


@cache
def _target(name: str) -> GPUTarget:
    capability = compute_capability(name)
    if capability is not None:
        return GPUTarget("cuda", 10 * capability[0] + capability[1], 32)
    return next((target for part, target in _OTHERS if part in name.upper()), _HOPPER)


def nvidia_target_of(spec: DeviceSpec) -> GPUTarget:
    """Return the NVIDIA target of a device as seen by kernels; an H100's for other vendors."""
    target = target_of(spec)
    return target if target.backend == "cuda" else _HOPPER


def parse_target(text: str) -> GPUTarget:
    """Parse a target name such as sm_90 or gfx942.

    Raises:
        ConfigError: The name is not a target.
    """
    name = text.strip()
    if name.startswith("sm_") and name[3:].rstrip("a").isdecimal():
        return GPUTarget("cuda", int(name[3:].rstrip("a")), 32)
    if name.startswith("gfx") and len(name) > 5:
        return GPUTarget("hip", name, 64 if name.startswith("gfx9") else 32)
    expected = "names of targets such as sm_90,gfx942"
    raise ConfigError(ConfigProblem("command line", None, "--target", expected, text))


# ---- the driver ----

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
