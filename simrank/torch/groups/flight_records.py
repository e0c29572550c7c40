"""torch's flight recorder in ranks, answered from the simulation's."""

from __future__ import annotations

import functools
import json
import pickle
from importlib import import_module
from typing import TYPE_CHECKING, Any

from simrank.errors import UnsupportedError
from simrank.ranks.current import rank_program

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.distributed.flight_recorder import FlightRecorder

    Patches = list[tuple[Any, str, Any]]

_NAMES = ("_dump_fr_trace", "_dump_nccl_trace")


def patches() -> Patches:
    """Return patches of `_dump_fr_trace`, `_dump_nccl_trace` and their JSON forms."""
    bindings: Any = import_module("torch._C._distributed_c10d")
    found: Patches = []
    for name in _NAMES:
        found.append((bindings, name, _dumping(bindings, name)))
        as_json = f"{name}_json"
        found.append((bindings, as_json, _dumping_json(bindings, as_json)))
    return found


def _dumping(bindings: Any, name: str) -> Callable[..., bytes]:
    original = getattr(bindings, name, None)

    def dump(
        includeCollectives: bool | None = None,
        includeStackTraces: bool | None = None,
        onlyActive: bool | None = None,
    ) -> bytes:
        program = rank_program()
        if program is None:
            answer: bytes = _outside(original, name)(
                includeCollectives, includeStackTraces, onlyActive
            )
            return answer
        reported = _recorder_of(program, name).dump(
            program.rank or 0,
            includes_collectives=includeCollectives is not False,
            stacks=includeStackTraces is not False,
            only_active=bool(onlyActive),
        )
        return pickle.dumps(reported, protocol=2)

    return dump if original is None else functools.wraps(original)(dump)


def _dumping_json(bindings: Any, name: str) -> Callable[..., bytes]:
    original = getattr(bindings, name, None)

    def dump(
        includeCollectives: bool | None = None,
        onlyActive: bool | None = None,
    ) -> bytes:
        program = rank_program()
        if program is None:
            answer: bytes = _outside(original, name)(includeCollectives, onlyActive)
            return answer
        reported = _recorder_of(program, name).dump(
            program.rank or 0,
            includes_collectives=includeCollectives is not False,
            stacks=False,
            only_active=bool(onlyActive),
        )
        return json.dumps({**reported, "nccl_comm_state": {}}).encode()

    return dump if original is None else functools.wraps(original)(dump)


def _outside(original: Callable[..., Any] | None, name: str) -> Callable[..., Any]:
    if original is None:
        raise AttributeError(f"module 'torch._C._distributed_c10d' has no attribute '{name}'")
    return original


def _recorder_of(program: Any, name: str) -> FlightRecorder:
    recorder: FlightRecorder | None = program.context.comm_library.recorder
    if recorder is None:
        raise UnsupportedError(
            f"{name}: no flight recorder runs\n"
            "  to fix: `simrank run --flight-recorder DIR`, or `Context(flight_recorder=DIR)`"
        )
    return recorder
