"""Compiler metadata of a kernel: registers, shared memory, programs per SM (rule K5).

No GPU is needed. The first compilation of a process takes a third of a second, so kernels are
compiled only if the result matters: for the number of programs at once, or on request of a launch.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import triton
from triton._utils import type_canonicalisation_dict
from triton.backends.compiler import BaseBackend
from triton.compiler import ASTSource
from triton.compiler.errors import CompilationError
from triton.runtime.errors import OutOfResources
from triton.runtime.jit import MockTensor

from simrank.device import Tensor
from simrank.errors import UnsupportedError
from simrank.kernels.compiler.compilation_errors import CompilationValueError
from simrank.kernels.compiler.driver import (
    SHARED_BYTES_RESERVED,
    binary_resources,
    most_shared_bytes,
    shared_bytes_of_sm,
    target_of,
)
from simrank.kernels.machine.protocols import kept
from simrank.kernels.values.types import element_type, of_memory, type_of_number

if TYPE_CHECKING:
    from collections.abc import Container, Hashable, Mapping

    from triton.backends.compiler import GPUTarget
    from triton.compiler import CompiledKernel

    from simrank.hardware.spec import DeviceSpec
    from simrank.kernels.machine.protocols import Jit

# Per SM of compute capability 8.0 and 9.0 to 10.3; 8.9 has fewer threads and less shared memory.
# Source: CUDA C++ Programming Guide, technical specifications per compute capability.
_REGISTERS = 64 * 1024
_REGISTERS_ARE_GIVEN_IN = 256  # registers per warp
_MAX_CTAS = {80: 32, 89: 24, 90: 32, 100: 32, 103: 32}
_MAX_WARPS = {80: 64, 89: 48, 90: 64, 100: 64, 103: 64}
_WORTH_COMPILING = 0.5  # Assumed: share of the limit; other dots and layouts use some too.
COMPILER_OPTIONS = (
    "num_warps", "num_stages", "num_ctas", "maxnreg", "enable_fp_fusion", "enable_reflect_ftz",
    "arch",
)  # fmt: skip
_AS_EMULATED = {"enable_fp_fusion": False}  # As numpy, which fuses no product with a sum.


class Resources(NamedTuple):
    """Resources of one program of a compiled kernel.

    Attributes:
        registers: Registers per thread.
        spilled: Spilled registers per thread.
        shared_bytes: Shared memory.
        num_warps: Number of warps.
        ctas_per_sm: Number of programs that an SM holds at once.
        operand_bytes_per_flop: Bytes of shared memory that warps read per operation of a dot.
    """

    registers: int
    spilled: int
    shared_bytes: int
    num_warps: int
    ctas_per_sm: int
    operand_bytes_per_flop: float


def resources(
    jit: Jit, bound: Mapping[str, Any], options: Mapping[str, Any], spec: DeviceSpec
) -> Resources | None:
    """Compile a kernel for a device and return its resources; None if unknown.

    Args:
        jit: The kernel.
        bound: Its arguments by name.
        options: Options of the launch.
        spec: The device.

    Raises:
        CompilationError: Triton's error: the compiler rejects the kernel.
        OutOfResources: Triton's error: a program needs more shared memory than the limit.
    """
    target = target_of(spec)
    described = _signature(jit, bound)
    if target.backend != "cuda" or described is None:
        return None
    chosen = {name: options[name] for name in COMPILER_OPTIONS if options.get(name) is not None}
    key = ("resources", *described.key, repr(chosen), target.arch)
    facts = kept(jit)
    if key not in facts:
        compiled = _compile(jit, described, _AS_EMULATED | chosen, target)
        facts[key] = _resources(compiled, int(target.arch))
    resources: Resources = facts[key]
    _check_fits(resources.shared_bytes, int(target.arch))
    return resources


def problem_of(
    jit: Jit, bound: Mapping[str, Any], options: Mapping[str, Any], target: GPUTarget
) -> str | None:
    """Return the compiler's error for a kernel and a target; None if it compiles."""
    described = _signature(jit, bound)
    if described is None:
        return "not compiled: an argument has no plain type"
    chosen = {name: options[name] for name in COMPILER_OPTIONS if options.get(name) is not None}
    key = ("problem", *described.key, repr(chosen), target)
    facts = kept(jit)
    if key not in facts:
        try:
            compiled = _compile(jit, described, _AS_EMULATED | chosen, target)
            if target.backend == "cuda":
                _check_fits(int(compiled.metadata.shared), int(target.arch))
        except Exception as error:  # noqa: BLE001 - any stage of the compiler may fail
            facts[key] = f"{type(error).__name__}: {error}"
        else:
            facts[key] = None
    problem: str | None = facts[key]
    return problem


