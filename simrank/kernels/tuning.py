"""Autotuners of triton with separate results per program.

A tuner's results hold for the device that it measured: ranks tune separately, and another Context
may have another cluster. Results are not cached on disk, where a run on a real GPU would find them.
A kernel that is not over after one run, since it adds to its own output, is a finding.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from simrank.device import current_stream
from simrank.ranks import current_program, require_program

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy as np

    from simrank.device import Tensor
    from simrank.kernels.launch import RecordedLaunch

_KEY = "autotuners of triton"  # In `Program.local`.
# Attributes that a tuner sets while it runs, in triton 3.0 to 3.9; users read the first ones.
_SHOWN = ("best_config", "configs_timings", "bench_time")
_NAMES = (*_SHOWN, "nargs", "cache", "restore_copies")


def _state(tuner: Any) -> dict[str, Any]:  # noqa: ANN401 - an Autotuner
    """Return a tuner's state in the running program; outside Contexts its own attributes."""
    program = current_program()
    if program is None:
        outside: dict[str, Any] = vars(tuner)
        outside.setdefault("cache", {})  # One made in a program has none: nothing is measured yet.
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


# ---- Kernels that add to their own output ----


class _Benchmark:
    """Benchmark function of tuners; of a simulated program, it checks what repeated runs change."""

    def __get__(self, tuner: Any, owner: type | None = None) -> Any:  # noqa: ANN401 - a descriptor
        if tuner is None:
            return self
        given = tuner._do_bench  # noqa: SLF001 - triton's own class hands it over
        import triton  # noqa: PLC0415 - its import installs this module

        bench = triton.runtime.driver.active.get_benchmarker() if given is None else given
        return bench if current_program() is None else partial(_measured, tuner, bench)


def _measured(
    tuner: Any,  # noqa: ANN401 - an Autotuner
    bench: Callable[..., Any],
    kernel_call: Callable[[], None],
    **options: Any,  # noqa: ANN401 - triton's
) -> Any:  # noqa: ANN401 - times in triton's form
    """Measure a configuration; add a finding if further runs changed the results of the first."""
    from simrank.kernels.launch import recorded_launches  # noqa: PLC0415 - it needs triton whole

    device, rank = current_stream().device, require_program("autotune").rank
    after_first: dict[str, np.ndarray[Any, Any]] = {}
    num_calls = 0

    def call() -> None:
        nonlocal num_calls
        kernel_call()
        num_calls += 1
        if num_calls == 1:
            current_stream().synchronize()
            after_first.update((name, t.array.copy()) for name, t in stored())

    def stored() -> Iterable[tuple[str, Tensor]]:
        own = (launch for launch in seen.launches if _is_of(tuner, launch) and launch.rank == rank)
        launch = next(own, None)
        written = {} if launch is None else launch.written
        return [(name, t) for name, t in written.items() if t.storage.has_values]

    with recorded_launches() as seen:
        result = bench(call, **options)
        if num_calls > 1:
            current_stream().synchronize()
            again = [n for n, t in stored() if t.array.tobytes() != after_first[n].tobytes()]
            if again:
                text = _accumulates(tuner.base_fn.__name__, again, num_calls)
                device.memory.space.hints[text] = None
    return result


def _is_of(tuner: Any, launch: RecordedLaunch) -> bool:  # noqa: ANN401 - an Autotuner
    return launch.jit.fn is tuner.base_fn


def _accumulates(kernel: str, names: list[str], num_calls: int) -> str:
    shown = ", ".join(f"'{name}'" for name in names)
    return (
        f"autotune of kernel '{kernel}' ran a configuration {num_calls} times, and each run "
        f"changed {shown} again: the launch adds to what the measurements left\n"
        f"    to fix: triton.autotune(..., reset_to_zero={names}) where callers pass zeros, else "
        f"restore_value={names}"
    )


def install(tuners: type[Any]) -> None:
    """Give a class of tuners separate state per program, once."""
    if isinstance(vars(tuners).get("cache"), _PerProgramAttribute):
        return
    for name in _NAMES:
        setattr(tuners, name, _PerProgramAttribute(name))
    known: Any = tuners
    known.do_bench = _Benchmark()
    if hasattr(known, "check_disk_cache"):  # Since triton 3.2.
        known.check_disk_cache = _check_disk_cache(known.check_disk_cache)
