"""Autotuners of triton with separate results per program.

A tuner's results hold for the device that it measured: ranks tune separately, and another Context
may have another cluster. Results are not cached on disk, where a run on a real GPU would find them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simrank.ranks import current_program

if TYPE_CHECKING:
    from collections.abc import Callable

_KEY = "autotuners of triton"  # In `Program.local`.
# Attributes that a tuner sets while it runs, in triton 3.0 to 3.9; users read the first ones.
_SHOWN = ("best_config", "configs_timings", "bench_time")
_NAMES = (*_SHOWN, "nargs", "cache", "restore_copies")


def _state(tuner: Any) -> dict[str, Any]:  # noqa: ANN401 - an Autotuner
    """Return a tuner's state in the running program; outside Contexts its own attributes."""
    program = current_program()
    if program is None:
        outside: dict[str, Any] = vars(tuner)
        return outside
    own: dict[Any, dict[str, Any]] = program.local.setdefault(_KEY, {})
    if tuner not in own:
        own[tuner] = {"cache": {}}
    return own[tuner]


class _PerProgramAttribute:
    """An attribute of tuners with a value per program.

    Attributes that users read fall back to the last value of any program.
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
    """Give a class of tuners separate state per program, once."""
    if isinstance(vars(tuners).get("cache"), _PerProgramAttribute):
        return
    for name in _NAMES:
        setattr(tuners, name, _PerProgramAttribute(name))
    known: Any = tuners
    if hasattr(known, "check_disk_cache"):  # Since triton 3.2.
        known.check_disk_cache = _check_disk_cache(known.check_disk_cache)
