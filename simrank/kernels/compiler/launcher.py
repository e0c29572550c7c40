"""Launches of kernels that triton has compiled.

`triton.compile(...)` and `kernel.warmup(...)` return triton's objects, which get this launcher
from the driver. The kernel's source is run; the binary only gives the resources.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from typing import TYPE_CHECKING, Any, NamedTuple

import triton

from simrank.errors import UnsupportedError

if TYPE_CHECKING:
    from triton.compiler import ASTSource

_USED = re.compile(r"REG:(\d+) STACK:(\d+)")
_BYTES_PER_REGISTER = 4
_OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")


class BinaryResources(NamedTuple):
    """Resources of a thread of a binary.

    Attributes:
        registers: Number of registers.
        spills: Number of spilled registers.
    """

    registers: int
    spills: int


def binary_resources(cubin: bytes) -> BinaryResources:
    """Read the resources of a binary with NVIDIA's tool.

    Raises:
        UnsupportedError: The output of triton's cuobjdump has no registers.
    """
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        tool = triton.knobs.nvidia.cuobjdump.path
        command = [tool, "--dump-resource-usage", file.name]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    match = _USED.search(shown)
    if match is None:
        raise UnsupportedError(f"cuobjdump says nothing of registers: {shown!r}")
    return BinaryResources(int(match.group(1)), int(match.group(2)) // _BYTES_PER_REGISTER)


class SimulatedLauncher:
    """Launches a compiled kernel: its source, with its constants and options.

    Args:
        source: The compiled source.
        metadata: The compiler's metadata, options included.

    Raises:
        UnsupportedError: The source is not a kernel but a file in the compiler's own language.
    """

    def __init__(self, source: ASTSource, metadata: Any) -> None:  # noqa: ANN401 - triton's own type
        self._jit: Any = getattr(source, "fn", None)
        if not isinstance(self._jit, triton.JITFunction):
            raise UnsupportedError(
                f"launch of '{metadata.name}', which was compiled from no kernel's source\n"
                "  to fix: compile or call the @triton.jit function"
            )
        names = self._jit.arg_names
        constants = {(names.index(k),) if isinstance(k, str) else k: v
                     for k, v in source.constants.items()}  # fmt: skip
        self._constants = {names[path[0]]: v for path, v in constants.items() if len(path) == 1}
        given = {name: getattr(metadata, name, None) for name in _OPTIONS}
        self._options = {k: v for k, v in given.items() if v is not None and k not in names}

    def __call__(self, *given: Any) -> None:  # noqa: ANN401 - any kernel arguments
        """Launch the kernel on the current stream.

        Args:
            *given: As triton passes them: the grid's three sizes, the stream, the binary's handle,
                    its packed metadata, metadata of the launch, two hooks, and all arguments of
                    the kernel; constants among them are ignored.
        """
        grid, stream, args = given[:3], given[3], given[9:]
        driver = triton.runtime.driver.active
        current = driver.get_current_stream(driver.get_current_device())
        if stream not in (None, current):
            raise UnsupportedError(
                f"launch of a compiled kernel on stream {stream:#x}, which is not the current one\n"
                "  to fix: make it the current stream"
            )
        named = dict(zip(self._jit.arg_names, args, strict=True)) | self._constants
        self._jit.run(grid=grid, warmup=False, **self._options, **named)
