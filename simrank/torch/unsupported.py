"""Parts of torch that ranks may not use: each raises UnsupportedError with its name.

`elastic_launch` of a function starts simulated ranks; a command would be real processes.
"""

from __future__ import annotations

import functools
from importlib import import_module
from typing import TYPE_CHECKING, Any

from simrank.errors import UnsupportedError
from simrank.ranks.current import rank_program
from simrank.torch.cuda.switch import has_real_devices, is_enabled

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


def of_extensions(extensions: Any) -> Patches:
    """Return the patches of `torch.utils.cpp_extension`: kernels in CUDA C++ need a GPU.

    Sources for the host are built and run: a simulated device's memory is the host's.
    """
    original = extensions._jit_compile  # noqa: SLF001 - behind load and load_inline

    @functools.wraps(original)
    def compile_(name: str, sources: Any, *args: Any, **kwargs: Any) -> Any:
        paths = [sources] if isinstance(sources, str) else sources
        kernels = [str(path) for path in paths if str(path).endswith((".cu", ".cuh"))]
        is_simulated = is_enabled() or not has_real_devices()
        if kernels and is_simulated and rank_program() is not None:
            raise UnsupportedError(
                f"the extension {name!r} has kernels in CUDA C++ ({', '.join(kernels)}): simulated "
                "devices run torch's operations and Triton kernels, no code compiled for a GPU\n"
                "  to fix: choose the program's implementation in torch or Triton; or use real GPUs"
            )
        return original(name, sources, *args, **kwargs)

    return [(extensions, "_jit_compile", compile_)]


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
