"""What a device function's source says of it: what it shows to other programs, what it writes.

What is found here decides how a kernel runs and what waits for it, never what it computes.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from simrank.kernels.machine import Effects
from simrank.kernels.machine.kept import kept
from simrank.kernels.shmem import libraries
from simrank.kernels.source import dispatch
from simrank.kernels.source.effects import effects_of
from simrank.kernels.source.scopes import (
    as_jit,
    definition_of,
    is_of_library,
    scope_of,
    text_of,
    value_of,
)
from simrank.kernels.source.substitute import is_device_function
from simrank.kernels.source.waits import READS
from simrank.kernels.source.writes import LOADERS, WRITERS, Callee, written_parameters

if TYPE_CHECKING:
    from simrank.kernels.machine.jit import Jit


def effects_of_jit(jit: Jit) -> Effects:
    """Return what a device function, and what it calls, does that other programs can see."""
    facts = kept(jit)
    if "effects" not in facts:
        facts["effects"] = Effects()  # For functions that call themselves.
        scope = scope_of(jit.fn)
        facts["effects"] = effects_of(
            definition_of(jit),
            lambda name: effects_of_callee(name, scope),
            lambda name: text_of(name, scope),
        )
    effects: Effects = facts["effects"]
    return effects


def effects_of_callee(name: ast.expr, scope: dict[str, Any]) -> Effects | None:
    """Return the effects of the device function that an expression names; None where it is none."""
    return effects_of_value(value_of(name, scope))


def effects_of_value(value: Any) -> Effects | None:
    """Return the effects of a device function; None where it is none, or one of Triton's own."""
    of_library = libraries.effects(getattr(value, "fn", value))
    if of_library is not None:
        return of_library
    jit = as_jit(value)
    if jit is not None:
        return effects_of_jit(jit)
    return _effects_of_dispatcher(value) if _is_dispatcher(value) else None


def _is_dispatcher(value: Any) -> bool:
    return is_of_library(value) and dispatch.is_dispatcher(value)


def _effects_of_dispatcher(value: Any) -> Effects:
    """Return the effects of what a builtin chooses to call: all there are where that depends."""
    chosen = dispatch.targets(value, is_device_function)
    if chosen is None:
        return Effects(waits=True, publishes=True, reads=True)
    result = Effects()
    for function in chosen:
        effects = effects_of_value(function)
        if effects is not None:
            result.add(effects)
        result.reads |= getattr(function, "__name__", "") in READS
    return result


def written_by_jit(jit: Jit) -> frozenset[str]:
    """Return the parameters through which a device function, or what it calls, may write."""
    return _touched_by_jit(jit, "written")


def loaded_by_jit(jit: Jit) -> frozenset[str]:
    """Return the parameters through which a device function, or what it calls, may load."""
    return _touched_by_jit(jit, "loaded")


def _touched_by_jit(jit: Jit, how: str) -> frozenset[str]:
    facts = kept(jit)
    if how not in facts:
        facts[how] = frozenset()  # For functions that call themselves.
        scope = scope_of(jit.fn)
        constants = {parameter.name for parameter in jit.params if parameter.is_constexpr}
        touched = written_parameters(
            definition_of(jit),
            lambda name: _callee(name, scope, how),
            WRITERS if how == "written" else LOADERS,
        )
        facts[how] = touched - constants
    result: frozenset[str] = facts[how]
    return result


def _callee(name: ast.expr, scope: dict[str, Any], how: str) -> Callee | None:
    value = value_of(name, scope)
    jit = as_jit(value)
    if jit is None and _is_dispatcher(value):
        chosen = dispatch.targets(value, is_device_function) or []
        jit = as_jit(chosen[0]) if len(chosen) == 1 else None
        if jit is None:  # Whatever it calls may write through any argument.
            return Callee((), frozenset())
    if jit is None:
        return None
    is_method = isinstance(name, ast.Attribute) and value_of(name.value, scope) is None
    return Callee(jit.arg_names[is_method:], _touched_by_jit(jit, how))
