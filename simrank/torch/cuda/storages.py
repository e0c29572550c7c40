"""Storages and legacy tensor types, which torch makes only for devices that were built in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

LEGACY_TYPES = {
    "FloatTensor": torch.float32,
    "DoubleTensor": torch.float64,
    "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16,
    "LongTensor": torch.int64,
    "IntTensor": torch.int32,
    "ShortTensor": torch.int16,
    "CharTensor": torch.int8,
    "ByteTensor": torch.uint8,
    "BoolTensor": torch.bool,
}


def resizer(before: Callable[..., Any]) -> Callable[..., Any]:
    """Return `UntypedStorage.resize_`, which also knows storages of simulated devices."""

    def resize_(self: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
        if self.device.type != "cuda":
            before(self, size)
        else:
            whole = torch.empty(0, dtype=torch.uint8, device=self.device).set_(self)
            torch.ops.simrank_cuda.resize_storage(whole, int(size))
        return self

    return resize_


def maker(before: Callable[..., Any]) -> Callable[..., Any]:
    """Return `UntypedStorage.__new__`, which also makes storages on simulated devices."""

    def new(cls: type, *args: Any, device: Any = None, **kwargs: Any) -> Any:
        if device is None:
            return before(cls, *args, **kwargs)
        if torch.device(device).type != "cuda":
            return before(cls, *args, device=device, **kwargs)
        content = args[0] if args else 0
        if isinstance(content, int):
            return torch.empty(content, dtype=torch.uint8, device=device).untyped_storage()
        return torch.tensor(list(content), dtype=torch.uint8, device=device).untyped_storage()

    return new


class _LegacyMeta(type):
    """`isinstance(tensor, torch.cuda.FloatTensor)` asks for the device and the dtype."""

    dtype: torch.dtype

    def __instancecheck__(cls, instance: object) -> bool:
        return (
            isinstance(instance, torch.Tensor) and instance.is_cuda and instance.dtype == cls.dtype
        )

    def __repr__(cls) -> str:
        return f"<class '{cls.__name__}'>"


def legacy_type(name: str) -> type:
    """Return what stands for `torch.cuda.FloatTensor` and its like."""
    dtype = LEGACY_TYPES[name]

    def new(_cls: type, *args: Any, device: Any = "cuda") -> torch.Tensor:
        if args and not isinstance(args[0], int):
            return torch.tensor(args[0], dtype=dtype, device=device)
        return torch.empty(args, dtype=dtype, device=device)

    body = {"dtype": dtype, "is_cuda": True, "__new__": new, "__module__": "torch.cuda"}
    # `tensor.type` reads this name in C++.
    return _LegacyMeta(f"torch.cuda.{name}", (), body | {"__qualname__": name})
