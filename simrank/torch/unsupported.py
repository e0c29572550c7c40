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
    """Return the patches of `torch.distributed.rpc` and of models compiled ahead of time."""
    rpc: Any = import_module(_RPC)
    found = _of_packages(import_module("torch._C._aoti"))
    if hasattr(rpc, "init_rpc"):  # Not in every build.
        found.append((rpc, "init_rpc", _refused(rpc.init_rpc, f"{_RPC}.init_rpc")))
    return found


def _of_packages(module: Any) -> Patches:
    """Return the patches of the classes that load AOTInductor's models."""
    loader, name = module.AOTIModelPackageLoader, "AOTIModelContainerRunnerCuda"
    create, create_runner = loader.__init__, getattr(module, name, None)

    @functools.wraps(create)
    def load(self: Any, path: str, model_name: str = "model", *args: Any, **kwargs: Any) -> None:
        if rank_program() is not None:
            facts = loader.load_metadata_from_package(path, model_name)
            if facts.get("AOTI_DEVICE_KEY") == "cuda":
                raise _of_cuda(path)
        create(self, path, model_name, *args, **kwargs)

    def run(path: str, *args: Any, **kwargs: Any) -> Any:
        if create_runner is None or rank_program() is not None:  # None: a build without CUDA.
            raise _of_cuda(path)
        return create_runner(path, *args, **kwargs)

    return [(loader, "__init__", load), (module, name, run)]


def _of_cuda(path: str) -> UnsupportedError:
    return UnsupportedError(
        f"AOTInductor's {path} (aoti_load_package, aot_load) is not simulated for CUDA: its C++ "
        "would call the CUDA driver\n"
        "  to fix: use the model that it was made of, with torch.compile; or load it on a real GPU"
    )


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
