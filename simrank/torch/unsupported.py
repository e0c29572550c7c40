"""Parts of torch that ranks may not use: each raises UnsupportedError with its name.

`elastic_launch` of a function starts simulated ranks; a command would be real processes.
"""

from __future__ import annotations

import functools
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from simrank.errors import UnsupportedError
from simrank.ranks.current import rank_program
from simrank.ranks.program_modules import KNOWING

if TYPE_CHECKING:
    from collections.abc import Callable

    Patches = list[tuple[Any, str, Any]]

_RPC, _LAUNCHER = "torch.distributed.rpc", "torch.distributed.launcher.api"


def patches() -> Patches:
    """Return the patches of `torch.distributed.rpc`."""
    rpc: Any = import_module(_RPC)
    if not hasattr(rpc, "init_rpc"):  # Not in every build.
        return []
    return [(rpc, "init_rpc", _refused(rpc.init_rpc, f"{_RPC}.init_rpc"))]


def of_launcher(launcher: Any) -> Patches:
    """Return the patches of `torch.distributed.launcher`."""
    return [(launcher, "launch_agent", _functions_only(launcher.launch_agent))]


_FAKE = "modes of fake tensors"  # In `Program.local`: how many the rank's program is in.


def of_fake_tensors(module: Any) -> Patches:
    """Return patches that reject a program's fake CUDA tensors; torch's own are allowed."""
    mode, tensor = module.FakeTensorMode, module.FakeTensor
    return [
        (mode, "__enter__", _counted(mode.__enter__, 1)),
        (mode, "__exit__", _counted(mode.__exit__, -1)),
        (
            tensor, "_normalize_fake_device",
            staticmethod(_unless_fake(tensor._normalize_fake_device)),  # noqa: SLF001 - torch's name
        ),
    ]  # fmt: skip


def _counted(original: Callable[..., Any], change: int) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: Any, *args: Any) -> Any:
        program = rank_program()
        frame = sys._getframe(1)  # noqa: SLF001 - the documented way
        while frame.f_globals.get("__name__") == "contextlib" and frame.f_back is not None:
            frame = frame.f_back
        home = str(frame.f_globals.get("__name__"))
        if program is not None and home.partition(".")[0] not in KNOWING:
            program.local[_FAKE] = max(0, program.local.get(_FAKE, 0) + change)
        return original(self, *args)

    return call


def _unless_fake(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def normalize(device: Any) -> Any:
        program = rank_program()
        if device.type == "cuda" and program is not None and program.local.get(_FAKE):
            raise UnsupportedError(
                "FakeTensorMode with CUDA tensors is not simulated: operations on fake tensors "
                "take no simulated time and no memory\n"
                "  to fix: use real tensors on the simulated device"
            )
        return original(device)

    return normalize


def _refused(original: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def refuse(*args: Any, **kwargs: Any) -> Any:
        if rank_program() is None:
            return original(*args, **kwargs)
        raise UnsupportedError(f"{name} is not simulated: it would talk to real processes")

    return refuse


def _functions_only(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def launch_agent(config: Any, entrypoint: Any, *args: Any, **kwargs: Any) -> Any:
        if rank_program() is not None and not callable(entrypoint):
            raise UnsupportedError(
                f"{_LAUNCHER}.elastic_launch of the command {entrypoint!r} is not simulated: it "
                "would start real processes\n"
                "  to fix: give it a function, or start the script with `simrank run`"
            )
        return original(config, entrypoint, *args, **kwargs)

    return launch_agent
