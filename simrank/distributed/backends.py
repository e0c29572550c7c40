"""Backends: which one a tensor's device selects, and what each of them admits.

Tensors on the host go through gloo. Their bytes take the routes between the ranks' devices: a
cluster describes no other network, so the cost is that of the device's links.

Source:
    torch 2.13 `ProcessGroupNCCL.cpp` (getNcclDataType, getNcclReduceOp); gloo: measured with
    torch 2.13 on two and three processes.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from simrank.distributed.request import PremulSum, ReduceOp
from simrank.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from simrank.device import DType

NCCL, GLOO, UNDEFINED = "nccl", "gloo", "undefined"
_BOTH = {"cpu": GLOO, "cuda": NCCL}
_MAPS: dict[str, Mapping[str, str]] = {
    UNDEFINED: _BOTH,
    NCCL: {"cuda": NCCL},
    "nccl2": {"cuda": NCCL},  # NCCL through torch's own bindings of its newer interface.
    "simrank": {"cuda": NCCL},
    GLOO: {"cpu": GLOO, "cuda": GLOO},
}
_NCCL_TIMEOUT, _TIMEOUT = timedelta(minutes=10), timedelta(minutes=30)
_SCALAR_TYPES = {
    "int16": "Short", "int8": "Char", "uint8": "Byte", "int32": "Int", "int64": "Long",
    "uint16": "UInt16", "uint32": "UInt32", "uint64": "UInt64",
    "bool": "Bool",
}  # fmt: skip
_BITWISE = ("band", "bor", "bxor")
_NCCL_LACKS = ("int16", "uint16", "uint32", "uint64")
_GLOO_LACKS = (*_NCCL_LACKS, "float8_e4m3fn", "float8_e5m2")


class Backend(str):
    """A backend's name, with torch's constants."""

    __slots__ = ()
    GLOO = GLOO
    NCCL = NCCL
    UNDEFINED = UNDEFINED


def is_available() -> bool:
    """Return True: there is a torch.distributed here, of simulated ranks."""
    return True


is_nccl_available = is_gloo_available = is_available


def is_mpi_available() -> bool:
    """Return False: simrank has no such backend."""
    return False


class Backends(NamedTuple):
    """The name that `get_backend` shows, and the backend per kind of device."""

    name: str
    by_device: Mapping[str, str]


NCCL_ONLY = Backends(NCCL, {"cuda": NCCL})


def parse_backend(backend: str | None) -> Backends:
    """Return the name that `get_backend` shows, and the backend per kind of device.

    Raises:
        ValueError: A `device:backend` pair is malformed.
        UnsupportedError: The backend is not simulated.
    """
    name = (backend or UNDEFINED).lower()
    if name in _MAPS:
        return Backends(name, _MAPS[name])
    if ":" not in name:
        raise _unsupported(name)
    by_device: dict[str, str] = {}
    for pair in name.split(","):
        parts = [part.strip() for part in pair.split(":")]
        if len(parts) != 2:
            raise ValueError(
                f"Invalid device:backend pairing '{pair}' in '{backend}'. "
                "Expected format: '<device_type1>:<backend1>,<device_type2>:<backend2>...'"
            )
        device, chosen = parts
        if device in by_device:
            raise ValueError(f"Duplicate device type '{device}' in backend string '{backend}'")
        if device not in _BOTH or chosen not in _MAPS or device not in _MAPS[chosen]:
            raise _unsupported(name)
        by_device[device] = _MAPS[chosen][device]
    return Backends(name, by_device)


def is_simulated(name: str) -> bool:
    """Return whether groups may be made with a backend of this name."""
    return name.lower() in _MAPS and name.lower() != UNDEFINED


def _unsupported(name: str) -> UnsupportedError:
    choices = ", ".join((NCCL, GLOO, "cpu:gloo,cuda:nccl"))
    return UnsupportedError(f"backend {name!r} is not simulated; choices: {choices}")


def default_timeout(name: str) -> timedelta:
    """Return a group's default timeout: it never fires in a simulation, but may be asked for."""
    return _NCCL_TIMEOUT if name in (NCCL, "nccl2", "simrank") else _TIMEOUT


def check_timeout(timeout: object) -> None:
    """Raise TypeError unless it is None or a timedelta."""
    if timeout is not None and not isinstance(timeout, timedelta):
        raise TypeError(
            f"Expected timeout argument to be of type datetime.timedelta, got {timeout}"
        )


def check_dtype(backend: str, dtype: DType) -> None:
    """Raise what torch raises for an element type that a backend's collectives do not carry.

    Raises:
        TypeError: NCCL does not carry it.
        RuntimeError: Gloo does not carry it.
    """
    if backend == NCCL and dtype.name in _NCCL_LACKS:
        name = _SCALAR_TYPES[dtype.name]
        raise TypeError(f"Input tensor data type is not supported for NCCL process group: {name}")
    if backend == GLOO and dtype.name in _GLOO_LACKS:
        raise RuntimeError(f"Invalid scalar type: gloo does not carry {dtype.name}")


def check_reduction(backend: str, op: ReduceOp | PremulSum, dtype: DType) -> None:
    """Raise what torch raises for a reduction that a backend lacks, or lacks on a type.

    Raises:
        ValueError: NCCL has no such reduction.
        TypeError: NCCL does not define it on the type.
        RuntimeError: Gloo does not have it, or does not define it on the type.
    """
    if isinstance(op, PremulSum):
        if backend == GLOO:
            raise RuntimeError("Cannot use ReduceOp.PREMUL_SUM with Gloo")
        if dtype.name not in ("float16", "bfloat16", "float32", "float64"):
            raise TypeError("PreMulSum Data type must be half, float, bfloat16 or double")
        return
    if op in _BITWISE:
        if backend == NCCL:
            raise ValueError(f"Cannot use ReduceOp.{op.name} with NCCL")
        if dtype.is_floating_point:
            raise RuntimeError(f"Cannot use ReduceOp.{op.name} with non-integral dtype")
    if op == ReduceOp.AVG:
        if backend == NCCL and dtype.kind == "bool":
            raise TypeError("Cannot use ReduceOp.AVG with boolean inputs")
        if backend == GLOO and not dtype.is_floating_point:
            raise RuntimeError(
                "result type Float can't be cast to the desired output type "
                f"{_SCALAR_TYPES[dtype.name]}"
            )
