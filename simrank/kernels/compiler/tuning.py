"""Autotuners of triton, with results per program.

What a tuner found holds for the device that it measured: ranks measure side by side, and another
Context may be another cluster. It goes to no file either, where a real GPU would find it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simrank.ranks import current_program

if TYPE_CHECKING:
    from collections.abc import Callable

_KEY = "autotuners of triton"  # In `Program.local`.
# What a tuner sets while it runs, in triton 3.0 to 3.9; the first are for people to look at.
_SHOWN = ("best_config", "configs_timings", "bench_time")
_NAMES = (*_SHOWN, "nargs", "cache", "restore_copies")


def _state(tuner: Any) -> dict[str, Any]:  # noqa: ANN401 - an Autotuner
    """Return a tuner's results of the running program, or of programs outside of Contexts."""
    program = current_program()
    if program is None:
        outside: dict[str, Any] = vars(tuner)
        return outside
    own: dict[Any, dict[str, Any]] = program.local.setdefault(_KEY, {})
    if tuner not in own:
        own[tuner] = {"cache": {}}
    return own[tuner]


class _OwnName:
    """An attribute of tuners that each program has for itself.

    Of what is there to be looked at, a program that has not tuned sees what was found last.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, tuner: Any, owner: type | None = None) -> Any:  # noqa: ANN401 - a descriptor
        if tuner is None:
            return self
        for known in (_state(tuner), vars(tuner)):
            if self._name in known:
                return known[self._name]
        raise AttributeError(f"'{type(tuner).__name__}' object has no attribute '{self._name}'")

    def __set__(self, tuner: Any, value: object) -> None:  # noqa: ANN401 - an Autotuner
        _state(tuner)[self._name] = value
        if self._name in _SHOWN:
            vars(tuner)[self._name] = value


def _check_disk_cache(original: Callable[..., bool]) -> Callable[..., bool]:
    def check_disk_cache(
        self: Any,  # noqa: ANN401 - an Autotuner
        tuning_key: object,
        configs: object,
        bench_fn: Callable[[], None],
    ) -> bool:
        if current_program() is None:
            return original(self, tuning_key, configs, bench_fn)
        bench_fn()
        return False

    return check_disk_cache


def install(tuners: type[Any]) -> None:
    """Patch a class of tuners to keep results per program, once."""
    if isinstance(vars(tuners).get("cache"), _OwnName):
        return
    for name in _NAMES:
        setattr(tuners, name, _OwnName(name))
    known: Any = tuners
    if hasattr(known, "check_disk_cache"):  # Since triton 3.2.
        known.check_disk_cache = _check_disk_cache(known.check_disk_cache)
