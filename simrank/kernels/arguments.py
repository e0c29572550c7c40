"""Arguments of launches: binding, memory, and values for the kernel."""

from __future__ import annotations

import dataclasses
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from triton.backends import backends
from triton.runtime import jit

from simrank.device import Tensor
from simrank.kernels.language import access
from simrank.kernels.machine.running import Argument
from simrank.kernels.source.bind import in_kernel
from simrank.kernels.values import types
from simrank.kernels.values.block import Block, cast_to, constant, scalar_of
from simrank.kernels.values.types import ElementType, of_memory, pointer_to

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from simrank.device.device import Device
    from simrank.device.memory import AddressSpace, Storage
    from simrank.kernels.machine.protocols import Jit

_TensorWrapper: Any = jit.TensorWrapper  # What `triton.reinterpret` returns.
_MOST_POINTERS = 1024  # assumed: more groups than any grouped kernel has
# Options of a launch in other versions of Triton than the installed one, and simrank's own.
_OTHER_OPTIONS = {
    "allow_fp8e4nv", "warmup", "num_buffers_warp_spec", "num_consumer_groups", "reg_dec_producer",
    "reg_inc_consumer", "generate_native_code", "noinline", "cluster_dims", "num_ctas_per_sm",
    "maxRegAutoWS", "pingpongAutoWS",
}  # fmt: skip


@cache
def options() -> frozenset[str]:
    """Return the names of compiler options of launches, which change no value.

    They are those of all backends of the installed Triton: programs for several pass them all.
    """
    found = set(_OTHER_OPTIONS)
    for backend in backends.values():
        module = vars(sys.modules[backend.compiler.__module__])
        for kind in (value for name, value in module.items() if name.endswith("Options")):
            if dataclasses.is_dataclass(kind):
                found |= {field.name for field in dataclasses.fields(kind)}
    return frozenset(found)


