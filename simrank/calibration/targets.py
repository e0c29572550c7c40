"""Mean errors and their targets, with the causes of missed ones; start with `groups`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from simrank.calibration.accuracy import AIMED, DIRECT, PARTS, mean_errors
from simrank.calibration.cross_validation import FITS
from simrank.collectives.nccl.size_classes import NAMES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from simrank.calibration.accuracy import SeriesErrors

_MOST_NAMED = 2  # Series that a missed aim names.


class TargetGroup(NamedTuple):
    """Series with a common mean error.

    Attributes:
        title: What they have in common.
        series: Their errors; one entry per series, or per pair of a fitted and a tried one.
        aims_pct: The target by class of size; None: no target.
    """

    title: str
    series: list[SeriesErrors]
    aims_pct: tuple[float, ...] | None = None

    @property
    def means(self) -> list[tuple[float, float] | None]:
        """The means of absolute and of signed errors of each class of size, as shares."""
        return mean_errors(self.series)

    def missed(self) -> list[Missed]:
        """Return the aims that the means do not reach, in order of size."""
        return [
            Missed.of(self, number, 100 * mean[0], aim)
            for number, (mean, aim) in enumerate(zip(self.means, self.aims_pct or (), strict=False))
            if mean is not None and 100 * mean[0] > aim
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the means, targets and causes as plain data."""
        return {
            "title": self.title,
            "num_series": len(self.series),
            "size_classes": list(NAMES),
            "error_pct": [mean and 100 * mean[0] for mean in self.means],
            "signed_error_pct": [mean and 100 * mean[1] for mean in self.means],
            "aims_pct": self.aims_pct and list(self.aims_pct),
            "missed": [each.to_json() for each in self.missed()],
        }


def groups(fit: str, found: Sequence[SeriesErrors]) -> list[TargetGroup]:
    """Return the series of one kind of fit in groups; none is empty.

    Loops of frameworks are apart, for their times have the framework's in them.

    Args:
        fit: A name of `FITS`.
        found: What is left of each series.
    """
    aims = FITS[fit].aims_pct
    direct = [each for each in found if each.mode == DIRECT]
    aimed = [each for each in direct if each.collective in AIMED]
    unknown = [each for each in aimed if fit == "none" and not each.is_rate_known]
    known = [each for each in aimed if fit != "none" or each.is_rate_known]
    title = ", ".join(AIMED[fit == "collective" :])
    rate = "; NIC rate known" if fit == "none" else ""
    every = [
        TargetGroup(title + rate, known, aims),
        TargetGroup(f"{title}; NIC rate assumed", unknown),
        TargetGroup("other collectives", [each for each in direct if each.collective not in AIMED]),
        TargetGroup("loops of torch and XLA", [each for each in found if each.mode != DIRECT]),
    ]
    return [group for group in every if group.series]


@dataclass(frozen=True, slots=True)
class Culprit:
    """A series that carries much of an error.

    Attributes:
        series: Its predictions.
        error_pct: Its mean error in the class of sizes.
        signed_pct: The same with its sign: negative is too fast.
        choice: The algorithm and protocol that most of these sizes take.
        term: The part of the law that is the largest there: one of `PARTS`.
        share_pct: How much of the predicted time it is.
        factor: Times this it would make up for the error; None: it cannot.
    """

    series: SeriesErrors
    error_pct: float
    signed_pct: float
    choice: tuple[str, str]
    term: str
    share_pct: float
    factor: float | None

    @classmethod
    def of(cls, series: SeriesErrors, number: int) -> Culprit:
        """Return the errors of a series in one of its size classes."""
        mine = series.in_class(number)
        parts, error = series.parts_us[:, mine], series.error[mine]
        shares = (parts / series.predicted_us[mine]).mean(axis=1)
        index = int(shares.argmax())
        left = series.measured_us[mine] - series.predicted_us[mine]
        factor = float(np.median(1 + left / parts[index]))
        chosen = [choice for choice, is_mine in zip(series.chosen, mine, strict=True) if is_mine]
        return cls(
            series,
            100 * float(np.abs(error).mean()),
            100 * float(error.mean()),
            Counter(chosen).most_common(1)[0][0],
            PARTS[index],
            100 * float(shares[index]),
            factor if factor > 0 else None,
        )

    def text(self) -> str:
        """Return the text."""
        of = self.series
        name = f"{of.fitted_to} -> {of.table}" if of.fitted_to not in ("", of.table) else of.table
        if -self.signed_pct > self.error_pct / 2:
            sign = "too fast"
        else:
            sign = "too slow" if self.signed_pct > self.error_pct / 2 else "of both signs"
        fitting = "" if self.factor is None else f" ({self.term} x {self.factor:.2g} fits)"
        return (
            f"{name} ({of.collective}, {of.num_ranks} ranks) {self.error_pct:.0f} % {sign}: "
            f"{' '.join(self.choice)}, {self.share_pct:.0f} % of it {self.term}{fitting}"
            + (f" ({of.remark})" if of.remark else "")
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "table": self.series.table,
            "fitted_to": self.series.fitted_to or None,
            "collective": self.series.collective,
            "num_ranks": self.series.num_ranks,
            "error_pct": self.error_pct,
            "signed_error_pct": self.signed_pct,
            "algorithm": self.choice[0],
            "protocol": self.choice[1],
            "term": self.term,
            "share_pct": self.share_pct,
            "factor": self.factor,
        }


@dataclass(frozen=True, slots=True)
class Missed:
    """An aim that a mean does not reach.

    Attributes:
        size_class: One of `size_classes.NAMES`.
        error_pct: The mean error.
        aim_pct: The aim.
        num_series: Of how many it is the mean.
        culprits: The series with the largest errors: as many as make the difference, at most two.
        without_pct: The mean without these; None: there are no others.
    """

    size_class: str
    error_pct: float
    aim_pct: float
    num_series: int
    culprits: tuple[Culprit, ...]
    without_pct: float | None

    @classmethod
    def of(cls, group: TargetGroup, number: int, error_pct: float, aim_pct: float) -> Missed:
        """Find the series with the largest share of a size class's error."""
        found = [Culprit.of(s, number) for s in group.series if s.in_class(number).any()]
        found.sort(key=lambda each: -each.error_pct)
        errors = [each.error_pct for each in found]
        num_named = next(
            n for n in range(1, len(errors) + 1) if n in (_MOST_NAMED, len(errors))
            or float(np.mean(errors[n:])) <= aim_pct
        )  # fmt: skip
        without = float(np.mean(errors[num_named:])) if errors[num_named:] else None
        named = tuple(found[:num_named])
        return cls(NAMES[number], error_pct, aim_pct, len(found), named, without)

    def lines(self) -> Iterable[str]:
        """Yield the lines: figures, then the series that carry the error."""
        head = f"{self.size_class}: {self.error_pct:.1f} %, target {self.aim_pct:.0f} %"
        if self.without_pct is not None:
            without = f"without {len(self.culprits)} of {self.num_series} series"
            head += f"; {self.without_pct:.1f} % {without}:"
        yield head
        yield from (each.text() for each in self.culprits)

    def to_json(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "size_class": self.size_class,
            "error_pct": self.error_pct,
            "aim_pct": self.aim_pct,
            "num_series": self.num_series,
            "without_pct": self.without_pct,
            "carried_by": [each.to_json() for each in self.culprits],
        }
