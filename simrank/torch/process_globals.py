"""Globals of torch's modules that belong to a process: each rank has its own in its turns."""

from __future__ import annotations

import sys
from typing import Any

# Module, name, and its value before anything sets it.
NAMES: tuple[tuple[str, str, object], ...] = (
    ("torch.distributed._shard.api", "_CURRENT_PROCESS_GROUP", None),
    ("torch.distributed.checkpoint._async_process_executor", "_CHECKPOINT_PROCESS", None),
    ("torch.distributed.debug", "_DEBUG_SERVER_PROC", None),
    ("torch.distributed.debug", "_WORKER_SERVER", None),
    ("torch.distributed.elastic.timer.api", "_timer_client", None),
    ("torch.distributed.fsdp._fsdp_extensions", "_extensions", None),
    ("torch.nn.parallel._functions", "_streams", None),
)


class ProcessGlobals:
    """The values that one rank has set, and the common ones outside of its turns."""

    def __init__(self) -> None:
        self._own: dict[tuple[str, str], Any] = {}
        self._common: dict[tuple[str, str], Any] = {}

    def enter(self) -> None:
        """Put the rank's values in place."""
        self._common = {}
        modules = sys.modules
        for module_name, name, _ in NAMES:
            module = modules.get(module_name)
            if module is not None:
                key = module_name, name
                names = module.__dict__
                self._common[key] = names.get(name)
                if key in self._own:
                    names[name] = self._own[key]

    def leave(self) -> None:
        """Put the common values back."""
        modules = sys.modules
        for module_name, name, first in NAMES:
            module = modules.get(module_name)
            if module is None:
                continue
            key = module_name, name
            common = self._common.get(key, first)
            value = module.__dict__.get(name)
            if value is not common:
                self._own[key] = value
                module.__dict__[name] = common
            elif key in self._own:
                del self._own[key]
