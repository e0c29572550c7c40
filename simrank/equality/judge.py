"""Verdicts on layouts: each trains as the single program does, or differs somewhere.

What training has of a step decides: the parameters and buffers after it, the loss, and which
elements dropouts drop. Tensors of the forward and the backward only tell where a difference began.

The tolerance is 8 times the error that the single program has in the same types.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from simrank.equality import gradients, parameters
from simrank.equality.causes import UNEXPLAINED, factor_of
from simrank.equality.comparison import ABSENT, GRADIENTS, RIGHT, SUMMAND, VALUES, errors_of
from simrank.equality.decoding import DecodingSearch
from simrank.equality.layout import varying
from simrank.equality.operations import MicroBatches
from simrank.equality.program import NoGradientError
from simrank.equality.record import Reference, read_record, write_record
from simrank.equality.runs import (
    CPU,
    DECLARED,
    EXACT,
    Runner,
    RunOptions,
    run_layout,
    run_single,
)
from simrank.equality.search import Search
from simrank.equality.step import PARAMETERS, STEP_GRADIENTS, AtStep, Start
from simrank.equality.tensor_file import TensorFile, release_free_memory, use_one_heap
from simrank.equality.verdict import (
    BACKWARD,
    FORWARD,
    GENERATE,
    LOSS,
    LOSS_MODULE,
    MICRO_BATCHES,
    MODEL,
    PRECISION,
    RACE,
    RUN,
    STEP,
    WHOLE,
    FirstDifference,
    Verdict,
    module_of,
    modules_text,
    names_text,
)
from simrank.errors import (
    ConfigError,
    ProcessException,
    SimrankError,
    SimulationError,
    SpawnException,
)
from simrank.parallel import ALONE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from simrank.equality.layout import Layout
    from simrank.equality.record import Names, Record, Step
    from simrank.equality.step import Wrong

_SUMMED = "the loss that the ranks return is a sum over {} elements of the batch, not its mean"
# What is looked for among the results of operations: values, or gradients.
_KINDS = {FORWARD: (VALUES,), LOSS: (VALUES, GRADIENTS), BACKWARD: (GRADIENTS,)}


class Judge:
    """Compares the ranks of a layout with the single program.

    Args:
        reference: The single program.
        ranks: What the ranks did.
        layout: Where they stand.
        runner: Runs programs again to find a cause; None: the cause is what the records tell.
        excluded: Modules that are not compared.

    Attributes:
        start: The ranks and the single program, aligned once it has judged.
    """

    def __init__(
        self,
        reference: Reference,
        ranks: Sequence[Record],
        layout: Layout,
        runner: Runner | None = None,
        excluded: Sequence[str] = (),
    ) -> None:
        self.start = Start(reference, ranks, layout)
        self._layout, self._runner, self._excluded = layout, runner, excluded
        self._partial: FirstDifference | None = None  # An output of the decoding step before.
        self._cache: FirstDifference | None = None  # The first cache of the batch that differs.
        self._scale: float | None = None  # Of the gradient of the model's output, in a wrong step.
        self._skipped_batch: int | None = None  # Its tokens differ within the tolerance.

    def judge(self) -> Verdict:
        """Return the verdict."""
        verdict = Verdict(self._layout)
        verdict.notes += self.start.reference.notes
        if self.start.reference.changed is not None:
            verdict.found = replace(self.start.reference.changed)
            return verdict
        found = self.start.align()
        verdict.notes += self.start.notes()
        verdict.not_seen = self.start.not_seen()
        steps, num_alike = self.start.reference.record.steps, self._num_alike()
        initial = None  # Of a program that generates: ranks may split a value, as a bias, by terms.
        if found is not None and steps[0].decoding is not None:
            initial, found = found, None
        for number in range(num_alike):
            if found is None:
                found = self._step(number, verdict)
        if found is None and num_alike < max(map(len, self._every_steps())):
            found = self._unlike_number(num_alike)
        if found is None:
            self._note_cache(verdict)
            if initial is not None:
                verdict.notes.append(
                    f"initial values, without effect on the outputs: {initial.cause}"
                )
        else:
            found = initial or found
            self._complete(found)
            verdict.found = found
        return verdict

    def _step(self, number: int, verdict: Verdict) -> FirstDifference | None:
        """Return the first difference of a step."""
        if self.start.reference.record.steps[number].decoding is not None:
            return self._decoding(number, verdict)
        at = AtStep(self.start, number, self._excluded)
        at.tally = verdict.tally
        is_wrong = at.is_wrong()
        if is_wrong or at.wrong_states():
            found = self._located(at) if is_wrong else parameters.find_state(at)
            found.step = number
            return found
        _add_to(verdict.not_seen, "optimizer_states", at.unlike)
        self._survey(at, verdict)
        if not at.is_loss_right(strict=False) and at.losses() and not number:
            losses = at.losses().values()
            text = f"those of ranks add up to {sum(losses):.6g}, weighted in their own way"
            verdict.not_seen["loss_values"] = [text]
        if at.num_summed and not number:
            verdict.notes.append(_SUMMED.format(at.num_summed))
        return None

    def _decoding(self, number: int, verdict: Verdict) -> FirstDifference | None:
        """Return the first difference of a decoding step.

        An output that is a partial sum, and a cache that differs, are differences once the next
        step uses them wrongly.
        """
        at = AtStep(self.start, number, self._excluded)
        at.tally = verdict.tally
        search = DecodingSearch(at)
        assert at.single.decoding is not None
        if not at.single.decoding.number:
            self._note_cache(verdict)
        if at.single.decoding.batch == self._skipped_batch:
            return None
        found = search.first(has_wrong_cache=self._cache is not None)
        if found is None:
            self._survey(at, verdict)
            self._partial = search.partial_output()
            self._cache = self._cache or search.cache()
            for each in (self._partial, self._cache):
                if each is not None and each.decoding is None:
                    each.step, each.decoding = number, at.single.decoding
            return None
        found.step, found.decoding = number, at.single.decoding
        tie = search.near_tie()
        if tie:
            self._skipped_batch, step = at.single.decoding
            words = f"batch {self._skipped_batch} is not compared from decoding step {step} on"
            verdict.notes.append(f"{words}: {tie}")
            return None
        if found.module != GENERATE:
            return found if self._cache is None else _of_cache(self._cache, found)
        if self._partial is not None:
            return self._partial  # The next step used it as a whole.
        if search.culprit is not None and self._runner is not None:
            place = self._runner.origin(self._layout, found.ranks[0], number, search.culprit)
            found.place = place or found.place
        return found

    def _note_cache(self, verdict: Verdict) -> None:
        """Note a cache of the batch that differed, and of which no later step shows anything."""
        if self._cache is not None:
            text = f"{self._cache.cause}, without effect on the outputs"
            verdict.notes.append(text)
        self._cache = None

    def _every_steps(self) -> list[list[Step]]:
        return [self.start.reference.record.steps, *(each.steps for each in self.start.ranks)]

    def _num_alike(self) -> int:
        """Return the number of steps that all have alike: batches may have other decoding steps."""
        count = 0
        for steps in zip(*self._every_steps(), strict=False):
            if len({step.decoding for step in steps}) > 1:
                break
            count += 1
        return count

    def _unlike_number(self, number: int) -> FirstDifference:
        """Return that ranks call the model more often, or less often, than the single program."""
        steps = self.start.reference.record.steps
        last = steps[min(number, len(steps)) - 1].decoding
        assert last is not None
        counts = [
            sum(step.decoding is not None and step.decoding.batch == last.batch for step in each)
            for each in self._every_steps()
        ]
        wrong = [rank for rank, count in enumerate(counts[1:]) if count != counts[0]]
        cause = f"the model is called {counts[1 + wrong[0]]} times, and not {counts[0]}"
        axes = varying(self._layout, wrong)
        found = FirstDifference(FORWARD, GENERATE, axes, cause, ranks=wrong, step=number - 1)
        found.decoding = last
        found.place = str(self.start.ranks[wrong[0]].sites.get("", ""))
        return found

    def _located(self, at: AtStep) -> FirstDifference:
        """Return the first difference of a step that is wrong."""
        search = Search(at)
        found = search.tensors()
        self._scale = search.scale()
        found = found or gradients.find_gradients(at, search, self._runner)
        found = found or self._wrong_loss(at) or parameters.find_step(at)
        found = found or parameters.find_buffer(at)
        found = found or FirstDifference(
            STEP, WHOLE, (), "what training has after the step differs"
        )
        if found.direction == BACKWARD:
            found.compared = search.compared_before_backward()
        stages = at.comparison.stage_axes
        if MICRO_BATCHES in found.axes and stages:  # Those of a pipeline are its schedule's.
            axes = [*(axis for axis in found.axes if axis != MICRO_BATCHES), *stages]
            found.axes = tuple(dict.fromkeys(axes))
        elif self._runner is not None and _is_of_micro_batches(found):
            self._tell_micro_batches(found, self._runner)
        return found

    def _tell_micro_batches(self, found: FirstDifference, runner: Runner) -> None:
        """Name the axes without which all micro-batches count alike, or else the micro-batches."""
        axes = [axis for axis, size in self._layout.axes.items() if size > 1]
        left = tuple(axis for axis in axes if self._counts_alike_without(axis, runner))
        if left and MICRO_BATCHES in found.axes:  # Rows are left out, but by the wrong ranks.
            found.cause = re.sub(rf": {gradients.LEFT_OUT} ranks? [-\d, ]+", "", found.cause)
        found.axes = left or (MICRO_BATCHES,)

    @staticmethod
    def _wrong_loss(at: AtStep) -> FirstDifference | None:
        if at.is_loss_right(strict=True) or at.single.loss is None:
            return None
        losses, want = at.losses(), at.single.loss.item()
        apart = at.axes_of_losses()
        if apart:
            cause = f"ranks of {'/'.join(apart)} have the same rows and different losses"
            error = (max(losses.values()) - min(losses.values())) / (abs(want) or 1.0)
            return FirstDifference(LOSS, LOSS_MODULE, apart, cause, error, sorted(losses))
        got = next(iter(losses.values()))
        axes = tuple(at.comparison.data_axes) or tuple(at.layout.axes)
        cause = f"the loss is {got:.6g} and not {want:.6g}, {got / (want or 1.0):.4g} of it"
        known = factor_of(at.layout, got / (want or 1.0), at.num_calls)
        if known is not None and MICRO_BATCHES in known[0]:
            axes, cause = known[0], f"{cause}: {known[1]}"
        error = abs(got - want) / (abs(want) or 1.0)
        return FirstDifference(LOSS, LOSS_MODULE, axes, cause, error, sorted(losses))

    @staticmethod
    def _survey(at: AtStep, verdict: Verdict) -> None:
        """Count the tensors of the forward of a right step, and those that were not aligned."""
        for spot, call in at.single.order:
            if at.is_excluded(spot.module):
                continue
            compared = at.comparison.compare(VALUES, spot, call)
            name = spot.module or MODEL
            if compared.status in (RIGHT, SUMMAND):
                at.tally.add(name, compared.share)
            elif compared.status != ABSENT and not at.number:
                index = f" {spot.index}" if spot.index else ""
                text = f"{name}: {spot.side}{index}"
                if text not in verdict.unaligned:
                    verdict.unaligned.append(text)
                at.tally.shares.setdefault(name, None)
        verdict.unaligned += [text for text in at.unaligned if text not in verdict.unaligned]

    def _complete(self, found: FirstDifference) -> None:
        """Name the axes where the records do not tell: without them there is no difference."""
        axes = [axis for axis, size in self._layout.axes.items() if size > 1]
        padded = self._padded(found)
        if padded is not None:
            found.axes, found.cause = padded
        elif self._runner is not None:
            self._locate(found, self._runner)
        if len(axes) == 1 and MICRO_BATCHES not in found.axes:
            found.axes = found.axes or tuple(axes)
        elif len(found.axes) != 1 and self._runner is not None:
            equal = {axis: self._is_equal_without(axis, self._runner) for axis in axes}
            left = [axis for axis, is_equal in equal.items() if is_equal]
            if not left and MICRO_BATCHES in found.cause:
                left = [axis for axis in found.axes if equal.get(axis) is not False]
            gone = {*axes, *found.axes} - {*left} if left else ()
            found.axes = tuple(left) or found.axes
            for axis in gone:
                words = rf"the (size of {axis}|number of {axis}, \d+)(?!\w)"
                found.cause = re.sub(f"{words} or | or {words}", "", found.cause)

    def _padded(self, found: FirstDifference) -> tuple[tuple[str, ...], str] | None:
        """Return that padding of a parameter takes part in the loss, as of a vocabulary."""
        start, steps = self.start, [record.steps for record in self.start.ranks]
        if found.direction not in (LOSS, BACKWARD):
            return None
        for name in start.held_names():
            if found.module not in (module_of(name), MODEL, LOSS_MODULE):
                continue
            rows: dict[int, int] = {}
            for rank, places in enumerate(start.places):
                gradient = steps[rank][found.step].parameter_gradients.get(name)
                is_padding = places[name] < 0 if name in places else None
                if gradient is None or is_padding is None or not bool(is_padding.any()):
                    continue
                if gradient.value.shape == is_padding.shape and gradient.value[is_padding].any():
                    rows[rank] = int(is_padding.flatten(1).all(1).sum())
            if rows:
                cause = (
                    f"{sum(rows.values())} rows of {name} are padding, and they get a gradient: "
                    "what they give takes part in the loss, unmasked"
                )
                return start.split_axes(name) or found.axes, cause
        return None

    def _locate(self, found: FirstDifference, runner: Runner) -> None:
        """Name the operation that a difference began with, where nothing simple explains it."""
        is_open = any(words in found.cause for words in UNEXPLAINED)
        name = "" if found.module == MODEL else found.module
        # Where a cause is known, but no line of the module.
        is_without_line = found.decoding is not None and found.place in {
            str(record.homes.get(name)) for record in self.start.ranks
        }
        is_exact = not self.start.reference.record.tolerance
        is_asked = is_exact and (is_open or is_without_line)
        if not is_asked or found.direction not in _KINDS or not found.ranks:
            return
        ranks, step, kinds = found.ranks, found.step, _KINDS[found.direction]
        parts = MicroBatches(AtStep(self.start, step).num_calls, self._scale)
        try:
            begin = runner.begin(self._layout, ranks, name, step, kinds, parts)
            while is_open and begin is not None and begin.is_before and name:
                name = self.start.reference.record.parent(name)
                before = runner.begin(self._layout, ranks, name, step, kinds, parts)
                if before is None:
                    break
                begin, found.module = before, name or MODEL
        except SimrankError as error:  # What is found stands.
            text = str(error).partition("\n")[0]
            found.cause += f" (its operations could not be recorded: {text})"
            return
        if not is_open:
            is_within = begin is not None and not begin.is_before
            found.place = begin.place if begin is not None and is_within else found.place
        elif begin is not None and begin.times:
            known = factor_of(self._layout, begin.times, parts.number)
            assert known is not None, "it is one of those"
            found.place, found.axes = begin.place, known[0]
            found.cause = f"{begin.text} is of a loss beside the main one, {known[1]}"
        elif begin is not None:
            found.place = begin.place
            found.cause += f": {begin.text} is the first that the single program does not have"

    def _is_equal_without(self, axis: str, runner: Runner) -> bool | None:
        """Return whether the layout with one rank along an axis equals the single program.

        None where the program needs the axis.
        """
        verdict = self._without(axis, runner, None)
        return None if verdict is None else verdict.found is None

    def _counts_alike_without(self, axis: str, runner: Runner) -> bool:
        verdict = self._without(axis, runner, runner)
        return verdict is not None and not _is_of_micro_batches(verdict.found)

    def _without(self, axis: str, runner: Runner, finder: Runner | None) -> Verdict | None:
        """Return the verdict on the layout with one rank along an axis; None: it cannot run."""
        smaller = replace(self._layout, axes={**self._layout.axes, axis: 1})
        try:
            ranks = runner.layout(smaller).ranks
        except SimrankError:
            return None
        return Judge(self.start.reference, ranks, smaller, finder, self._excluded).judge()


def _add_to(not_seen: dict[str, list[str]], kind: str, names: Iterable[str]) -> None:
    """Add names to those of a kind, each once."""
    every = dict.fromkeys([*not_seen.get(kind, ()), *names])
    if every:
        not_seen[kind] = list(every)


def _is_of_micro_batches(found: FirstDifference | None) -> bool:
    """Return whether micro-batches count differently, or some rows not at all."""
    words = gradients.UNALIKE, gradients.LEFT_OUT
    return found is not None and any(each in found.cause for each in words)


# ---- the types that a program declares: how far a layout's training is from that in float64 ----

_FLOOR = 1 / 8  # Of the rounding error of the parameters' type; assumed.
_FACTOR = 8  # As above.
_TYPE_KINDS = {STEP_GRADIENTS: "gradients", PARAMETERS: "parameters after the step"}


@dataclass(frozen=True)
class OwnTypes:
    """A program in its own types.

    Attributes:
        single: The single program.
        ranks: Those of the layout.
    """

    single: Record
    ranks: Sequence[Record]

    def judge(self, exact: Start, excluded: Sequence[str]) -> tuple[FirstDifference | None, str]:
        """Return the tensors that are too far from float64, if any, and a line with the distance.

        Args:
            exact: The layout in float64, whose parameters are aligned.
            excluded: Modules that are not compared.
        """
        record = exact.reference.record
        reference = Reference(record, [errors_of(record, self.single)])
        start = Start(reference, self.ranks, exact.layout)
        start.places = exact.places
        worst, found = 0.0, None
        for number in range(len(self.single.steps)):
            at = AtStep(start, number, excluded)
            at.comparison.epsilon = self._epsilon() * _FLOOR
            for kind in _TYPE_KINDS:
                wrong = at.wrong_parameters(kind)
                if wrong and found is None:
                    found = replace(self._found(at, kind, wrong), step=number)
            worst = max(worst, at.tally.worst)
        line = f"in {self._types()}: errors up to {_FACTOR * worst:.2g} times the single program's"
        return found, line

    def _found(self, at: AtStep, kind: str, wrong: Sequence[Wrong]) -> FirstDifference:
        names = list(dict.fromkeys(each.name for each in wrong))
        every = at.start.held_names()
        most = max(_FACTOR * each.error / each.tolerance for each in wrong)
        ranks = sorted({each.rank for each in wrong})
        layout = at.layout
        axes = varying(layout, ranks) or tuple(a for a, size in layout.axes.items() if size > 1)
        cause = (
            f"{_TYPE_KINDS[kind]} are up to {most:.2g} times as far from float64 as those of the "
            f"single program in the same types: {names_text(names, every)}"
        )
        error = max(each.relative_error for each in wrong)
        return FirstDifference(PRECISION, modules_text(names, every), axes, cause, error, ranks)

    def _epsilon(self) -> float:
        every = [each.value.dtype for each in self.single.initial.values()]
        return max(torch.finfo(dtype).eps for dtype in every if dtype.is_floating_point)

    def _types(self) -> str:
        """Return the types of what passes modules on ranks, the narrowest first."""
        kinds = {
            each.value.dtype
            for record in self.ranks
            for calls in record.steps[0].values.values()
            for each in calls
            if each.value.is_floating_point()
        }
        names = sorted(kinds, key=lambda dtype: (dtype.itemsize, str(dtype)))
        return ", ".join(str(dtype).removeprefix("torch.") for dtype in names)


# ---- checks of layouts, one by one: each is run and judged ----

_MISSING_AXIS = "Invalid mesh_dim_name"  # Of torch's error.
_OFF = "dropout is off (p = 0), other random numbers are constants: they could not be aligned"
_FALLBACK = "float32"
# Of errors of programs whose tensors lie on the CPU.
_ON_CPU = (
    "on the same device",
    "nccl does not reach",
    "tensors lie on different devices",
    "Inconsistent compute device",
    "device type for generator",
)
_TO_FIX_DEVICE = "to fix: make tensors on the device of the model and the batch, or --device cpu"


@dataclass(frozen=True)
class LayoutChecks:
    """The layouts of a program; can be sent to other processes.

    Attributes:
        options: How the program is run.
        layouts: The layouts.
        folder: Where the single program's records lie, by precision.
    """

    options: RunOptions
    layouts: Sequence[Layout]
    folder: Path

    def __call__(self, index: int) -> Verdict:
        """Run and judge a layout."""
        use_one_heap()
        with ALONE:
            return self._verdict(self.layouts[index])

    def _verdict(self, layout: Layout) -> Verdict:
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

    def arranged(self, single: Record) -> LayoutChecks:
        """Return the checks of the same layouts, with their axes in the program's order."""
        order, shared = single.axes, single.shared_axes
        return replace(self, layouts=[each.arranged(order, shared) for each in self.layouts])

    def _judged(self, options: RunOptions, layout: Layout) -> Verdict:
        reference = self.reference(options)
        runner = Runner(options, reference)
        run = runner.layout(layout)
        release_free_memory()  # Of the ranks' devices.
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
        verdict.notes += [
            f"{why}: {name} is private (--private {name}: from the first run on)"
            for name, why in options.private.items()
            if why
        ]
        if verdict.found is None and options.also_declared:
            try:
                self._judge_own_types(options, judge.start, run.names, verdict)
            except SimrankError as error:
                verdict.found = failed(error)
                verdict.found.cause = f"in its own types: {verdict.found.cause}"
        return verdict

    def _judge_own_types(
        self, options: RunOptions, exact: Start, names: Mapping[int, Names], verdict: Verdict
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

    def reference(self, options: RunOptions) -> Reference:
        """Return the record of the single program, which is run once for all layouts."""
        name = f"{options.dtype_name}-{options.device_type}"
        path = self.folder / (name + ("" if options.has_dropout else "-p0"))
        if not path.exists():
            made = path.with_name(f"{path.name}.{os.getpid()}")
            file = TensorFile(made.with_suffix(".tensors"))
            write_record(self._run_single(options, file), made)
            release_free_memory()
            made.with_suffix(".data").replace(path.with_suffix(".data"))
            made.replace(path)
        found: Reference = read_record(path)
        return found

    def _run_single(self, options: RunOptions, file: TensorFile) -> Reference:
        if options.dtype_name != DECLARED:
            return run_single(options, file=file)
        exact = self.reference(replace(options, dtype_name=EXACT)).record
        return run_single(options, num_noisy=0, initial=exact.initial, file=file)


def prepared(
    options: RunOptions, layouts: Sequence[Layout], folder: Path
) -> tuple[LayoutChecks, list[str]]:
    """Run the single program, in the precision and on the device that it allows.

    Returns:
        The checks, and what is to be said of precision and device.

    Raises:
        SimrankError: The single program fails.
    """
    use_one_heap()
    checks = LayoutChecks(options, layouts, folder)
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


def _of_cache(cache: FirstDifference, found: FirstDifference) -> FirstDifference:
    """Return the difference of a cache, at the module that has read it in a later step."""
    assert found.decoding is not None
    cause = f"{cache.cause}; decoding step {found.decoding.number} reads it here"
    return replace(cache, module=found.module, place=found.place, cause=cause, calls=found.calls)


def _other(options: RunOptions, error: SimrankError) -> tuple[RunOptions, str] | None:
    """Return options with which a program that failed may run, and words for them."""
    if options.device is None and _is_of_cpu(error):
        return replace(options, device=CPU), "computed on the CPU, with gloo: on cuda"
    if options.has_gradient and NoGradientError.__name__ in str(error):
        return replace(options, has_gradient=False), "compared forward only"
    if options.dtype_name == EXACT and isinstance(error, ProcessException):  # Perhaps by float64.
        return replace(options, dtype_name=_FALLBACK), f"computed in {_FALLBACK}: in {EXACT}"
    return None


def _is_of_cpu(error: SimrankError) -> bool:
    """Return whether a program has tensors of its own on the CPU."""
    return any(words in str(error) for words in _ON_CPU)


def failed(error: SimrankError) -> FirstDifference:
    """Return that a layout did not run to its end."""
    text = str(error)
    if _MISSING_AXIS in text:
        text += "\nto fix: give the layout each axis that the program asks for, if of size 1"
    if _is_of_cpu(error):
        text += f"\n{_TO_FIX_DEVICE}"
    if isinstance(error, SpawnException):
        ranks = sorted(error.errors)
        cause = error.errors[ranks[0]]
        return FirstDifference(RUN, WHOLE, (), _line(cause), ranks=ranks, report=text)
    ranks = sorted({r for wait in getattr(error, "waits", ()) for r in wait.ranks if r >= 0})
    name = type(error).__name__ if isinstance(error, SimulationError) else "error"
    return FirstDifference(RUN, WHOLE, (), f"{name}: {_reason(error)}", ranks=ranks, report=text)


def _are_masks_aligned(ranks: Sequence[Record]) -> bool:
    """Return whether every dropout of the ranks has the single program's mask."""
    return all(
        dropped.is_aligned
        for record in ranks
        for step in record.steps
        for calls in step.dropped.values()
        for dropped in calls
    )


def _raced(races: Sequence[str]) -> FirstDifference:
    """Return that right numbers are so by chance."""
    cause = f"numbers are right, but nothing orders them: {_first_line(races[0])}"
    return FirstDifference(RACE, WHOLE, (), cause, report="\n".join(races))


def _first_line(text: str) -> str:
    return next((line for line in text.splitlines() if line.strip()), "")


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def _reason(error: SimrankError) -> str:
    """Return the first line of what went wrong."""
    if isinstance(error, SpawnException):
        return _line(next(iter(error.errors.values())))
    return _first_line(str(error)) or type(error).__name__
