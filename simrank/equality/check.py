"""Checks of layouts, one by one: each is run and judged."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from simrank.equality import spill
from simrank.equality.judge import Judge
from simrank.equality.own_types import OwnTypes
from simrank.equality.runs import (
    CPU,
    DECLARED,
    EXACT,
    Options,
    Reference,
    Runner,
    run_layout,
    run_single,
)
from simrank.equality.verdict import RACE, RUN, WHOLE, Found, Verdict
from simrank.errors import (
    ConfigError,
    ProcessException,
    SimrankError,
    SimulationError,
    SpawnException,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from simrank.equality.layout import Layout
    from simrank.equality.record import Names, Record
    from simrank.equality.start import Start

_MISSING_AXIS = "Invalid mesh_dim_name"  # Of torch's error.
_OFF = "dropout is off (p = 0), other random numbers are constants: they could not be aligned"
_FALLBACK = "float32"
# Of errors of programs whose tensors lie on the CPU.
_ON_CPU = (
    "on the same device",
    "nccl does not reach",
    "tensors lie on different devices",
    "Inconsistent compute device",
)
_TO_FIX_DEVICE = "to fix: make tensors on the device of the model and the batch, or --device cpu"


@dataclass(frozen=True)
class Checks:
    """The layouts of a program; can be sent to other processes.

    Attributes:
        options: How the program is run.
        layouts: The layouts.
        folder: Where the single program's records lie, by precision.
    """

    options: Options
    layouts: Sequence[Layout]
    folder: Path

    def __call__(self, index: int) -> Verdict:
        """Run and judge a layout."""
        layout = self.layouts[index]
        try:
            return self._judged(self.options, layout)
        except SimrankError as error:
            failure = error
        other = _other(self.options, failure)
        if other is not None:
            try:
                verdict = self._judged(other[0], layout)
            except SimrankError:
                pass  # It cannot run so either, for the same reason.
            else:
                verdict.notes.append(f"{other[1]}, {_reason(failure)}")
                return verdict
        return Verdict(layout, failed(failure))

    def arranged(self, single: Record) -> Checks:
        """Return the checks of the same layouts, with their axes in the program's order."""
        order, shared = single.axes, single.shared_axes
        return replace(self, layouts=[each.arranged(order, shared) for each in self.layouts])

    def _judged(self, options: Options, layout: Layout) -> Verdict:
        reference = self.reference(options)
        runner = Runner(options, reference)
        run = runner.layout(layout)
        judge = Judge(reference, run.ranks, layout, runner, options.excluded)
        verdict = judge.judge()
        is_open = verdict.found is not None and verdict.found.needs_masks and options.has_dropout
        if is_open and not _are_masks_aligned(run.ranks):
            verdict = self._judged(replace(options, has_dropout=False), layout)
            verdict.notes.append(_OFF)
            return verdict
        if run.races and verdict.found is None:
            verdict.found = _raced(run.races)
        else:
            verdict.notes += [f"race: {_first_line(race)}" for race in run.races]
        if verdict.found is None and options.also_declared:
            try:
                self._judge_own_types(options, judge.start, run.names, verdict)
            except SimrankError as error:
                verdict.found = failed(error)
                verdict.found.cause = f"in its own types: {verdict.found.cause}"
        return verdict

    def _judge_own_types(
        self, options: Options, exact: Start, names: Mapping[int, Names], verdict: Verdict
    ) -> None:
        """Run the layout in its own types, and add to the verdict how exact it is there."""
        if options.dtype_name != EXACT:
            verdict.notes.append(f"not compared in its own types: {EXACT} is needed for that")
            return
        drops = any(step.dropped for step in exact.reference.record.steps)
        plain = replace(options, has_dropout=options.has_dropout and not drops)
        if drops:
            exact.reference = self.reference(plain)
        own = replace(plain, dtype_name=DECLARED)
        single = self.reference(own).record
        run = run_layout(own, exact.layout, exact.reference.record, names)
        verdict.found, line = OwnTypes(single, run.ranks).judge(exact, options.excluded)
        if verdict.found is None:
            verdict.notes.append(line + (", without dropout" if drops else ""))

    def reference(self, options: Options) -> Reference:
        """Return the record of the single program, which is run once for all layouts."""
        name = f"{options.dtype_name}-{options.device_type}"
        path = self.folder / (name + ("" if options.has_dropout else "-p0"))
        if not path.exists():
            made = path.with_name(f"{path.name}.{os.getpid()}")
            spill.write(self._run_single(options), made)
            made.with_suffix(".data").replace(path.with_suffix(".data"))
            made.replace(path)
        found: Reference = spill.read(path)
        return found

    def _run_single(self, options: Options) -> Reference:
        if options.dtype_name != DECLARED:
            return run_single(options)
        exact = self.reference(replace(options, dtype_name=EXACT)).record
        return run_single(options, num_noisy=0, initial=exact.initial)


