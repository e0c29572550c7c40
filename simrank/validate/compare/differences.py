"""Differences of two returned values: the first places and errors, and what is tolerated."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from simrank.device import Tensor
from simrank.errors import ConfigError, ConfigProblem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


# ---- returned values as plain data, compared without torch ----

# Types that numpy has not itself, and what carries their bytes out of torch.
_WIDE = {
    "bfloat16": ("int16", ml_dtypes.bfloat16),
    "float8_e4m3fn": ("int8", ml_dtypes.float8_e4m3fn),
    "float8_e5m2": ("int8", ml_dtypes.float8_e5m2),
}
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


@dataclass(frozen=True, slots=True, eq=False)
class ComparedArray:
    """A tensor or an array.

    Attributes:
        kind: Its class, for example Tensor or DTensor, of which it is this rank's part.
        dtype: As torch names it.
        values: On the host.
    """

    kind: str
    dtype: str
    values: np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Container:
    """A container.

    Attributes:
        kind: Its class.
        parts: How each part is reached (`['w']`, `[0]`, `.loss`), and what it is.
    """

    kind: str
    parts: tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Opaque:
    """An object of another class: the class and its repr.

    Attributes:
        kind: Its class.
        text: Its repr, without addresses.
    """

    kind: str
    text: str


def captured(value: Any) -> Any:  # noqa: ANN401 - any value
    """Return a value as plain data; tensors are waited for and copied to the host."""
    if type(value) in _PLAIN:
        return value
    for is_one, captures in _KINDS:
        if is_one(value):
            return captures(value)
    parts = _parts(value)
    if parts is not None:
        kind = type(value).__name__
        return Container(kind, tuple((name, captured(part)) for name, part in parts))
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    return Opaque(kind, _ADDRESS.sub("", repr(value)))


def _of_numpy(value: Any) -> ComparedArray | Container:  # noqa: ANN401 - numpy's
    if value.dtype.kind not in "biufcV" or value.dtype.names:  # Texts, objects, records.
        return Container(type(value).__name__, (("", captured(value.tolist())),))
    return ComparedArray(type(value).__name__, value.dtype.name, np.array(value))


def _is_of_torch(value: object) -> bool:
    return any(kind.__module__.partition(".")[0] == "torch" for kind in type(value).__mro__)


def _of_torch(tensor: Any) -> ComparedArray:  # noqa: ANN401 - torch's
    kind = type(tensor).__name__
    tensor = tensor.detach()
    if hasattr(tensor, "to_local"):  # A DTensor: this rank's part of it.
        tensor = tensor.to_local()
    if tensor.layout != _torch().strided:
        kind = f"{kind} ({str(tensor.layout).removeprefix('torch.')})"
        tensor = tensor.to_dense()
    tensor = tensor.resolve_conj().resolve_neg()
    return ComparedArray(kind, str(tensor.dtype).removeprefix("torch."), np.array(of_array(tensor)))


def of_array(tensor: Any) -> np.ndarray[Any, Any]:  # noqa: ANN401 - torch's
    """Return a dense tensor of torch as an array, also of types that numpy lacks."""
    tensor = tensor.cpu().contiguous()
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in _WIDE:
        values: np.ndarray[Any, Any] = tensor.numpy()
        return values
    carrier, dtype = _WIDE[name]
    carried: np.ndarray[Any, Any] = tensor.view(getattr(_torch(), carrier)).numpy()
    return carried.view(dtype)


def torch_tensor(array: np.ndarray[Any, Any]) -> Any:  # noqa: ANN401 - torch's
    """Return a copy of an array as a tensor of torch, on the host; the reverse of `of_array`."""
    torch = _torch()
    given = np.array(array, order="C")
    if array.dtype.name not in _WIDE:
        return torch.from_numpy(given)
    carrier, _ = _WIDE[array.dtype.name]
    carried = torch.from_numpy(given.view(carrier))
    return carried.view(getattr(torch, array.dtype.name))


def _torch() -> Any:  # noqa: ANN401 - a module
    import torch  # noqa: PLC0415 - optional; a tensor of it is there

    return torch


def _of_simrank(tensor: Tensor) -> ComparedArray:
    return ComparedArray("Tensor", tensor.dtype.name, np.array(tensor.numpy()))


_KINDS: tuple[tuple[Callable[[Any], bool], Callable[[Any], Any]], ...] = (
    (lambda value: _is_of_torch(value) and hasattr(value, "untyped_storage"), _of_torch),
    (lambda value: isinstance(value, Tensor), _of_simrank),
    (lambda value: isinstance(value, np.ndarray | np.generic), _of_numpy),
)


def _parts(value: Any) -> list[tuple[str, Any]] | None:  # noqa: ANN401 - as above
    """Return the parts of a container; None for other values."""
    if isinstance(value, dict):
        return [(f"[{key!r}]", part) for key, part in value.items()]
    names = getattr(value, "_fields", None)
    if isinstance(value, tuple) and names is not None:
        return [(f".{name}", getattr(value, name)) for name in names]
    if isinstance(value, list | tuple):
        return [(f"[{index}]", part) for index, part in enumerate(value)]
    if isinstance(value, set | frozenset):
        return [(f"[{index}]", part) for index, part in enumerate(sorted(value, key=repr))]
    if is_dataclass(value) and not isinstance(value, type):
        return [(f".{field.name}", getattr(value, field.name)) for field in fields(value)]
    return None


# ---- tolerances of numbers between the two sides ----

Values = np.ndarray[Any, Any]
# Relative and absolute, per type. Source: torch.testing.assert_close of torch 2.13; of fp8, which
# it takes exactly, one step.
_BY_DTYPE = {
    "float64": (1e-7, 1e-7),
    "complex128": (1e-7, 1e-7),
    "float32": (1.3e-6, 1e-5),
    "complex64": (1.3e-6, 1e-5),
    "float16": (1e-3, 1e-5),
    "bfloat16": (1.6e-2, 1e-5),
    "float8_e4m3fn": (0.125, 0.0),
    "float8_e5m2": (0.25, 0.0),
}
_EXACT = (0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Tolerance:
    """A tolerance.

    Attributes:
        relative: To the real value, instead of each type's own; None: that.
        absolute: Beside it.
        ulp: Steps of the type, instead of both; None: those count.
    """

    relative: float | None = None
    absolute: float = 0.0
    ulp: int | None = None

    @classmethod
    def parse(cls, text: str | None) -> Tolerance:
        """Parse `1e-3`, `1e-3,1e-6`, `4ulp` or `exact`; None: the defaults of each type.

        Raises:
            ConfigError: It is none of them.
        """
        if text is None:
            return cls()
        if text == "exact":
            return cls(0.0, 0.0)
        try:
            if text.endswith("ulp"):
                return cls(ulp=_not_negative(int(text.removesuffix("ulp"))))
            relative, _, absolute = text.partition(",")
            return cls(_not_negative(float(relative)), _not_negative(float(absolute or 0)))
        except ValueError:
            expected = "a relative bound such as 1e-3, two such as 1e-3,1e-6, 4ulp or exact"
            problem = ConfigProblem("command line", None, "--tolerance", expected, text)
            raise ConfigError(problem) from None

    def __str__(self) -> str:
        """Return the text for reports."""
        if self.ulp is not None:
            return f"{self.ulp} ulp"
        if self.relative is None:
            return "the bounds of torch.testing for each type"
        if not (self.relative or self.absolute):
            return "exact"
        return f"{self.relative:g} of the real value, and {self.absolute:g}"

    def is_outside(self, simulated: Values, real: Values, dtype: str) -> Values:
        """Return a mask of elements outside of the tolerance; NaN equals NaN.

        Args:
            simulated: Elements of one type.
            real: As many.
            dtype: torch's name of it.
        """
        same = _bits_alike(simulated, real)
        if dtype not in _BY_DTYPE:
            return ~same
        if self.ulp is not None:
            return ~same & ~(ulps(simulated, real) <= self.ulp)
        relative, absolute = _BY_DTYPE.get(dtype, _EXACT)
        if self.relative is not None:
            relative, absolute = self.relative, self.absolute
        one, other = wide(simulated), wide(real)
        with np.errstate(invalid="ignore", over="ignore"):
            near = np.abs(one - other) <= absolute + relative * np.abs(other)
        near &= np.isfinite(one) & np.isfinite(other)
        return np.asarray(~(same | near))


def _not_negative(value: Any) -> Any:  # noqa: ANN401 - a number
    if not 0 <= value < float("inf"):
        raise ValueError(value)
    return value


def _bits_alike(one: Values, other: Values) -> Values:
    """Return a mask of equal elements; NaN equals NaN."""
    with np.errstate(invalid="ignore"):
        return np.asarray((one == other) | ((one != one) & (other != other)))  # noqa: PLR0124 - NaN


def wide(values: Values) -> Values:
    """Return numbers in which differences are exact enough."""
    with np.errstate(invalid="ignore"):
        return values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)


def ulps(one: Values, other: Values) -> Values:
    """Return the distance of elements in ulps; for complex ones the larger part.

    Where only one of them is NaN, it is the largest number there is.
    """
    if one.dtype.kind == "c":
        return np.maximum(ulps(one.real.copy(), other.real.copy()),
                          ulps(one.imag.copy(), other.imag.copy()))  # fmt: skip
    a, b = _ordered(one), _ordered(other)
    steps = np.maximum(a, b) - np.minimum(a, b)
    is_one_nan = (one != one) != (other != other)  # noqa: PLR0124 - NaN
    both = (one != one) & (other != other)  # noqa: PLR0124 - NaN
    return np.where(is_one_nan, np.uint64(2**64 - 1), np.where(both, np.uint64(0), steps))


def _ordered(values: Values) -> Values:
    """Return floats as unsigned integers in the same order; neighbours differ by one."""
    width = 8 * values.dtype.itemsize
    bits = np.ascontiguousarray(values).view(f"u{width // 8}").reshape(values.shape)
    bits = bits.astype(np.uint64)
    sign = np.uint64(1 << (width - 1))
    return np.where(bits & sign, sign - (bits & ~sign), sign + bits)


# ---- differences of two returned values: the first places and errors, element by element ----

_MAX_TEXT = 80
_FEW = 4
_FLOATS = "fcV"  # V: types of ml_dtypes.


@dataclass(frozen=True, slots=True)
class Difference:
    """One place at which the sides differ.

    Attributes:
        place: For example `['loss'][3]`; empty: the whole value.
        simulated: What is there on the simulated rank.
        real: What is there on the real one.
        detail: How far, for numbers.
    """

    place: str
    simulated: str
    real: str
    detail: str = ""

    def __str__(self) -> str:
        """Return the text for reports."""
        detail = f" ({self.detail})" if self.detail else ""
        what = f"value{self.place}" if self.place else "the value"
        return f"{what}: simulated {self.simulated}, real {self.real}{detail}"


@dataclass(slots=True)
class Likeness:
    """The result of a comparison of two values.

    Attributes:
        num_values: Tensors, arrays and plain values that were compared.
        num_rounded: Of these, how many are within bounds, but not equal bit by bit.
        most_ulp: The most steps between two elements within bounds.
        differences: In the order of the value.
    """

    num_values: int = 0
    num_rounded: int = 0
    most_ulp: int = 0
    differences: list[Difference] = field(default_factory=list)


def likeness(simulated: Any, real: Any, tolerance: Tolerance) -> Likeness:  # noqa: ANN401 - captured values
    """Compare two values, as `captured` returns them."""
    found = Likeness()
    _compare(simulated, real, tolerance, "", found)
    return found


def _compare(one: Any, other: Any, tolerance: Tolerance, place: str, found: Likeness) -> None:  # noqa: ANN401 - as above
    if (
        isinstance(one, Container)
        and isinstance(other, Container)
        and _is_alike(one, other, place, found)
    ):
        for (name, mine), (_, theirs) in zip(one.parts, other.parts, strict=True):
            _compare(mine, theirs, tolerance, place + name, found)
    elif isinstance(one, ComparedArray) and isinstance(other, ComparedArray):
        found.num_values += 1
        _compare_arrays(one, other, tolerance, place, found)
    elif not isinstance(one, Container) or not isinstance(other, Container):
        found.num_values += 1
        if type(one) is float and type(other) is float:
            _compare_arrays(*_as_arrays(one, other), tolerance, place, found)
        elif type(one) is not type(other) or one != other:
            found.differences.append(Difference(place, shown(one), shown(other)))


def _as_arrays(one: float, other: float) -> tuple[ComparedArray, ComparedArray]:
    """Return Python numbers as arrays; values of float32 precision come from `item()`."""
    with np.errstate(over="ignore"):
        is_narrow = all(float(np.float32(each)) == each for each in (one, other))
    dtype = "float32" if is_narrow else "float64"
    return ComparedArray("float", dtype, np.array(one, dtype)), ComparedArray(
        "float", dtype, np.array(other, dtype)
    )


def _is_alike(one: Container, other: Container, place: str, found: Likeness) -> bool:
    """Return whether containers have the same parts; else that is the difference."""
    mine, theirs = ([name for name, _ in each.parts] for each in (one, other))
    if one.kind != other.kind:
        found.differences.append(Difference(place, shown(one), shown(other)))
    elif mine != theirs:
        only_one = [name for name in mine if name not in theirs]
        only_other = [name for name in theirs if name not in mine]
        detail = f"{len(mine)} and {len(theirs)} parts"
        if only_one or only_other:
            detail = f"only simulated: {_few(only_one)}; only real: {_few(only_other)}"
        found.differences.append(Difference(place, shown(one), shown(other), detail))
    return one.kind == other.kind and mine == theirs


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "") or "-"


def _compare_arrays(
    one: ComparedArray, other: ComparedArray, tolerance: Tolerance, place: str, found: Likeness
) -> None:
    facts = [(a.kind, a.dtype, a.values.shape) for a in (one, other)]
    if facts[0] != facts[1]:
        found.differences.append(Difference(place, shown(one), shown(other)))
        return
    mine, theirs = one.values.reshape(-1), other.values.reshape(-1)
    outside = tolerance.is_outside(mine, theirs, one.dtype)
    if outside.any():
        found.differences.append(_of_elements(one, other, outside, place))
        return
    if mine.size and mine.dtype.kind in _FLOATS:
        most = int(ulps(mine, theirs).max())
        found.num_rounded += most > 0
        found.most_ulp = max(found.most_ulp, most)


def _of_elements(one: ComparedArray, other: ComparedArray, outside: Any, place: str) -> Difference:  # noqa: ANN401 - an array
    mine, theirs = one.values.reshape(-1), other.values.reshape(-1)
    first = int(np.flatnonzero(outside)[0])
    index = "".join(f"[{each}]" for each in np.unravel_index(first, one.values.shape))
    num, total = int(outside.sum()), mine.size
    parts = [f"{one.dtype}, {num} of {total} elements" if total > 1 else one.dtype]
    if mine.dtype.kind != "b":
        parts += _how_far(mine[outside], theirs[outside])
    return Difference(place + index, str(mine[first]), str(theirs[first]), ", ".join(parts))


def _how_far(mine: Any, theirs: Any) -> Iterator[str]:  # noqa: ANN401 - arrays
    """Yield the largest error, its ulps, and whether NaNs differ."""
    with np.errstate(invalid="ignore"):
        apart = np.abs(wide(mine) - wide(theirs))
    known = np.isfinite(apart)
    if known.any():
        worst = int(np.argmax(np.where(known, apart, -1.0)))
        yield f"max error {apart[worst]:.3g}"
        if mine.dtype.kind in _FLOATS:
            yield f"{int(ulps(mine, theirs)[worst])} ulp"
    if np.isnan(apart).any() and (np.isnan(wide(mine)) != np.isnan(wide(theirs))).any():
        yield "NaN on one side"


def shown(value: Any) -> str:  # noqa: ANN401 - a captured value
    """Return a value in a line."""
    if isinstance(value, ComparedArray):
        shape = list(value.values.shape)
        return f"{value.kind} of {value.dtype} {shape}"
    if isinstance(value, Container):
        return f"{value.kind} of {len(value.parts)}"
    text = value.text if hasattr(value, "text") else repr(value)
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 3]}..."


def brief(value: Any) -> str:  # noqa: ANN401 - a captured value
    """Return a value with its parts, as much of it as a line holds."""
    text = _with_parts(value)
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 3]}..."


def _with_parts(value: Any) -> str:  # noqa: ANN401 - as above
    if isinstance(value, Container):
        return f"{value.kind}({', '.join(name + ' ' + _with_parts(v) for name, v in value.parts)})"
    if isinstance(value, ComparedArray) and value.values.size <= _FEW:
        return f"{value.values.tolist()} of {value.dtype}"
    return shown(value)
