"""torch.compile in ranks: Dynamo and inductor run as on GPUs, kernels run in the emulator.

`SIMRANK_COMPILE=eager` runs functions uncompiled instead. Dynamo's cache of compiled code is one
per rank, as it is one per process; only one rank compiles at a time.
"""

from __future__ import annotations

import functools
import itertools
import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from simrank.ranks.current import rank_program, running_task
from simrank.torch.inductor import forget_other_devices, in_ranks
from simrank.torch.rank_state.turns import FRAMES

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.ranks import Program

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
            frames_of(program)
            return original(model, **options)
        if model is None:  # A decorator with options.
            return functools.partial(compile_, **options)
        program.engine.remarks[_IS_EAGER] = None
        if isinstance(model, torch.nn.Module):  # Its name is `_orig_mod` in the wrapper, as usual.
            frames: Any = import_module("torch._dynamo.eval_frame")
            return frames.DisableContext()(model)
        return model

    return compile_


# ---- Dynamo ----

_NUM_REGIONS = 1 << 20  # Of a rank; `isolate_recompiles=True` takes one.
_first_regions = itertools.count(_NUM_REGIONS, _NUM_REGIONS)


# Python's part of it: modules, and their globals that hold the state of a process.
_GLOBALS = (
    ("torch._dynamo.compiled_autograd", "active_disable_ctx"),
    ("torch._dynamo.compiled_autograd", "compiled_autograd_enabled"),
    ("torch._dynamo.compiled_autograd", "compiled_autograd_enabled_force_eager"),
    ("torch._dynamo.compiled_autograd", "depth"),
    ("torch._dynamo.compiled_autograd", "in_compiled_autograd_region"),
    ("torch._dynamo.distributed", "_COMPILE_PG"),
    ("torch._dynamo.distributed", "_GUARD_PG"),
    ("torch._dynamo.eval_frame", "_in_optimized_module"),
    ("torch._dynamo.eval_frame", "_stance"),
    ("torch._dynamo.pgo", "_CODE_STATE"),
    ("torch._dynamo.pgo", "_INIT_CODE_STATE"),
)


class Frames:
    """Dynamo's state of a process: the rank's own, in place during its turns.

    Attributes:
        first_region: The rank's first region of compiled code.
    """

    def __init__(self) -> None:
        self.first_region = next(_first_regions)
        self._bindings: Any = import_module("torch._C._dynamo.eval_frame")
        self._places = [(vars(import_module(module)), name) for module, name in _GLOBALS]
        self._in_c = (self.first_region, False, -1, False)
        self._in_python = [names[name] for names, name in self._places]

    def enter(self) -> None:
        """Put the rank's values in place."""
        self._swap()

    def leave(self) -> None:
        """Put the common values back."""
        self._swap()

    def _swap(self) -> None:
        bindings, (region, skips, count, nested) = self._bindings, self._in_c
        self._in_c = (
            bindings.set_eval_frame_isolate_recompiles_id(region),
            bindings.set_skip_guard_eval_unsafe(skips),
            bindings.set_fullgraph_compiled_frame_count(count),
            bindings.set_fullgraph_error_on_nested_compile(nested),
        )
        own = self._in_python
        for index, (names, name) in enumerate(self._places):
            own[index], names[name] = names[name], own[index]


def frames_of(program: Program) -> Frames:
    """Return a rank's frames; they are in place from the first call on."""
    frames: Frames | None = program.local.get(FRAMES)
    if frames is None:
        frames = program.local[FRAMES] = Frames()
        frames.enter()
        if torch.cuda.is_available():
            forget_other_devices()
    return frames


def of_frames(module: Any) -> Patches:
    """Return the patches of `torch._dynamo.eval_frame`: a cache of compiled code for each rank."""
    name = "set_eval_frame_isolate_recompiles_id"
    original = getattr(module, name)

    @functools.wraps(original)
    def set_region(region: int) -> int:
        program = rank_program()
        if program is not None and region + 1 < _NUM_REGIONS:
            region += 1 + frames_of(program).first_region
        return int(original(region))

    guards: Any = import_module("torch._C._dynamo.guards")
    return [
        (module, name, set_region),
        (guards, "_empty_strided_cuda", in_ranks(_empty_strided, guards._empty_strided_cuda)),  # noqa: SLF001 - torch's name
    ]


def of_conversion(module: Any) -> Patches:
    """Return the patches of `torch._dynamo.convert_frame`."""
    import_module("torch._dynamo.trace_rules").add("simrank")  # Its frames are not the program's.
    return [(module, "compile_lock", _Compilation(module.compile_lock))]


class _Compilation:
    """Dynamo's lock of compilations: in a rank no lock, but a time in which its clock stands.

    Simulated time is that of a program whose compiled code is cached. Ranks are threads that run
    in turns, so a lock could only make one wait for another that waits for it.
    """

    def __init__(self, lock: Any) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        task = running_task()
        if task is None or task.rank is None:
            self._lock.acquire()
        else:
            task.num_quiet += 1

    def __exit__(self, *_: object) -> None:
        task = running_task()
        if task is None or task.rank is None:
            self._lock.release()
        else:
            task.num_quiet -= 1


def _empty_strided(size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype, device="cuda")
