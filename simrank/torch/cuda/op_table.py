"""Operators with a CUDA kernel, from torch's own list, for the build of the library.

`native_functions.yaml` comes with torch, so the table is that of the installed version.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torchgen  # type: ignore[import-untyped]
from torchgen.gen import parse_native_yaml  # type: ignore[import-untyped]
from torchgen.model import (  # type: ignore[import-untyped]
    DeviceCheckType,
    DispatchKey,
    NativeFunction,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

# CUDA runs these composites' kernels under its own key too: `copy_` and a convolution are one
# operation each, not the many that CPU torch would make of them.
_FUNCTIONS = Path(torchgen.__file__).parent / "packaged/ATen/native/native_functions.yaml"
_COMPOSITES = ("copy_", "convolution")
ITERATES = "*"  # TensorIterator checks devices, and words its error differently.
_UNCHECKED = ""


def cuda_ops() -> Iterator[tuple[str, str]]:
    """Yield each operator with a CUDA kernel, and its check of devices.

    The second is what errors call the kernel, `ITERATES`, or empty where devices may mix.
    """
    parsed = _parsed()
    iterates = _iterating(_FUNCTIONS.read_text())
    cuda = parsed.backend_indices[DispatchKey.CUDA]
    by_name = {function.func.name: function for function in parsed.native_functions}
    for function in parsed.native_functions:
        delegate = function.structured_delegate
        kernel_owner = by_name[delegate] if delegate is not None else function
        if cuda.has_kernel(function) or cuda.has_kernel(kernel_owner):
            name = str(function.func.name)
            if function.device_check is DeviceCheckType.ExactSame:
                is_structured = function.structured or delegate is not None
                yield name, _wrapper_name(function, structured=is_structured)
            else:
                yield name, ITERATES if name in iterates else _UNCHECKED
    for name in _COMPOSITES:
        yield name, _UNCHECKED


def sparse_cuda_ops() -> Iterator[str]:
    """Yield each operator with a kernel for sparse CUDA tensors in coordinate layout."""
    parsed = _parsed()
    sparse = parsed.backend_indices[DispatchKey.SparseCUDA]
    for function in parsed.native_functions:
        if sparse.has_kernel(function):
            yield str(function.func.name)


@cache
def _parsed() -> Any:
    return parse_native_yaml(str(_FUNCTIONS), str(_FUNCTIONS.with_name("tags.yaml")))


def _iterating(text: str) -> set[str]:
    """Return the operators that leave the check of devices to TensorIterator."""
    found = set()
    for block in text.split("\n- func: ")[1:]:
        name = block.partition("(")[0]
        unchecked = re.search(r"device_check: NoCheck(.*)", block)
        if unchecked and ("TensorIterator" in unchecked[1] or name.startswith("special_")):
            found.add(name)
    return found


def _wrapper_name(function: NativeFunction, *, structured: bool) -> str:
    """Return the code generator's name of the kernel's wrapper."""
    name, overload = str(function.func.name.name), function.func.name.overload_name
    out = "_out" if function.func.is_out_fn() else ""
    if structured:
        return f"wrapper_CUDA_{name}{out}" + (f"_{overload}" if overload else "")
    return f"wrapper_CUDA_{overload}_{name}{out}"


def write_tables(folder: Path) -> None:
    """Write the tables as the rows that `fallback.cpp` includes."""
    rows = [f'{{"{name}", "{wrapper}"}},\n' for name, wrapper in dict(cuda_ops()).items()]
    (folder / "cuda_ops.inc").write_text("".join(rows))
    (folder / "sparse_ops.inc").write_text("".join(f'"{name}",\n' for name in sparse_cuda_ops()))
