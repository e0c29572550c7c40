"""Kernel cases on a real GPU and emulated: outputs and times; see `compare_kernels`.

A file of cases is a module with `RUNS`, a dict of names and functions. Each takes a `Bench`, puts
arrays on the device, launches kernels and says what it expects of their outputs.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import platform
import sys
import traceback
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from simrank.config.project import SIMULATED
from simrank.context import Context
from simrank.errors import ConfigError, ConfigProblem
from simrank.hardware.load import load_cluster
from simrank.multiprocessing.script import import_program, load_script
from simrank.multiprocessing.spawn import spawn_in
from simrank.validate.compare.comparison import is_same_device
from simrank.validate.compare.differences import Tolerance, of_array, torch_tensor, wide
from simrank.validate.compare.program import MissingError
from simrank.validate.options import Options
from simrank.validate.pool import WorkerPool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

CUDA, INTERPRETER = "cuda", "cpu"  # What launches run on: a GPU, or Triton's own interpreter.
_SEED = 7
_RUNS = "RUNS"

Array = np.ndarray[Any, Any]
Times = list[tuple[str, float]]


class Bench:
    """The interface of a case: it makes inputs, launches kernels and keeps outputs.

    Attributes:
        rng: Of the inputs, alike on both sides.
        results: What was found, what was wanted or None, and the tolerance, of each output.
    """

    def __init__(self) -> None:
        self.rng = np.random.default_rng(_SEED)
        self.results: list[tuple[Array, Array | None, float]] = []

    def normal(self, *shape: int, dtype: Any = np.float32) -> Array:  # noqa: ANN401 - numpy's
        """Return normal random numbers."""
        return self.rng.standard_normal(shape).astype(dtype)

    def integers(self, high: int, *shape: int, low: int = 0, dtype: Any = np.int32) -> Array:  # noqa: ANN401 - numpy's
        """Return random integers from `low` to below `high`."""
        return self.rng.integers(low, high, shape).astype(dtype)

    def out(self, *shape: int, dtype: Any = np.float32) -> Any:  # noqa: ANN401 - as `put`
        """Return zeros on the device."""
        return self.put(np.zeros(shape, dtype))

    def put(self, *arrays: Array) -> Any:  # noqa: ANN401 - a tensor of the device
        """Return arrays as tensors of the device: one, or a list."""
        found = [self.tensor(np.ascontiguousarray(array)) for array in arrays]
        return found[0] if len(found) == 1 else found

    def expect(self, tensor: Any, wanted: Any = None, tolerance: float = 1e-5) -> None:  # noqa: ANN401 - arrays
        """Save a copy of an output.

        Args:
            tensor: On the device.
            wanted: What it should be; None: what the other side has, by the bounds of its type.
            tolerance: Relative and absolute, where something is wanted.
        """
        known = None if wanted is None else np.asarray(wanted, np.float64)
        self.results.append((self.array(tensor), known, tolerance))

    def tensor(self, array: Array) -> Any:  # noqa: ANN401 - a tensor of the device
        """Return a copy of an array on the device."""
        raise NotImplementedError

    def array(self, tensor: Any) -> Array:  # noqa: ANN401 - a tensor of the device
        """Return a copy of a tensor on the host."""
        raise NotImplementedError

    def launch(self, kernel: Any, grid: Any, *args: Any, **constants: Any) -> None:  # noqa: ANN401 - Triton's
        """Launch a kernel."""
        raise NotImplementedError


class GpuBench(Bench):
    """Launches on torch's tensors, in a real process.

    Args:
        device: `CUDA`, or `INTERPRETER`.
    """

    def __init__(self, device: str) -> None:
        super().__init__()
        self._device = device
        self._launches: list[tuple[Any, Any, tuple[Any, ...], dict[str, Any]]] = []

    def tensor(self, array: Array) -> Any:  # noqa: ANN401 - torch's
        """Return a copy of an array on the device."""
        return torch_tensor(array).to(self._device)

    def array(self, tensor: Any) -> Array:  # noqa: ANN401 - torch's
        """Return a copy of a tensor on the host: later launches may write to it."""
        return np.array(of_array(tensor))

    def launch(self, kernel: Any, grid: Any, *args: Any, **constants: Any) -> None:  # noqa: ANN401 - Triton's
        """Launch a kernel, and remember it."""
        kernel[grid](*args, **constants)
        self._launches.append((kernel, grid, args, constants))

    def times_us(self) -> Times:
        """Return each kernel's name and time; it runs many times, so outputs are taken before."""
        if self._device == INTERPRETER:
            return []
        import triton  # noqa: PLC0415 - optional, and only in workers

        found = []
        for kernel, grid, args, constants in self._launches:

            def again(k: Any = kernel, g: Any = grid, a: Any = args, c: Any = constants) -> None:  # noqa: ANN401 - Triton's
                k[g](*a, **c)

            found.append((kernel.__name__, 1000 * float(triton.testing.do_bench(again))))
        return found


