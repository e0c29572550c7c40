"""What of torch.distributed is not simulated: refused in ranks, by name.

`elastic_launch` of a function starts simulated ranks; a command would be real processes.
"""

from __future__ import annotations

import functools
from importlib import import_module
from typing import TYPE_CHECKING, Any

from simrank.errors import UnsupportedError
from simrank.ranks.current import rank_program

if TYPE_CHECKING:
    from collections.abc import Callable

    StandIns = list[tuple[Any, str, Any]]

_RPC, _LAUNCHER = "torch.distributed.rpc", "torch.distributed.launcher.api"


def stand_ins() -> StandIns:
    """Return what stands for it."""
    rpc: Any = import_module(_RPC)
    if not hasattr(rpc, "init_rpc"):  # Not in every build.
        return []
    return [(rpc, "init_rpc", _refused(rpc.init_rpc, f"{_RPC}.init_rpc"))]


def of_launcher(launcher: Any) -> StandIns:
    """Return what stands for it in a part that programs need not import."""
    return [(launcher, "launch_agent", _functions_only(launcher.launch_agent))]


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
