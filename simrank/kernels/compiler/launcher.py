"""Kernels that triton has compiled, loaded and launched on simulated devices.

`triton.compile(...)` and `kernel.warmup(...)` give triton's own objects, which ask the driver for
this. What runs is the kernel's source, not the binary, which says only what a program takes.
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


class Used(NamedTuple):
    """Resources per thread of a binary.

    Attributes:
        registers: Registers.
        spills: Registers that it keeps in memory instead.
    """

    registers: int
    spills: int


def used_by(cubin: bytes) -> Used:
    """Return the resources that NVIDIA's tool reads from a binary.

    Raises:
        UnsupportedError: The tool that triton brings along says nothing of registers.
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
    return Used(int(match.group(1)), int(match.group(2)) // _BYTES_PER_REGISTER)


class SimulatedLauncher:
    """Launcher of a compiled kernel: its source, with its constants and options.

    Args:
        source: What triton compiled.
        metadata: What the compiler says of it, the options among it.

    Raises:
        UnsupportedError: It is no kernel's source, but a file of the compiler's own language.
    """

    def __init__(self, source: ASTSource, metadata: Any) -> None:  # noqa: ANN401 - a tuple of its own type
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

    def __call__(self, *given: Any) -> None:  # noqa: ANN401 - anything
        """Launch the kernel on the current stream.

        Args:
            *given: As triton gives them: the grid's three sizes, the stream, the binary's handle,
                its packed metadata, metadata of the launch, two hooks, and then all arguments of
                the kernel, of which constants are not looked at.
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
