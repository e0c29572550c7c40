"""Which operators have a CUDA kernel, read from torch's own list when the library is built.

`native_functions.yaml` comes with torch, so the table is that of the installed version.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torchgen
from torchgen.gen import parse_native_yaml
from torchgen.model import DeviceCheckType, DispatchKey, NativeFunction

if TYPE_CHECKING:
    from collections.abc import Iterator

# CUDA runs these composites' kernels under its own key too: `copy_` and a convolution are one
# operation each, not the many that CPU torch would make of them.
_COMPOSITES = ("copy_", "convolution")


def cuda_ops() -> Iterator[tuple[str, str]]:
    """Yield each operator with a CUDA kernel, and what errors about devices call that kernel.

    The second is empty where the kernel iterates: TensorIterator words its error differently.
    """
    native = Path(torchgen.__file__).parent / "packaged" / "ATen" / "native"
    parsed = parse_native_yaml(str(native / "native_functions.yaml"), str(native / "tags.yaml"))
    cuda = parsed.backend_indices[DispatchKey.CUDA]
    by_name = {function.func.name: function for function in parsed.native_functions}
    for function in parsed.native_functions:
        delegate = function.structured_delegate
        structured = function.structured or delegate is not None
        kernel_owner = by_name[delegate] if delegate is not None else function
        if cuda.has_kernel(function) or cuda.has_kernel(kernel_owner):
            yield str(function.func.name), _wrapper_name(function, structured=structured)
    for name in _COMPOSITES:
        yield name, ""


def _wrapper_name(function: NativeFunction, *, structured: bool) -> str:
    """Return the name that torch's code generator gives the kernel's wrapper."""
    if function.device_check is not DeviceCheckType.ExactSame:
        return ""
    name, overload = str(function.func.name.name), function.func.name.overload_name
    out = "_out" if function.func.is_out_fn() else ""
    if structured:
        return f"wrapper_CUDA_{name}{out}" + (f"_{overload}" if overload else "")
    return f"wrapper_CUDA_{overload}_{name}{out}"


def as_cpp_rows() -> str:
    """Return the table as the rows that `fallback.cpp` includes."""
    rows = dict(cuda_ops())
    return "".join(f'{{"{name}", "{wrapper}"}},\n' for name, wrapper in rows.items())