class SimulatedBench(Bench):
    """Launches on a simulated device.

    Args:
        context: The Context.
    """

    def __init__(self, context: Context) -> None:
        super().__init__()
        self._context = context
        self._launches: list[Any] = []

    def tensor(self, array: Array) -> Any:  # noqa: ANN401 - simrank's
        """Return a copy of an array on the device."""
        return self._context.from_numpy(array)

    def array(self, tensor: Any) -> Array:  # noqa: ANN401 - simrank's
        """Return a copy of a tensor on the host."""
        return np.array(tensor.numpy())

    def launch(self, kernel: Any, grid: Any, *args: Any, **constants: Any) -> None:  # noqa: ANN401 - Triton's
        """Launch a kernel, and remember it."""
        self._launches.append(self._context.launch(kernel, grid, *args, **constants))

    def times_us(self) -> Times:
        """Return each kernel's name and simulated time."""
        return [(op.launch.name, op.cost.duration_ps / 1e6) for op in self._launches]


@dataclass(frozen=True, slots=True)
class CaseRun:
    """The outputs and times of one case on one side.

    Attributes:
        results: As `Bench.results`.
        times_us: The kernels' names and times.
        error: The last line of what it raised, or "".
    """

    results: list[tuple[Array, Array | None, float]] = field(default_factory=list)
    times_us: Times = field(default_factory=list)
    error: str = ""


@dataclass(frozen=True, slots=True)
class KernelRow:
    """One case on both sides.

    Attributes:
        kernel: The case's name.
        ok: Whether both sides ran and are right.
        error: Which side raised what, or "".
        wrong: The sides that are wrong: "gpu", "simrank", or "apart" where nothing was wanted.
        largest_difference: Between the sides.
        gpu_us: The kernels' time; None without a GPU.
        simulated_us: Their simulated time.
    """

    kernel: str
    ok: bool
    error: str = ""
    wrong: tuple[str, ...] = ()
    largest_difference: float = 0.0
    gpu_us: float | None = None
    simulated_us: float = 0.0


@dataclass(frozen=True, slots=True)
class KernelReport:
    """All cases of a file.

    Attributes:
        device: The GPU, or Triton's interpreter.
        cluster: Whose device was simulated.
        is_same: Whether that describes the GPU, so that times may be compared.
        versions: Of what ran.
        rows: One per case.
    """

    device: str
    cluster: str
    is_same: bool
    versions: str
    rows: list[KernelRow]


def compare_kernels(
    path: str,
    *,
    cluster: str = "hgx_h100",
    device: str = CUDA,
    skip: Sequence[str] = (),
    timeout_s: float = 600.0,
) -> KernelReport:
    """Run a file's cases on a real device, in a process of its own, and here on a simulated one.

    Args:
        path: The file.
        cluster: Whose device is simulated.
        device: `CUDA`; `INTERPRETER` shows that the comparison works, on machines without a GPU. It
            measures no times, and its bf16 and fp8 are wrong in themselves.
        skip: Names of cases to leave out.
        timeout_s: For all cases on the real device.

    Raises:
        MissingError: There is no torch, no triton or no GPU.
        ConfigError: The file has no cases.
    """
    for name in ("torch", "triton"):
        if find_spec(name) is None:
            raise MissingError(f"{name} is not installed: kernels cannot run on a GPU")
    load_script(path)
    built = load_cluster(cluster)
    environment = {"TRITON_DEFAULT_FP_FUSION": "0"}  # As numpy, which fuses no product with a sum.
    if device == INTERPRETER:
        environment["TRITON_INTERPRET"] = "1"
    with WorkerPool(
        1, None, timeout_s, env=dict(environment), options=Options(retry=False)
    ) as pool:
        if device == CUDA and not pool.run(_has_gpu)[0]:
            raise MissingError("no GPU was found: kernels have nothing to be compared with")
        about, torch_version, theirs = pool.run(_on_device, path, device, tuple(skip))[0]
    ours = _simulated(path, cluster, skip)
    import triton  # noqa: PLC0415 - optional; it was found

    versions = f"torch {torch_version}, triton {triton.__version__}, numpy {np.__version__}"
    versions += f", Python {platform.python_version()}"
    rows = [row_of(name, theirs[name], ours[name]) for name in theirs]
    return KernelReport(about, built.name, is_same_device(built.device.name, about), versions, rows)


def _has_gpu() -> bool:
    import torch  # noqa: PLC0415 - optional, and only in workers

    return bool(torch.cuda.is_available())


def _on_device(path: str, device: str, skip: Sequence[str]) -> tuple[str, str, dict[str, CaseRun]]:
    """Run everything on a device; in a worker."""
    import torch  # noqa: PLC0415 - optional, and only in workers
    import triton  # noqa: PLC0415 - likewise

    def allocate(size: int, _alignment: int, _stream: object) -> Any:  # noqa: ANN401 - torch's
        return torch.empty(size, dtype=torch.int8, device=device)

    triton.set_allocator(allocate)
    about = torch.cuda.get_device_name() if device == CUDA else "Triton's interpreter"
    with cases_of(path) as runs:
        found = _all(runs, skip, lambda: GpuBench(device))
    return about, torch.__version__, found


