"""torch.compile in ranks: Dynamo and inductor run as on GPUs, kernels run in the emulator.

`SIMRANK_COMPILE=eager` runs functions uncompiled instead. See `dynamo` for what is a rank's own,
`inductor` for kernels and the cache.
"""

from __future__ import annotations

import functools
import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from simrank.ranks.current import rank_program

if TYPE_CHECKING:
    from collections.abc import Callable

    Patches = list[tuple[Any, str, Any]]

_IS_EAGER = "torch.compile: functions ran as they are written, as SIMRANK_COMPILE=eager asks"


def patches() -> Patches:
    """Return the patches of `torch.compile`."""
    return [(torch, "compile", _asked(torch.compile))]


def _asked(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `torch.compile`: it compiles unless the program asks for eager functions."""

    @functools.wraps(original)
    def compile_(model: Any = None, **options: Any) -> Any:
        program = rank_program()
        if program is None:
            return original(model, **options)
        if os.environ.get("SIMRANK_COMPILE", "") != "eager":
            dynamo: Any = import_module("simrank.torch.dynamo")  # With what compiles only.
            dynamo.frames_of(program)
            return original(model, **options)
        if model is None:  # A decorator with options.
            return functools.partial(compile_, **options)
        program.engine.remarks[_IS_EAGER] = None
        if isinstance(model, torch.nn.Module):  # Its name is `_orig_mod` in the wrapper, as usual.
            frames: Any = import_module("torch._dynamo.eval_frame")
            return frames.DisableContext()(model)
        return model

    return compile_
