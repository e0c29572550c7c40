"""torch.compile in a rank: the function runs uncompiled, and one log line says so."""

from __future__ import annotations

import functools
import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from simrank.ranks.current import rank_program

if TYPE_CHECKING:
    from collections.abc import Callable

    Patches = list[tuple[Any, str, Any]]

_log = logging.getLogger("simrank")
_reported: list[bool] = []


def patches() -> Patches:
    """Return the patches of `torch.compile`."""
    return [(torch, "compile", _eager(torch.compile))]


def _eager(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def compile_(model: Any = None, **options: Any) -> Any:
        if rank_program() is None:
            return original(model, **options)
        if model is None:  # A decorator with options.
            return functools.partial(compile_, **options)
        if not _reported:
            _reported.append(True)
            _log.warning("torch.compile: simulated ranks run the function as it is written")
        if isinstance(model, torch.nn.Module):  # Its name is `_orig_mod` in the wrapper, as usual.
            frames: Any = import_module("torch._dynamo.eval_frame")
            return frames.DisableContext()(model)
        return model

    return compile_