def by_name(kernel: Jit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return a kernel's arguments by name, in parameter order, without options.

    Raises:
        TypeError: One is missing, unknown or given twice.
    """
    names = kernel.arg_names
    if len(args) > len(names):
        raise TypeError(f"{kernel.__name__}() takes {len(names)} arguments, {len(args)} were given")
    bound = dict(zip(names, args, strict=False))
    for name, value in kwargs.items():
        if name in bound:
            raise TypeError(f"{kernel.__name__}() got multiple values for argument '{name}'")
        if name in names:
            bound[name] = value
        elif name not in options():
            raise KeyError(f"Keyword argument {name} was specified but unrecognised")
    missing = []
    for parameter in kernel.params:
        if parameter.name not in bound:
            if parameter.has_default:
                bound[parameter.name] = parameter.default
            else:
                missing.append(repr(parameter.name))
    if missing:
        raise TypeError(f"{kernel.__name__}() is missing arguments: {', '.join(missing)}")
    return {name: bound[name] for name in names}


def tensors_by_address(bound: Mapping[str, Any]) -> dict[int, Argument]:
    """Return the tensors among bound arguments by their storages' addresses."""
    by_address: dict[int, Argument] = {}
    for name, value in bound.items():
        if isinstance(value, tuple | list):
            by_address |= tensors_by_address({f"{name}[{i}]": v for i, v in enumerate(value)})
        tensor = _tensor_in(value)
        if tensor is not None:
            argument = Argument(name, tuple(tensor.shape))
            by_address.setdefault(tensor.storage.address, argument)
    return by_address


def parts(values: Iterable[object]) -> dict[int, list[tuple[int, int]]]:
    """Return the byte ranges [begin, end) of arguments, by their storages' addresses.

    Those that overlap are one; storages of which an argument is the whole are left out.
    """
    found: dict[Storage, set[tuple[int, int]]] = {}
    for tensor in tensors_of(values):
        if tensor.numel():
            bounds = tensor.storage.bounds(tensor.array)
            found.setdefault(tensor.storage, set()).add(bounds)
    result = {}
    for storage, ranges in found.items():
        if (0, storage.size_bytes) not in ranges:
            result[storage.address] = _joined(sorted(ranges))
    return result


def _joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return sorted ranges with overlapping ones joined."""
    result = ranges[:1]
    for begin, end in ranges[1:]:
        if begin < result[-1][1]:
            result[-1] = result[-1][0], max(end, result[-1][1])
        else:
            result.append((begin, end))
    return result


def on_device(values: Iterable[object]) -> list[Tensor]:
    """Return the tensor arguments on devices and in pinned memory."""
    return [tensor for tensor in tensors_of(values) if tensor.storage.is_mapped]


def tensors_of(values: Iterable[object]) -> list[Tensor]:
    """Return the tensor arguments, also in tuples and descriptors."""
    result = []
    for value in values:
        tensor = _tensor_in(value)
        if tensor is not None:
            result.append(tensor)
        elif isinstance(value, tuple | list):
            result += tensors_of(value)
    return result


def _tensor_in(value: object) -> Tensor | None:
    """Return a tensor, that of a descriptor or of `triton.reinterpret`, or None."""
    while value is not None and not isinstance(value, Tensor):
        value = getattr(value, "base", None)
    return value


def reached(
    values: Iterable[Any], device: Device | None, space: AddressSpace | None = None
) -> list[Storage]:
    """Return storages of a device (None: any in `space`) that arguments name by address.

    Addresses come as integers, or in tensors of them as grouped kernels take; larger ones than
    `_MOST_POINTERS` are data. An integer may be the address of a table of addresses, as symmetric
    memory has them. Tensors passed as such are not among them.
    """
    if space is None:
        assert device is not None, "one of the two is given"
        space = device.memory.space
    result: dict[int, Storage] = {}
    for value in values:
        numbers: Any = ()
        if isinstance(value, tuple | list):
            result |= {storage.address: storage for storage in reached(value, device, space)}
        elif isinstance(value, int):
            numbers = (value, *_table_at(value, space))
        elif isinstance(value, Tensor) and _may_hold_pointers(value):
            numbers = _words(value.storage)
        for number in numbers:
            for storage in _storages_at(number, space):
                if device is None or storage.device is device:
                    result[storage.address] = storage
    return list(result.values())


def _storages_at(address: int, space: AddressSpace) -> list[Storage]:
    """Return the storages at an address, which may be a multicast address."""
    of_group = space.multicast(address)
    if of_group is not None:
        return of_group.storages
    storage = space.find(address)
    return [] if storage is None else [storage]


def _table_at(address: int, space: AddressSpace) -> list[int]:
    """Return the integers at an address, if they may be addresses themselves."""
    storage = space.find(address)
    if storage is None or storage.size_bytes > 8 * _MOST_POINTERS or not storage.has_values:
        return []
    return _words(storage)


def _words(storage: Storage) -> list[int]:
    whole = storage.array(np.dtype(np.uint8))[: storage.size_bytes // 8 * 8]
    numbers: list[int] = whole.view(np.int64).tolist()
    return numbers


def _may_hold_pointers(tensor: Tensor) -> bool:
    is_wide = tensor.dtype.numpy.kind in "iu" and tensor.dtype.numpy.itemsize == 8
    return is_wide and tensor.storage.size_bytes <= 8 * _MOST_POINTERS


def as_kernel_sees(kernel: Jit, bound: dict[str, Any]) -> dict[str, Any]:
    """Return bound arguments as blocks and constants.

    Raises:
        ValueError: A tensor is on the host.
        TypeError: An argument is of a type that kernels do not take.
    """
    result = {}
    for parameter in kernel.params:
        value = bound[parameter.name]
        if parameter.is_constexpr:
            result[parameter.name] = in_kernel(value)
        else:
            argument = _argument(value, parameter.name, parameter.annotation_type)
            result[parameter.name] = _constant(argument) if parameter.is_const else argument
    return result


def _argument(value: Any, name: str, annotated: str | None) -> Any:  # noqa: PLR0911 - a case each
    if isinstance(value, Tensor | _TensorWrapper):
        return _pointer(value, name)
    if isinstance(value, bool | int | float | np.integer | np.floating | np.bool_):
        element = _SCALARS.get(annotated) if isinstance(annotated, str) else None
        if element is not None:
            return Block(scalar_of(value, element), element)
        return _number(value.item() if isinstance(value, np.generic) else value)
    if value is None or isinstance(value, str) or type(value) is Block:
        return value
    if isinstance(value, tuple | list):
        return _tuple(value, name)
    if hasattr(value, "block_shape") and hasattr(value, "base"):
        return access.of_host(value, _pointer(value.base, name))
    result = in_kernel(value)
    if result is value and not callable(value) and not isinstance(value, type):
        raise _refused(value, name)
    return result


def _constant(argument: Any) -> Any:
    """Return a pointer annotated as `tl.const`: stores through it fail."""
    if type(argument) is not Block or argument.element.pointee is None:
        return argument
    element = pointer_to(argument.element.pointee, is_constant=True)
    return Block(argument.values, element, argument.base)


def _refused(value: object, name: str) -> TypeError:
    kind = type(value).__name__
    if hasattr(value, "data_ptr"):
        return TypeError(
            f"argument '{name}' is a {type(value).__module__}.{kind}: nothing of a device "
            "that is simulated lies at its address\n  to fix: pass a tensor of the running program "
            "on a device; torch's are, in programs that simrank runs"
        )
    if isinstance(value, np.ndarray):
        return TypeError(
            f"argument '{name}' is a numpy array: kernels take tensors of a device\n"
            "  to fix: pass a copy there, `simrank.from_numpy(array)`; in a program of torch "
            "`torch.from_numpy(array).cuda()`"
        )
    return TypeError(f"argument '{name}' is a {kind}, which no kernel takes")


def _number(value: Any) -> Block:
    """Return a number in the type of launches: floats are fp32."""
    if isinstance(value, float):
        return Block(np.float32(value), types.float32)
    if isinstance(value, bool) or -(2**31) <= value < 2**31:
        return constant(value)
    if not -(2**63) <= value < 2**64:
        raise OverflowError(f"integer argument {value} does not fit 64 bits")
    return constant(value, types.int64 if value < 2**63 else types.uint64)


def _tuple(values: Any, name: str) -> Any:
    parts = [_argument(part, f"{name}[{i}]", None) for i, part in enumerate(values)]
    if hasattr(values, "_fields"):  # A NamedTuple keeps its names.
        return type(values)(*parts)
    return tuple(parts)


def _pointer(tensor: Any, name: str) -> Block:
    """Return the pointer of a tensor, also of `triton.reinterpret`."""
    if isinstance(tensor, _TensorWrapper):
        return cast_to(_pointer(tensor.base, name), pointer_to(types.element_type(tensor.dtype)))
    storage = tensor.storage
    if not storage.is_mapped:
        raise ValueError(
            f"Pointer argument '{name}' cannot be accessed from Triton (cpu tensor?)\n"
            "  to fix: move the tensor to the device"
        )
    element = of_memory(tensor.dtype.numpy)
    offset = tensor.storage_offset()
    return Block(np.int64(offset), pointer_to(element), storage)


_SCALARS: dict[str, ElementType] = {
    "i1": types.int1, "u1": types.int1, "i8": types.int8, "i16": types.int16, "i32": types.int32,
    "i64": types.int64, "u8": types.uint8, "u16": types.uint16, "u32": types.uint32,
    "u64": types.uint64, "fp16": types.float16, "bf16": types.bfloat16, "fp32": types.float32,
    "f32": types.float32, "fp64": types.float64, "f64": types.float64,
}  # fmt: skip