def assembly_of(
    jit: Jit, bound: Mapping[str, Any], options: Mapping[str, Any], target: GPUTarget
) -> str | None:
    """Return a kernel's assembly for a target, with its source lines; None if it is unknown."""
    described = _signature(jit, bound)
    if described is None:
        return None
    chosen = {name: options[name] for name in COMPILER_OPTIONS if options.get(name) is not None}
    key = ("assembly", *described.key, repr(chosen), target)
    facts = kept(jit)
    if key not in facts:
        try:
            asm = _compile(jit, described, _AS_EMULATED | chosen, target).asm
        except Exception:  # noqa: BLE001 - `problem_of` shows it; any stage may fail
            facts[key] = None
        else:
            facts[key] = asm["ptx" if target.backend == "cuda" else "amdgcn"]
    assembly: str | None = facts[key]
    return assembly


def check_constants(
    jit: Jit,
    bound: Mapping[str, Any],
    options: Mapping[str, Any],
    spec: DeviceSpec,
    written: Container[str],
) -> None:
    """Compile a kernel whose source stores through a `tl.const` pointer, perhaps unreached.

    Args:
        jit: The kernel.
        bound: Its arguments by name.
        options: Options of the launch.
        spec: The device.
        written: Names of the parameters that the source may store through.

    Raises:
        CompilationError: Triton's error: the store is not on a side that constants leave out.
    """
    if not any(parameter.name in written and parameter.is_const for parameter in jit.params):
        return
    described = _signature(jit, bound)
    if described is not None:
        chosen = {name: options[name] for name in COMPILER_OPTIONS if options.get(name) is not None}
        try:
            _compile(jit, described, _AS_EMULATED | chosen, target_of(spec))
        except CompilationError as error:
            if error.error_message is None:  # Of a function that the kernel calls.
                raise
            raise CompilationValueError(error.src, error.node, error.error_message) from error


def _compile(
    jit: Jit, described: Described, chosen: dict[str, Any], target: GPUTarget
) -> CompiledKernel:
    signature, constants, attributes = described
    source = ASTSource(fn=jit, signature=signature, constexprs=constants, attrs=attributes)
    return triton.compile(source, target=target, options=chosen)


class Described(NamedTuple):
    """Compilation parameters of a launch.

    Attributes:
        signature: Types of the arguments, by name.
        constants: Values of constant arguments, by name.
        attributes: Attributes of arguments, by position: divisibility by 16.
    """

    signature: dict[str, str]
    constants: dict[str, Any]
    attributes: dict[tuple[int, ...], list[list[Any]]]

    @property
    def key(self) -> tuple[Hashable, ...]:
        """Cache key."""
        return *self.signature.items(), repr(self.constants), repr(self.attributes)


