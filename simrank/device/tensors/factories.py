"""torch's tensor factories, on the current device unless told otherwise.

Simulated cost: values that a device computes itself (`zeros`, `arange`, `rand`, ...) are a kernel
that writes them; values that the host has (`tensor`, `from_numpy`) cross the host link.
"""

from __future__ import annotations

from functools import wraps
from math import prod
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from simrank.device.dtypes import DType, as_dtype, as_values, float32, int64
from simrank.device.memory import VALUES_UP_TO_BYTES
from simrank.device.stream import parse_device
from simrank.device.tensors import interop
from simrank.device.tensors import tensor as tensors
from simrank.device.tensors.arithmetic import run
from simrank.device.tensors.shapes import as_shape
from simrank.errors import UnsupportedError
from simrank.ranks import require_program

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from simrank.device.tensors.tensor import Tensor

_F = TypeVar("_F", bound="Callable[..., Tensor]")


def _torchs(factory: _F) -> _F:
    """Take torch's options that mean nothing here, and refuse autograd by name."""

    @wraps(factory)
    def taken(*args: object, requires_grad: bool = False, **options: object) -> Tensor:
        if requires_grad:
            raise UnsupportedError(
                f"{factory.__name__}(requires_grad=True) is not supported: tensors of simrank "
                "have no autograd"
            )
        for name in ("layout", "memory_format", "pin_memory"):
            options.pop(name, None)
        return factory(*args, **options)

    return cast("_F", taken)


@_torchs
def empty(*size: object, dtype: object = None, device: object = None) -> Tensor:
    """Return a tensor of garbage (NaN in floating types).

    Args:
        size: Sizes of the dims, separately or as one sequence.
        dtype: Element type; default: float32.
        device: "cpu", "cuda", "cuda:N", N or a Device; default: the current device.
    """
    return tensors.empty(as_shape(size), _or_float(dtype), parse_device(device))


@_torchs
def full(
    size: Sequence[int], fill_value: float, *, dtype: object = None, device: object = None
) -> Tensor:
    """Return a tensor with every element `fill_value`; see `empty` for the rest."""
    dtype = _type_of(fill_value) if dtype is None else as_dtype(dtype)
    result = tensors.empty(as_shape((size,)), dtype, parse_device(device), fresh=False)
    return result.fill_(fill_value)


@_torchs
def zeros(*size: object, dtype: object = None, device: object = None) -> Tensor:
    """Return a tensor of zeros; see `empty` for the arguments."""
    return full(as_shape(size), 0, dtype=_or_float(dtype), device=device)


@_torchs
def ones(*size: object, dtype: object = None, device: object = None) -> Tensor:
    """Return a tensor of ones; see `empty` for the arguments."""
    return full(as_shape(size), 1, dtype=_or_float(dtype), device=device)


@_torchs
def tensor(data: object, *, dtype: object = None, device: object = None) -> Tensor:
    """Return a tensor with these values (numbers, nested lists or an array)."""
    return tensors.with_values(as_values(data, dtype), parse_device(device))


def as_tensor(data: object, *, dtype: object = None, device: object = None) -> Tensor:
    """Return `data` itself if it is such a tensor, else a tensor with its values."""
    if not isinstance(data, tensors.Tensor):
        return tensor(data, dtype=dtype, device=device)
    return data.to(device=data.device if device is None else device, dtype=dtype or data.dtype)


def from_numpy(values: np.ndarray[Any, Any], *, device: object = None) -> Tensor:
    """Return a tensor with a copy of the array."""
    return tensors.with_values(values, parse_device(device))


def from_dlpack(ext_tensor: Any, *, device: object = None, copy: bool | None = None) -> Tensor:  # noqa: ANN401
    """Return a tensor over memory that a library exports by DLPack; see `interop.adopted`.

    Args:
        ext_tensor: An array of numpy or of another library, or a tensor.
        device: Where the tensor is to be; default: where the memory is.
        copy: True: always a copy; False: never, else BufferError; None: a copy of what is strided
            or read-only, or goes to another device.

    Simulated cost: none on the host; onto a device the bytes cross the host link.
    """
    return interop.adopted(tensors.Tensor, ext_tensor, device, copy)


@_torchs
def arange(*bounds: float, dtype: object = None, device: object = None) -> Tensor:
    """Return start, start + step, ... below end, given as in Python's range."""
    if dtype is None:
        dtype = float32 if any(isinstance(bound, float) for bound in bounds) else int64
    # The length needs no values, which shape-only runs do not make.
    start, end, step = (0, bounds[0], 1) if len(bounds) == 1 else (*bounds, 1)[:3]
    length = max(int(np.ceil((end - start) / step)), 0)
    return _computed("arange", lambda: np.arange(length) * step + start, (length,), dtype, device)


@_torchs
def linspace(
    start: float, end: float, steps: int, *, dtype: object = None, device: object = None
) -> Tensor:
    """Return `steps` numbers from `start` to `end`, both included, at equal distances."""
    return _computed(
        "linspace", lambda: np.linspace(start, end, steps), (steps,), _or_float(dtype), device
    )


