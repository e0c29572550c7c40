"""Collectives as Triton kernels: a module, its options, its symmetric memory (C6).

A benchmark names one as an algorithm, and so does a Context, for the collectives of its programs.

A module has `kernel`, `COLLECTIVE`, `buffer_elements` and `pad_words`; see `benches/kernels`.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from simrank.device import Tensor, as_dtype
from simrank.distributed import symmetric_memory
from simrank.errors import UnsupportedError
from simrank.ranks import require_rank
from simrank.units import parse_size

if TYPE_CHECKING:
    from collections.abc import Mapping
    from importlib.abc import Loader
    from types import ModuleType

    from simrank.device import Buffer
    from simrank.distributed import ProcessGroup
    from simrank.kernels.operation import TritonOperation

    _Call = tuple[int, int, str]  # Group rank, elements, element type.

# Assumed: what a kernel of one NVLink domain starts with.
DEFAULTS: dict[str, Any] = {
    "buffer": "hbm", "num_channels": 8, "num_slots": 4, "slot_size": 4096, "num_warps": 4,
}  # fmt: skip
_NEEDED = ("kernel", "COLLECTIVE", "buffer_elements", "pad_words")


class KernelAlgorithm:
    """A kernel that is a collective.

    Args:
        name: What users call it.
        reference: The module: a dotted name, or the path of a Python file; relative ones are
            looked for from the working directory, then among installed modules.
        options: `num_channels` (programs), `num_slots`, `slot_size` (bytes), `num_warps` and
            `buffer` (only "hbm"); what is missing has a default.

    Attributes:
        name: As given.
        collective: Which one it is.
        kernel: The `@triton.jit` function.
        options: All of them.

    Raises:
        ValueError: There is no such module, something in it is missing, or an option is unknown.
    """

    def __init__(self, name: str, reference: str, options: Mapping[str, Any]) -> None:
        self.name = name
        self._module = _load(reference)
        missing = [part for part in _NEEDED if not hasattr(self._module, part)]
        if missing:
            raise ValueError(f"{reference} has no {', '.join(missing)}")
        unknown = [option for option in options if option not in DEFAULTS]
        if unknown:
            raise ValueError(f"no option {', '.join(unknown)}; choices: {', '.join(DEFAULTS)}")
        self.collective: str = self._module.COLLECTIVE
        self.kernel: Any = self._module.kernel
        self.options = {**DEFAULTS, **options}
        self._prepared: WeakKeyDictionary[ProcessGroup, dict[_Call, PreparedKernel]]
        self._prepared = WeakKeyDictionary()
        if self.options["buffer"] != "hbm":
            raise UnsupportedError(f"buffer: {self.options['buffer']} is not supported: only hbm")
        size = self.options["slot_size"]
        self.options["slot_size"] = parse_size(size) if isinstance(size, str) else size
        for option in ("num_channels", "num_slots", "slot_size", "num_warps"):
            value = self.options[option]
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{option} must be a whole number from 1, got {value!r}")
        if size_is_no_power(self.options["slot_size"]):
            raise ValueError(
                f"slot_size must be a power of two in bytes, got {self.options['slot_size']}"
            )

    def launch_on(self, group: ProcessGroup, source: Buffer, target: Buffer) -> TritonOperation:
        """Launch the kernel for a call; its memory is allocated at the first call of a size.

        Raises:
            UnsupportedError: The tensors are not simrank's own.
        """
        if not (isinstance(source, Tensor) and isinstance(target, Tensor)):
            raise UnsupportedError(f"the kernel {self.name} takes tensors of simrank only")
        rank = group.group_rank(require_rank(self.name).rank)
        count = min(source.numel(), target.numel())  # Of a gathered buffer, a rank's part.
        key = (rank, count, source.dtype.name)
        calls = self._prepared.setdefault(group, {})
        if key not in calls:
            calls[key] = self.prepare(count, source.dtype, group)
        return calls[key].launch(source, target)

    def prepare(
        self, count: int, dtype: object, group: ProcessGroup | None = None
    ) -> PreparedKernel:
        """Allocate this rank's symmetric memory for calls of one size; every rank must call it.

        Args:
            count: As in NCCL's call.
            dtype: Element type.
            group: The calling ranks; None: all.
        """
        program = require_rank("a kernel algorithm")
        world_size = program.world_size if group is None else group.size()
        options, kind = self.options, as_dtype(dtype)
        slot = max(options["slot_size"] // kind.itemsize, 1)
        num_channels, num_slots = options["num_channels"], options["num_slots"]
        words = self._module.pad_words(world_size, num_channels, num_slots)
        before = symmetric_memory.get_signal_pad_size()
        symmetric_memory.set_signal_pad_size(max(before, 4 * words))
        elements = self._module.buffer_elements(count, world_size, num_channels, num_slots, slot)
        buffer = symmetric_memory.empty(max(elements, 1), dtype=kind)
        symmetric_memory.set_signal_pad_size(before)
        return PreparedKernel(self, (count, slot), buffer, group)


def kernels_of(given: Mapping[str, Any]) -> dict[str, KernelAlgorithm]:
    """Load the kernels among forced algorithms, which are given as mappings.

    Raises:
        ValueError: A mapping names no kernel, or one that is of another collective.
    """
    kernels = {}
    for collective, how in given.items():
        if not hasattr(how, "keys"):
            continue
        if "kernel" not in how:
            raise ValueError(f"algorithms[{collective!r}]: expected a key `kernel` in {how}")
        reference = str(how["kernel"])
        options = {key: value for key, value in how.items() if key != "kernel"}
        kernel = kernels[collective] = KernelAlgorithm(reference, reference, options)
        if kernel.collective != collective:
            raise ValueError(f"{reference} is a kernel for {kernel.collective}, not {collective}")
    return kernels


def size_is_no_power(size: int) -> bool:
    """Return whether a size is not a power of two."""
    return size & (size - 1) != 0


class PreparedKernel:
    """A kernel algorithm with the symmetric memory of one rank, ready for calls of one size."""

    def __init__(
        self,
        algorithm: KernelAlgorithm,
        sizes: tuple[int, int],
        buffer: Tensor,
        group: ProcessGroup | None,
    ) -> None:
        self._algorithm = algorithm
        self._count, self._slot = sizes
        self._buffer = buffer
        self._handle = symmetric_memory.rendezvous(buffer, group)

    def launch(self, source: Tensor, target: Tensor) -> TritonOperation:
        """Launch the kernel on the current stream."""
        options, handle = self._algorithm.options, self._handle
        launched: TritonOperation = self._algorithm.kernel[(options["num_channels"],)](
            source, target, handle.buffer_ptrs_dev, handle.signal_pad_ptrs_dev, self._count,
            handle.rank, WORLD_SIZE=handle.world_size, NUM_SLOTS=options["num_slots"],
            SLOT=self._slot, num_warps=options["num_warps"],
        )  # fmt: skip
        return launched


def _load(reference: str) -> Any:
    """Return a module by file or dotted name.

    Raises:
        ValueError: It is missing, or it raised.
    """
    path = Path(reference) if reference.endswith(".py") else _path_of(reference)
    if path.is_file():
        name = f"simrank_kernel_{path.resolve().as_posix().replace('/', '_').replace('.', '_')}"
        if name in sys.modules:
            return sys.modules[name]
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None, "a Python file has a loader"
        assert spec.loader is not None, "a Python file has a loader"
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        _execute(spec.loader, module, path)
        return module
    try:
        return importlib.import_module(reference)
    except ModuleNotFoundError as error:
        raise ValueError(f"no module {reference} with a kernel ({error})") from None


def _execute(loader: Loader, module: ModuleType, path: Path) -> None:
    """Run a module's file; its imports may lie beside it or in the current folder."""
    before = list(sys.path)
    sys.path[:0] = [str(path.resolve().parent), ""]
    try:
        loader.exec_module(module)
    except Exception as error:
        del sys.modules[module.__name__]
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if Path(frame.filename) == path.resolve()]
        line = f":{own[-1].lineno}" if own else ""
        raise ValueError(f"{path}{line} raised {type(error).__name__}: {error}") from error
    finally:
        sys.path[:] = before


def _path_of(dotted: str) -> Path:
    return Path(*dotted.split(".")).with_suffix(".py")
