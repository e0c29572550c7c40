"""A program and kernel cases of the kit's author, if it has any."""

from __future__ import annotations

import os
import tempfile
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from simrank.validate.kit.script.children import HOME
from simrank.validate.kit.script.collectives import host_us
from simrank.validate.kit.script.device_work import graphed, surviving
from simrank.validate.kit.script.machine import clean

if TYPE_CHECKING:
    from simrank.validate.kit.script.rows import Rows

OWN: dict[str, str] = {}  # What `simrank compare --kit` writes: texts, and a function's name.
SAMPLE = 16  # Values of a result that are written, spread evenly.
SEED = 7


def own_module(kind: str, rank: int) -> Any:
    """Return a module of the author's text, in a file of its own: Triton reads the source."""
    folder = os.environ.get(HOME) or tempfile.mkdtemp(prefix="kit_")
    path = Path(folder) / f"own_{kind}_{rank}.py"
    path.write_text(OWN[kind], encoding="utf-8")
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def sampled(value: object) -> list[float]:
    """Return numbers of a result, spread evenly, and the norm of all."""
    parts = torch.utils._pytree.tree_leaves(value)  # noqa: SLF001 - torch has no other
    leaves = [each for each in parts if isinstance(each, (torch.Tensor, int, float))]
    flat = [torch.as_tensor(each).detach().double().flatten().cpu() for each in leaves]
    every = torch.cat(flat) if flat else torch.zeros(0, dtype=torch.float64)
    step = max(1, len(every) // SAMPLE)
    found = [*every[::step][:SAMPLE].tolist(), every.norm().item()]
    return [float(f"{each:.6g}") for each in found]


def own_program(rows: Rows) -> None:
    """Run the author's function on all ranks: once for its values, then for its time."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    function = getattr(own_module("program", rank), OWN["function"])
    value = function(rank, ranks)
    title, facts = f"{OWN['function']} on {ranks} ranks", {"values": sampled(value), "calls": []}
    rows.add_of_each("part", "own program", name=title, rank=rank, **facts)
    rows.times("own program", title, host_us(lambda: function(rank, ranks), 1, warm_ups=0))


class Bench:
    """The interface of a kernel case: it makes inputs, launches kernels and keeps outputs."""

    def __init__(self) -> None:
        import numpy as np  # noqa: PLC0415 - for kernel cases alone

        self.np = np
        self.rng = np.random.default_rng(SEED)
        self.results: list[tuple[torch.Tensor, Any, float]] = []
        self.launches: list[Any] = []

    def normal(self, *shape: int, dtype: Any = "float32") -> Any:
        """Return normal random numbers."""
        return self.rng.standard_normal(shape).astype(dtype)

    def integers(self, high: int, *shape: int, low: int = 0, dtype: Any = "int32") -> Any:
        """Return random integers from `low` to below `high`."""
        return self.rng.integers(low, high, shape).astype(dtype)

    def out(self, *shape: int, dtype: Any = "float32") -> Any:
        """Return zeros on the device."""
        return self.put(self.np.zeros(shape, dtype))

    def put(self, *arrays: Any) -> Any:
        """Return arrays as tensors of the device: one, or a list."""
        found = [torch.from_numpy(self.np.ascontiguousarray(each)).cuda() for each in arrays]
        return found[0] if len(found) == 1 else found

    def expect(self, tensor: Any, wanted: Any = None, tolerance: float = 1e-5) -> None:
        """Save a copy of an output, and what it should be."""
        self.results.append((tensor.clone(), wanted, tolerance))

    def launch(self, kernel: Any, grid: Any, *args: Any, **constants: Any) -> None:
        """Launch a kernel, and remember it."""
        kernel[grid](*args, **constants)
        self.launches.append(lambda: kernel[grid](*args, **constants))

    def again(self, _: int) -> None:
        """Launch all kernels once more."""
        for launch in self.launches:
            launch()

    def are_right(self) -> bool:
        """Return whether outputs are within their tolerances, where something is expected."""
        for got, wanted, tolerance in self.results:
            if wanted is not None:
                want = torch.as_tensor(wanted).double()
                rest = (got.double().cpu() - want).abs()
                if not bool((rest <= tolerance * (1 + want.abs())).all()):
                    return False
        return True


def own_kernels(rows: Rows) -> None:
    """Run the author's kernel cases: values, and the time of all launches of a case."""
    try:
        cases = own_module("kernels", 0).RUNS
    except ImportError as error:
        rows.add("note", "own kernels", text=clean(str(error)))
        return
    for name, case in cases.items():
        if rows.is_over():
            rows.add("note", "own kernels", text=f"stopped before {name}")
            return
        with surviving(rows, "own kernels", name):
            bench = Bench()
            case(bench)
            sample = sampled([each[0] for each in bench.results])
            facts = {"sample": sample, "is_right": bench.are_right(), "error": 0.0}
            rows.add("value", "own kernels", name=name, **facts)
            rows.times("own kernels", name, graphed(bench.again, 10, most=3)[0])