def warm_kernel(
    jit: Jit, bound: Mapping[str, Any], options: Mapping[str, Any], spec: DeviceSpec
) -> CompiledKernel:
    """Compile a kernel for a device before its launch, and return triton's object.

    Options that are not given are triton's defaults, its knobs included.

    Raises:
        UnsupportedError: The device is not NVIDIA's, or an argument has no plain type.
        CompilationError: Triton's error: the compiler rejects the kernel.
    """
    target = target_of(spec)
    described = _signature(jit, bound)
    if target.backend != "cuda" or described is None:
        why = "an argument has no plain type" if described is None else f"{spec.name} runs no CUDA"
        raise UnsupportedError(f"warmup of kernel '{jit.__name__}': {why}")
    chosen = {name: options[name] for name in COMPILER_OPTIONS if options.get(name) is not None}
    fuses = {"enable_fp_fusion": getattr(triton.knobs.language, "default_fp_fusion", True)}
    return _compile(jit, described, fuses | chosen, target)


def _signature(jit: Jit, bound: Mapping[str, Any]) -> Described | None:
    """Return the compilation parameters of a launch; None if an argument has no plain type.

    As Triton specializes: integers equal to 1 are constants, and integers and addresses divisible
    by 16 are marked, which changes the compiler's memory accesses and pipelines.
    """
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    attributes: dict[tuple[int, ...], list[list[Any]]] = {}
    for place, parameter in enumerate(jit.params):
        value, name = bound[parameter.name], parameter.name
        is_special = not parameter.do_not_specialize
        is_integer = isinstance(value, int) and not isinstance(value, bool)
        is_one = is_integer and value == 1 and is_special and not parameter.annotation_type
        if parameter.is_constexpr or value is None or is_one:
            signature[name] = "constexpr"
            constants[name] = value
            continue
        number = 1
        pointer = pointer_of(value)
        if pointer is not None and pointer.block_shape is not None:
            signature[name] = f"tensordesc<{pointer.type}{list(pointer.block_shape)}>"
        elif pointer is not None:
            signature[name] = ("*k" if parameter.is_const else "*") + pointer.type
            number = pointer.address
        elif isinstance(value, bool | int | float):
            annotated = parameter.annotation_type
            signature[name] = annotated or _short(type_of_number(value).name)
            number = int(value) if is_integer else number
        else:
            return None
        if number % 16 == 0 and is_special and not parameter.do_not_specialize_on_alignment:
            attributes[place,] = BaseBackend.parse_attr("D")
    return Described(signature, constants, attributes)


class PointerSignature(NamedTuple):
    """Compilation parameters of a tensor argument, without the tensor.

    Attributes:
        type: Element type, as in signatures.
        address: Address of the tensor.
        block_shape: Block shape of a descriptor; None for a tensor.
    """

    type: str
    address: int
    block_shape: tuple[int, ...] | None = None


def pointer_of(value: object) -> PointerSignature | None:
    """Return the parameters of a tensor or descriptor argument; None for other arguments."""
    if isinstance(value, PointerSignature):
        return value
    if isinstance(value, Tensor):
        return PointerSignature(_of_tensor(value), value.data_ptr())
    if isinstance(value, MockTensor):
        return PointerSignature(type_canonicalisation_dict[str(value.dtype).split(".")[-1]], 0)
    base = getattr(value, "base", None)
    own = None if base is None else pointer_of(base)
    if own is None:
        return None
    block_shape = getattr(value, "block_shape", None)
    if block_shape is not None:
        return own._replace(block_shape=tuple(block_shape))
    dtype = getattr(value, "dtype", None)  # For results of `triton.reinterpret`.
    return own._replace(type=_short(element_type(dtype).name))


def _of_tensor(tensor: Tensor) -> str:
    return _short(of_memory(tensor.dtype.numpy).name)


def _short(name: str) -> str:
    """Return a type name as in signatures: `int32` is `i32`, `uint8` is `u8`."""
    return name.replace("uint", "u").replace("int", "i")


def may_not_fit(copied_bytes: int, target: GPUTarget) -> bool:
    """Return whether a kernel's prefetched bytes may exceed an SM, so that compiling it pays."""
    if target.backend != "cuda":
        return False
    return copied_bytes > shared_bytes_of_sm(int(target.arch)) * _WORTH_COMPILING


