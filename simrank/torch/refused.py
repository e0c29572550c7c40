"""What of torch.distributed is not simulated: refused in ranks, by name."""

from __future__ import annotations

import functools
from importlib import import_module
from typing import TYPE_CHECKING, Any

from simrank.errors import UnsupportedError
from simrank.ranks.current import rank_program

if TYPE_CHECKING:
    from collections.abc import Callable

    StandIns = list[tuple[Any, str, Any]]

_REFUSED = {
    "torch.distributed.rpc": ("init_rpc",),
    "torch.distributed.launcher.api": ("elastic_launch",),
}


def stand_ins() -> StandIns:
    """Return what stands for it."""
    found: StandIns = []
    for module_name, names in _REFUSED.items():
        module: Any = import_module(module_name)
        for name in names:
            if hasattr(module, name):
                found.append((module, name, _refused(getattr(module, name), module_name)))
    return found


def _refused(original: Callable[..., Any], module_name: str) -> Callable[..., Any]:
    @functools.wraps(original, updated=())
    def refuse(*args: Any, **kwargs: Any) -> Any:
        if rank_program() is None:
            return original(*args, **kwargs)
        raise UnsupportedError(
            f"{module_name}.{original.__name__} is not simulated: it would start processes, or "
            "talk to real ones"
        )

    return refuse
