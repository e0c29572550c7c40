"""torch's tensor factories, on the current device unless told otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from simrank.device import tensor as tensors
from simrank.device.arithmetic import parse_device
from simrank.device.dtypes import DType, as_dtype, float32, int64
from simrank.device.shapes import as_shape
from simrank.device.transfer import upload
from simrank.ranks import require_program

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simrank.device.tensor import Tensor


def empty(*size: Any, dtype: Any = float32, device: Any = None) -> Tensor:
    """Return a tensor of garbage (NaN in floating types).

    Args:
        size: Sizes of the dims, separately or as one sequence.
        dtype: Element type.
        device: "cpu", "cuda", "cuda:N", N or a Device; default: the current device.
    """
    return tensors.empty(as_shape(size), as_dtype(dtype), parse_device(device))


def full(
    size: Sequence[int], fill_value: float, *, dtype: Any = None, device: Any = None
) -> Tensor:
    """Return a tensor with every element `fill_value`; see `empty` for the rest."""
    dtype = _type_of(fill_value) if dtype is None else as_dtype(dtype)
    result = tensors.empty(as_shape((size,)), dtype, parse_device(device), fresh=False)
    return result.fill_(fill_value)


def zeros(*size: Any, dtype: Any = float32, device: Any = None) -> Tensor:
    """Return a tensor of zeros; see `empty` for the arguments."""
    return full(as_shape(size), 0, dtype=dtype, device=device)


def ones(*size: Any, dtype: Any = float32, device: Any = None) -> Tensor:
    """Return a tensor of ones; see `empty` for the arguments."""
    return full(as_shape(size), 1, dtype=dtype, device=device)


def tensor(data: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return a tensor with these values (numbers, nested lists or an array)."""
    values = np.asarray(data)
    if dtype is None:
        dtype = (
            float32 if values.dtype == np.float64 and not hasattr(data, "dtype") else values.dtype
        )
    return _upload(values.astype(as_dtype(dtype).numpy), device)


def from_numpy(values: np.ndarray[Any, Any], *, device: Any = None) -> Tensor:
    """Return a tensor with a copy of the array."""
    return _upload(values, device)


def arange(*bounds: float, dtype: Any = None, device: Any = None) -> Tensor:
    """Return start, start + step, ... below end, given as in Python's range."""
    if dtype is None:
        dtype = float32 if any(isinstance(bound, float) for bound in bounds) else int64
    return _upload(np.arange(*bounds).astype(as_dtype(dtype).numpy), device)


def rand(*size: Any, dtype: Any = float32, device: Any = None) -> Tensor:
    """Return uniform numbers in [0, 1) from the rank's generator."""
    values = _generator().random(as_shape(size))
    return _upload(values.astype(as_dtype(dtype).numpy), device)


def randn(*size: Any, dtype: Any = float32, device: Any = None) -> Tensor:
    """Return normal numbers from the rank's generator."""
    values = _generator().standard_normal(as_shape(size))
    return _upload(values.astype(as_dtype(dtype).numpy), device)


def manual_seed(seed: int) -> None:
    """Seed the running rank's generator."""
    require_program("manual_seed").local["generator"] = np.random.Generator(np.random.PCG64(seed))


def _generator() -> np.random.Generator:
    """Return the rank's generator, made at first use from the Context's seed and the rank."""
    program = require_program("a random factory")
    if "generator" not in program.local:
        rank = 0 if program.rank is None else program.rank + 1
        bits = np.random.PCG64([program.engine.seed, rank])
        program.local["generator"] = np.random.Generator(bits)
    generator: np.random.Generator = program.local["generator"]
    return generator


def _type_of(value: complex) -> DType:
    if isinstance(value, bool):
        return as_dtype("bool")
    return int64 if isinstance(value, int) else float32


def _upload(values: np.ndarray[Any, Any], device: Any) -> Tensor:
    """Return the values as a tensor; onto a device they are copied in stream order."""
    place = parse_device(device)
    return tensors.from_numpy(values) if place is None else upload(values, place)