@_torchs
def eye(n: int, m: int | None = None, *, dtype: object = None, device: object = None) -> Tensor:
    """Return an n x m matrix (default: n x n) with ones on its diagonal."""
    shape = (n, n if m is None else m)
    return _computed("eye", lambda: np.eye(*shape), shape, _or_float(dtype), device)


@_torchs
def rand(
    *size: object, dtype: object = None, device: object = None, generator: None = None
) -> Tensor:
    """Return uniform numbers in [0, 1) from the rank's generator."""
    shape = as_shape(size)
    return _drawn("rand", lambda g: g.random(shape), shape, _or_float(dtype), device, generator)


@_torchs
def randn(
    *size: object, dtype: object = None, device: object = None, generator: None = None
) -> Tensor:
    """Return normal numbers from the rank's generator."""
    shape = as_shape(size)
    return _drawn(
        "randn", lambda g: g.standard_normal(shape), shape, _or_float(dtype), device, generator
    )


@_torchs
def randint(
    *bounds: Any,  # noqa: ANN401 - numbers, then a size
    dtype: object = None,
    device: object = None,
    generator: None = None,
) -> Tensor:
    """Return whole numbers: `randint(high, size)` from 0, or `randint(low, high, size)`."""
    *limits, size = bounds
    low, high = (0, limits[0]) if len(limits) == 1 else limits
    shape, kind = as_shape((size,)), int64 if dtype is None else as_dtype(dtype)
    if low >= high:
        raise RuntimeError(f"random_ expects 'from' to be less than 'to', but got {low} >= {high}")
    return _drawn("randint", lambda g: g.integers(low, high, shape), shape, kind, device, generator)


@_torchs
def randperm(
    n: int, *, dtype: object = None, device: object = None, generator: None = None
) -> Tensor:
    """Return 0, ..., n - 1 in a random order."""
    kind = int64 if dtype is None else as_dtype(dtype)
    return _drawn("randperm", lambda g: g.permutation(n), (n,), kind, device, generator)


def _as(factory: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a factory that takes shape, dtype and device from a tensor."""

    @wraps(factory)
    def like(input: Tensor, *args: object, **options: object) -> Tensor:  # noqa: A002 - torch's name
        options.setdefault("dtype", input.dtype)
        options.setdefault("device", input.device)
        if factory is randint:
            return factory(*args, input.shape, **options)
        return factory(input.shape, *args, **options)

    like.__name__ = f"{factory.__name__}_like"
    like.__doc__ = f"Return `{factory.__name__}` with the shape, dtype and device of a tensor."
    return like


empty_like, zeros_like, ones_like, full_like = _as(empty), _as(zeros), _as(ones), _as(full)
rand_like, randn_like, randint_like = _as(rand), _as(randn), _as(randint)


def manual_seed(seed: int) -> None:
    """Seed the running rank's generator."""
    require_program("manual_seed").local["generator"] = np.random.Generator(np.random.PCG64(seed))


def _generator() -> np.random.Generator:
    """Return the rank's generator, made at first use from the Context's seed and the rank."""
    program = require_program("a random factory")
    if "generator" not in program.local:
        rank = 0 if program.started_rank is None else program.started_rank + 1
        bits = np.random.PCG64([program.engine.seed, rank])
        program.local["generator"] = np.random.Generator(bits)
    generator: np.random.Generator = program.local["generator"]
    return generator


def _or_float(dtype: object) -> DType:
    return float32 if dtype is None else as_dtype(dtype)


def _type_of(value: complex) -> DType:
    if isinstance(value, bool):
        return as_dtype("bool")
    return int64 if isinstance(value, int) else float32


def _drawn(
    name: str,
    draw: Callable[[np.random.Generator], Any],
    shape: tuple[int, ...],
    dtype: DType,
    device: object,
    generator: None,
) -> Tensor:
    """Return drawn numbers; those that a shape-only run would throw away are not drawn.

    A large tensor draws from a branch of the generator, which then jumps over it: later numbers
    are the same whether these were drawn or not.
    """
    if generator is not None:
        raise UnsupportedError(
            f"{name}(generator=...) is not supported\n"
            "  to fix: seed the rank's generator with manual_seed"
        )
    own = _generator()
    if prod(shape) * dtype.itemsize <= VALUES_UP_TO_BYTES:
        values = draw(own)
        return _computed(name, lambda: values, shape, dtype, device)
    bits = own.bit_generator
    before = bits.state
    result = _computed(name, lambda: draw(own), shape, dtype, device)
    bits.state = before
    bits.advance(1 << 64)  # type: ignore[attr-defined]  # PCG64 has it, as `_generator` made it
    return result


def _computed(
    name: str,
    make: Callable[[], Any],
    shape: tuple[int, ...],
    dtype: object,
    device: object,
) -> Tensor:
    """Return values that a kernel on the device writes; on the host they are there at once."""
    cuda_device, kind = parse_device(device), as_dtype(dtype)
    result = tensors.empty(shape, kind, cuda_device, fresh=False)
    if result.storage.has_values:
        # A new tensor is not read without waiting for the kernel.
        result.array[...] = np.asarray(make()).astype(kind.numpy)
    if cuda_device is not None:
        run(name, _nothing, (), (result,))
    return result


def _nothing() -> None:
    """Do nothing: the values of the kernel are in place already."""
