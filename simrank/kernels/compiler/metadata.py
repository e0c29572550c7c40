"""What the real compiler says about a kernel: registers, shared memory, programs per SM (rule K5).

No GPU is needed. It costs a third of a second for the first kernel of a process, so it is asked
only where the answer decides something: how many programs run at once, or where a launch asks.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import triton
from triton.backends.compiler import BaseBackend
from triton.compiler import ASTSource
from triton.runtime.errors import OutOfResources

from simrank.device import Tensor
from simrank.errors import UnsupportedError
from simrank.kernels.compiler.targets import target_of
from simrank.kernels.machine.kept import kept
from simrank.kernels.values.types import of_memory, type_of_number

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from triton.backends.compiler import GPUTarget
    from triton.compiler import CompiledKernel

    from simrank.hardware.spec import DeviceSpec
    from simrank.kernels.machine.jit import Jit

# Per SM of compute capability 8.0 and 9.0 to 10.3; 8.9 has fewer threads and less shared memory.
# Source: CUDA C++ Programming Guide, technical specifications per compute capability.
_REGISTERS = 64 * 1024
_REGISTERS_ARE_GIVEN_IN = 256  # per warp
_MAX_CTAS = {80: 32, 89: 24, 90: 32, 100: 32, 103: 32}
_MAX_WARPS = {80: 64, 89: 48, 90: 64, 100: 64, 103: 64}
_SHARED_BYTES = {
    80: 164 * 1024, 89: 100 * 1024, 90: 228 * 1024, 100: 228 * 1024, 103: 228 * 1024,
}  # fmt: skip
_SHARED_BYTES_RESERVED = 1024  # per program
_WORTH_ASKING = 0.5  # Assumed: of what there is; other dots and layouts take some too.
COMPILER_OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")
_USAGE = re.compile(r"REG:(\d+) STACK:(\d+)")
_BYTES_PER_REGISTER = 4


class Resources(NamedTuple):
    """What one program of a compiled kernel takes.

    Attributes:
        registers: Per thread.
        spilled: Registers that a thread keeps in memory instead, for want of more.
        shared_bytes: Shared memory.
        num_warps: Warps.
        ctas_per_sm: How many programs an SM holds at once.
    """

    registers: int
    spilled: int
    shared_bytes: int
    num_warps: int
    ctas_per_sm: int


def resources(
    jit: Jit, bound: Mapping[str, Any], options: Mapping[str, Any], spec: DeviceSpec
) -> Resources | None:
    """Compile a kernel for a device and return what it takes; None where that is not known.

    Args:
        jit: The kernel.
        bound: Its arguments by name.
        options: Options of the launch.
        spec: The device.

    Raises:
        CompilationError: Triton's own: the compiler rejects the kernel.
        OutOfResources: Triton's own: a program takes more shared memory than it can have.
    """
    target = target_of(spec)
    described = _signature(jit, bound)
    if target.backend != "cuda" or described is None:
        return None
    chosen = {name: options[name] for name in COMPILER_OPTIONS if options.get(name) is not None}
    key = ("resources", *described.key, repr(chosen), target.arch)
    facts = kept(jit)
    if key not in facts:
        compiled = _compile(jit, described, chosen, target)
        facts[key] = _resources(compiled, int(target.arch))
    resources: Resources = facts[key]
    _check_fits(resources.shared_bytes, int(target.arch))
    return resources


def problem_of(
    jit: Jit, bound: Mapping[str, Any], options: Mapping[str, Any], target: GPUTarget
) -> str | None:
    """Return what the compiler has against a kernel for a target, in its words; None: nothing."""
    described = _signature(jit, bound)
    if described is None:
        return "not compiled: an argument has no plain type"
    chosen = {name: options[name] for name in COMPILER_OPTIONS if options.get(name) is not None}
    key = ("problem", *described.key, repr(chosen), target)
    facts = kept(jit)
    if key not in facts:
        try:
            compiled = _compile(jit, described, chosen, target)
            if target.backend == "cuda":
                _check_fits(int(compiled.metadata.shared), int(target.arch))
        except Exception as error:  # noqa: BLE001 - of the compiler's many stages, any
            facts[key] = f"{type(error).__name__}: {error}"
        else:
            facts[key] = None
    problem: str | None = facts[key]
    return problem


def _compile(
    jit: Jit, described: Described, chosen: dict[str, Any], target: GPUTarget
) -> CompiledKernel:
    signature, constants, attributes = described
    source = ASTSource(fn=jit, signature=signature, constexprs=constants, attrs=attributes)
    return triton.compile(source, target=target, options={**chosen, "enable_fp_fusion": False})


class Described(NamedTuple):
    """What a launch is compiled for.

    Attributes:
        signature: Types of the arguments by name.
        constants: Values of those that are constants.
        attributes: By place in the signature what else is known: multiples of 16.
    """

    signature: dict[str, str]
    constants: dict[str, Any]
    attributes: dict[tuple[int, ...], list[list[Any]]]

    @property
    def key(self) -> tuple[Hashable, ...]:
        """Return what tells it from others."""
        return *self.signature.items(), repr(self.constants), repr(self.attributes)


class WarmKernel:
    """What `kernel.warmup(...)` returns: a kernel that the real compiler has built.

    Attributes:
        name: The kernel's name.
        metadata: The compiler's, with `shared` and `num_warps`.
        asm: What it built, by stage: "ttir" to "ptx", and the binary.
        n_regs: Registers per thread.
        n_spills: Registers that a thread keeps in memory instead.
    """

    def __init__(
        self, jit: Jit, compiled: CompiledKernel, result: Resources, options: dict[str, Any]
    ) -> None:
        self.name: str = jit.__name__
        self.metadata = compiled.metadata
        self.asm = compiled.asm
        self.n_regs, self.n_spills = result.registers, result.spilled
        self._jit = jit
        self._options = options

    def _init_handles(self) -> None:
        """Check that it fits the device; what triton's own kernels load here is there already.

        Raises:
            OutOfResources: Triton's own: a program takes more shared memory than it can have.
        """
        _check_fits(self.metadata.shared, int(self.metadata.target.arch))

    def __getitem__(self, grid: Sequence[int] | Callable[..., Sequence[int]]) -> Callable[..., Any]:
        """Return what launches it on simulated devices, with all arguments by position."""
        given = {k: v for k, v in self._options.items() if k not in self._jit.arg_names}
        return partial(self._jit.run, grid=grid, warmup=False, **given)


def warm_kernel(
    jit: Jit, bound: Mapping[str, Any], options: Mapping[str, Any], spec: DeviceSpec
) -> WarmKernel:
    """Compile a kernel for a device ahead of its launch.

    Raises:
        UnsupportedError: The device is not NVIDIA's, or an argument has no plain type.
        CompilationError: Triton's own: the compiler rejects the kernel.
    """
    target = target_of(spec)
    described = _signature(jit, bound)
    if target.backend != "cuda" or described is None:
        why = "an argument has no plain type" if described is None else f"{spec.name} runs no CUDA"
        raise UnsupportedError(f"warmup of kernel '{jit.__name__}': {why}")
    chosen = {name: options[name] for name in COMPILER_OPTIONS if options.get(name) is not None}
    compiled = _compile(jit, described, chosen, target)
    return WarmKernel(jit, compiled, _resources(compiled, int(target.arch)), chosen)


def _signature(jit: Jit, bound: Mapping[str, Any]) -> Described | None:
    """Return what a launch is compiled for; None for arguments that have no plain type.

    As Triton specialises: integers that are 1 are constants, and of integers and addresses that are
    multiples of 16 the compiler is told, without which it moves and pipelines otherwise.
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
        if isinstance(value, Tensor):
            signature[name] = "*" + _of_tensor(value)
            number = value.data_ptr()
        elif isinstance(getattr(value, "base", None), Tensor) and hasattr(value, "block_shape"):
            signature[name] = f"tensordesc<{_of_tensor(value.base)}{list(value.block_shape)}>"
        elif isinstance(value, bool | int | float):
            annotated = parameter.annotation_type
            signature[name] = annotated or _short(type_of_number(value).name)
            number = int(value) if is_integer else number
        else:
            return None
        if number % 16 == 0 and is_special and not parameter.do_not_specialize_on_alignment:
            attributes[place,] = BaseBackend.parse_attr("D")
    return Described(signature, constants, attributes)