def prepared(options: Options, layouts: Sequence[Layout], folder: Path) -> tuple[Checks, list[str]]:
    """Run the single program, in the precision and on the device that it allows.

    Returns:
        The checks, and what is to be said of precision and device.

    Raises:
        SimrankError: The single program fails.
    """
    checks = Checks(options, layouts, folder)
    try:
        reference = checks.reference(options)
    except ConfigError:
        raise
    except SimrankError as error:
        _raise_config(error)
        other = _other(options, error)
        if other is None:
            raise
        checks, notes = prepared(other[0], layouts, folder)
        return checks, [f"{other[1]}, {_reason(error)}", *notes]
    return checks.arranged(reference.record), []


def _raise_config(error: SimrankError) -> None:
    """Raise what a rank found wrong with the program's functions."""
    if isinstance(error, SpawnException):
        for cause in error.errors.values():
            if isinstance(cause, ConfigError):
                raise cause from None


def _other(options: Options, error: SimrankError) -> tuple[Options, str] | None:
    """Return options with which a program that failed may run, and words for them."""
    if options.device is None and _is_of_cpu(error):
        return replace(options, device=CPU), "computed on the CPU, with gloo: on cuda"
    if options.dtype_name == EXACT and _may_be_precision(error):
        return replace(options, dtype_name=_FALLBACK), f"computed in {_FALLBACK}: in {EXACT}"
    return None


def _is_of_cpu(error: SimrankError) -> bool:
    """Return whether a program has tensors of its own on the CPU."""
    return any(words in str(error) for words in _ON_CPU)


def _may_be_precision(error: SimrankError) -> bool:
    """Return whether a program may have failed because it does not compute in float64."""
    return isinstance(error, ProcessException)


def failed(error: SimrankError) -> Found:
    """Return that a layout did not run to its end."""
    text = str(error)
    if _MISSING_AXIS in text:
        text += "\nto fix: give the layout each axis that the program asks for, if of size 1"
    if _is_of_cpu(error):
        text += f"\n{_TO_FIX_DEVICE}"
    if isinstance(error, SpawnException):
        ranks = sorted(error.errors)
        cause = error.errors[ranks[0]]
        return Found(RUN, WHOLE, (), _line(cause), ranks=ranks, report=text)
    ranks = sorted({r for wait in getattr(error, "waits", ()) for r in wait.ranks if r >= 0})
    name = type(error).__name__ if isinstance(error, SimulationError) else "error"
    return Found(RUN, WHOLE, (), f"{name}: {_reason(error)}", ranks=ranks, report=text)


def _are_masks_aligned(ranks: Sequence[Record]) -> bool:
    """Return whether every dropout of the ranks has the single program's mask."""
    return all(
        dropped.is_aligned
        for record in ranks
        for step in record.steps
        for calls in step.dropped.values()
        for dropped in calls
    )


def _raced(races: Sequence[str]) -> Found:
    """Return that right numbers are so by chance."""
    cause = f"numbers are right, but nothing orders them: {_first_line(races[0])}"
    return Found(RACE, WHOLE, (), cause, report="\n".join(races))


def _first_line(text: str) -> str:
    return next((line for line in text.splitlines() if line.strip()), "")


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def _reason(error: SimrankError) -> str:
    """Return the first line of what went wrong."""
    if isinstance(error, SpawnException):
        return _line(next(iter(error.errors.values())))
    return _first_line(str(error)) or type(error).__name__