def _check_fits(shared_bytes: int, arch: int) -> None:
    """Raise the error of a launch on a GPU if a program needs too much shared memory.

    Raises:
        OutOfResources: The shared memory exceeds the limit.
    """
    limit = most_shared_bytes(arch)
    if shared_bytes > limit:
        raise OutOfResources(shared_bytes, limit, "shared memory")


def _known_arch(arch: int) -> int:
    return arch if arch in _MAX_CTAS else 90


def _resources(compiled: CompiledKernel, arch: int) -> Resources:
    num_warps, shared_bytes = int(compiled.metadata.num_warps), int(compiled.metadata.shared)
    registers, spilled = binary_resources(compiled.asm["cubin"])
    per_warp = -(-registers * 32 // _REGISTERS_ARE_GIVEN_IN) * _REGISTERS_ARE_GIVEN_IN
    known = _known_arch(arch)
    limits = (
        _REGISTERS // max(per_warp * num_warps, 1),
        shared_bytes_of_sm(arch) // (shared_bytes + SHARED_BYTES_RESERVED),
        _MAX_WARPS[known] // num_warps,
        _MAX_CTAS[known],
    )
    read = operand_bytes_per_flop(compiled.asm["ptx"])
    return Resources(registers, spilled, shared_bytes, num_warps, max(min(limits), 1), read)


# ---- Shared memory reads of a compiled kernel's dots, from its PTX ----

_LABEL = re.compile(r"^(\$L\w+):", re.MULTILINE)
_BRANCH = re.compile(r"\bbra(?:\.uni)?\s+(\$L\w+)")
# Source: PTX ISA, "mma" and "ldmatrix": a warp multiplies m x k by k x n; it reads up to four
# matrices of 8 x 8 elements of two bytes.
_MULTIPLY = re.compile(r"\bmma\.sync\.aligned\.m(\d+)n(\d+)k(\d+)")
_READ = re.compile(r"\bldmatrix\.sync\.aligned\.m8n8\.x(\d)")
_MATRIX_BYTES = 8 * 8 * 2


class _DotReads(NamedTuple):
    """Operations of a warp's dots, and the bytes that it reads for them."""

    num_flops: int
    read_bytes: int


def operand_bytes_per_flop(ptx: str) -> float:
    """Return the bytes of shared memory that warps read per operation of their dots.

    Only the innermost loops with dots count, with equal weight: other code runs once. 0 if warps
    do not execute dots separately (Hopper's warp groups read as they multiply).
    """
    loops = _loops_with_dots(ptx)
    inner = [each for each in loops if not any(_holds(each, other) for other in loops)]
    found = [_work_of(ptx[start:stop]) for start, stop in inner or [(0, len(ptx))]]
    num_flops = sum(each.num_flops for each in found)
    return sum(each.read_bytes for each in found) / num_flops if num_flops else 0.0


def _loops_with_dots(ptx: str) -> list[tuple[int, int]]:
    """Return the start and end of loops with dots: a branch to an earlier label ends a loop."""
    labels = {match.group(1): match.start() for match in _LABEL.finditer(ptx)}
    branches = ((labels.get(each.group(1)), each.end()) for each in _BRANCH.finditer(ptx))
    loops = [(start, stop) for start, stop in branches if start is not None and start < stop]
    return [loop for loop in loops if _MULTIPLY.search(ptx, *loop)]


def _holds(loop: tuple[int, int], other: tuple[int, int]) -> bool:
    return loop != other and loop[0] <= other[0] and other[1] <= loop[1]


def _work_of(ptx: str) -> _DotReads:
    shapes = (map(int, match.groups()) for match in _MULTIPLY.finditer(ptx))
    num_flops = sum(2 * m * n * k for m, n, k in shapes)
    num_matrices = sum(int(match.group(1)) for match in _READ.finditer(ptx))
    return _DotReads(num_flops, num_matrices * _MATRIX_BYTES)