def _simulated(path: str, cluster: str, skip: Sequence[str]) -> dict[str, CaseRun]:
    found: dict[str, CaseRun] = {}
    with cases_of(path) as runs, Context(cluster, cuda_devices=SIMULATED) as context:

        def program(_rank: int) -> None:
            found.update(_all(runs, skip, lambda: SimulatedBench(context)))

        spawn_in(context.program, program, (), 1, is_users=False)
    return found


def _all(
    runs: Mapping[str, Callable[[Any], object]], skip: Sequence[str], make: Callable[[], Any]
) -> dict[str, CaseRun]:
    found = {}
    for name, run in runs.items():
        if name in skip:
            continue
        bench = make()
        try:
            run(bench)
            found[name] = CaseRun(bench.results, bench.times_us())
        except Exception as error:  # noqa: BLE001 - shown in the case's row
            found[name] = CaseRun(error=traceback.format_exception_only(error)[-1].strip())
    return found


@contextlib.contextmanager
def cases_of(path: str) -> Iterator[Mapping[str, Callable[[Any], object]]]:
    """Import a file of cases as part of its package, and return its `RUNS`.

    Raises:
        ConfigError: It has none.
    """
    file = Path(path).absolute()
    folder, name = file.parent, file.stem
    while (folder / "__init__.py").exists():
        folder, name = folder.parent, f"{folder.name}.{name}"
    before = list(sys.path)
    sys.path.insert(0, os.fspath(folder))
    importlib.invalidate_caches()
    try:
        runs = getattr(import_program(name), _RUNS, None)
        if not isinstance(runs, dict) or not runs:
            expected = f"{_RUNS}, a dict of names and functions that take a Bench"
            raise ConfigError(ConfigProblem(path, None, "", expected, f"no {_RUNS}"))
        yield runs
    finally:
        sys.path[:] = before


def row_of(name: str, theirs: CaseRun, ours: CaseRun) -> KernelRow:
    """Compare the two sides of a case."""
    for side, found in (("gpu", theirs), ("simrank", ours)):
        if found.error:
            return KernelRow(name, ok=False, error=f"{side}: {found.error}")
    if len(theirs.results) != len(ours.results):
        counts = f"{len(theirs.results)} and {len(ours.results)}"
        return KernelRow(name, ok=False, error=f"the sides expect {counts} outputs")
    wrong: list[str] = []
    apart = 0.0
    for (gpu, wanted, tolerance), (own, _, _) in zip(theirs.results, ours.results, strict=True):
        if (gpu.shape, gpu.dtype) != (own.shape, own.dtype):
            kinds = " and ".join(f"{each.dtype.name} {list(each.shape)}" for each in (gpu, own))
            return KernelRow(name, ok=False, error=f"the sides have {kinds}")
        wrong += _wrong(gpu, own, wanted, tolerance)
        with np.errstate(invalid="ignore"):
            differences = np.abs(wide(gpu) - wide(own))
        apart = max(apart, float(np.max(differences, initial=0.0)))
    gpu_us, own_us = (sum(time for _, time in side.times_us) for side in (theirs, ours))
    return KernelRow(
        name,
        ok=not wrong,
        wrong=tuple(dict.fromkeys(wrong)),
        largest_difference=apart,
        gpu_us=gpu_us or None,
        simulated_us=own_us,
    )


def _wrong(gpu: Array, own: Array, wanted: Array | None, tolerance: float) -> list[str]:
    if wanted is None:
        return ["apart"] if Tolerance().is_outside(gpu, own, gpu.dtype.name).any() else []
    sides = (("gpu", gpu), ("simrank", own))
    return [
        side
        for side, found in sides
        if not np.allclose(wide(found), wanted, rtol=tolerance, atol=tolerance)
    ]


def lines(report: KernelReport) -> Iterator[str]:
    """Yield the table of a report."""
    yield f"{report.device} beside a device of {report.cluster}; {report.versions}"
    yield f"{'kernel':24} {'largest difference':>18} {'GPU us':>9} {'simulated us':>12}"
    for row in report.rows:
        if row.error:
            yield f"{row.kernel:24} {row.error}"
            continue
        measured = "-" if row.gpu_us is None else f"{row.gpu_us:.1f}"
        verdict = f"  wrong: {', '.join(row.wrong)}" if row.wrong else ""
        yield (
            f"{row.kernel:24} {row.largest_difference:18.3g} {measured:>9} "
            f"{row.simulated_us:12.1f}{verdict}"
        )
    if not report.is_same:
        yield f"times are of different devices: {report.device} is not what {report.cluster} has"
    num_ok = sum(row.ok for row in report.rows)
    yield f"{num_ok} of {len(report.rows)} runs are right on both sides"