def _of_tensor(tensor: Tensor) -> str:
    return _short(of_memory(tensor.dtype.numpy).name)


def _short(name: str) -> str:
    """Return a type as signatures write it: `int32` is `i32`, `uint8` is `u8`."""
    return name.replace("uint", "u").replace("int", "i")


def may_not_fit(copied_bytes: int, target: GPUTarget) -> bool:
    """Whether so much that is copied ahead makes it worth asking if a program fits an SM."""
    if target.backend != "cuda":
        return False
    return copied_bytes > _SHARED_BYTES[_known(int(target.arch))] * _WORTH_ASKING


def _check_fits(shared_bytes: int, arch: int) -> None:
    """Raise what a launch on a GPU would raise.

    Raises:
        OutOfResources: A program takes more shared memory than it can have.
    """
    limit = _SHARED_BYTES[_known(arch)] - _SHARED_BYTES_RESERVED
    if shared_bytes > limit:
        raise OutOfResources(shared_bytes, limit, "shared memory")


def _known(arch: int) -> int:
    return arch if arch in _MAX_CTAS else 90


def _resources(compiled: CompiledKernel, arch: int) -> Resources:
    num_warps, shared_bytes = int(compiled.metadata.num_warps), int(compiled.metadata.shared)
    registers, spilled = _registers(compiled.asm["cubin"])
    per_warp = -(-registers * 32 // _REGISTERS_ARE_GIVEN_IN) * _REGISTERS_ARE_GIVEN_IN
    known = _known(arch)
    limits = (
        _REGISTERS // max(per_warp * num_warps, 1),
        _SHARED_BYTES[known] // (shared_bytes + _SHARED_BYTES_RESERVED),
        _MAX_WARPS[known] // num_warps,
        _MAX_CTAS[known],
    )
    return Resources(registers, spilled, shared_bytes, num_warps, max(min(limits), 1))


def _registers(cubin: bytes) -> tuple[int, int]:
    """Return registers and spilled ones per thread, as NVIDIA's own tool reads the binary.

    Raises:
        UnsupportedError: The tool that triton brings along says nothing of registers.
    """
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        tool = triton.knobs.nvidia.cuobjdump.path
        command = [tool, "--dump-resource-usage", file.name]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    match = _USAGE.search(shown)
    if match is None:
        raise UnsupportedError(f"cuobjdump says nothing of registers: {shown!r}")
    return int(match.group(1)), int(match.group(2)) // _BYTES_PER_REGISTER
