"""`simrank calibrate`: fit constants of NCCL's laws to measured times of one cluster."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from simrank.bench.accuracy import mean_errors
from simrank.bench.predict import UNCALIBRATED_SPREAD
from simrank.bench.size_classes import ENDS_BYTES
from simrank.collectives.nccl.fitting import NAMES, fit
from simrank.collectives.nccl.laws import UNCALIBRATED, Calibration
from simrank.units import format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simrank.bench.accuracy import SeriesErrors, TableSeries

_DIGITS = 4
_NINE_OF_TEN = 90
_MIN_SEEN = 4  # Assumed: fewer sizes do not say how far a class is to be trusted.


@dataclass(frozen=True, slots=True)
class Calibrated:
    """Fitted constants and residual errors.

    Attributes:
        calibration: The constants.
        errors: What is left of each series.
        data: The content of the file.
    """

    calibration: Calibration
    errors: tuple[SeriesErrors, ...]
    data: dict[str, Any]

    def text(self) -> str:
        """Return the text of the file."""
        head = "# yaml-language-server: $schema=../schemas/calibration.schema.json\n"
        return head + yaml.safe_dump(self.data, sort_keys=False, allow_unicode=False, width=100)


def calibrate(
    series: Sequence[TableSeries],
    *,
    library: str = "unknown",
    only: Sequence[str] = NAMES,
    start: Calibration = UNCALIBRATED,
    spread: Sequence[float] = UNCALIBRATED_SPREAD,
) -> Calibrated:
    """Fit the constants to measured times.

    Args:
        series: What was measured, of one cluster, back to back.
        library: NCCL or RCCL with its version.
        only: The constants that may change.
        start: What the others are, and where the fit's prior lies.
        spread: How uncertain a class of size is of which few sizes were measured.

    Raises:
        ValueError: The series are of several clusters, of loops of a framework, or there is none.
    """
    clusters = sorted({each.cluster for each in series})
    if len(clusters) != 1:
        raise ValueError(f"expected measured times of one cluster, got {clusters or 'none'}")
    loops = sorted({each.mode for each in series} - {"back_to_back"})
    if loops:
        raise ValueError(f"expected back-to-back calls, got loops of {', '.join(loops)}")
    begun = [each.measured for each in series]
    begun = [each._replace(comm=replace(each.comm, calibration=start)) for each in begun]
    found = _rounded(fit(begun, only).calibration)
    errors = tuple(each.errors(found) for each in series)
    tables = sorted({each.table for each in series})
    data = {
        "cluster": clusters[0],
        "source": f"fitted to {', '.join(tables)}",
        "library": library,
        "takes_fastest": found.takes_fastest,
        "constants": {
            name: getattr(found, name)
            for name in NAMES
            if getattr(found, name) != getattr(UNCALIBRATED, name)
        },
        "fitted": [_shape_of(each) for each in errors],
        "residuals": _residuals(errors, spread),
    }
    return Calibrated(found, errors, data)


def _shape_of(errors: SeriesErrors) -> dict[str, Any]:
    return {
        "collective": errors.collective,
        "num_ranks": errors.num_ranks,
        "num_nodes": errors.num_nodes,
    }


def _rounded(calibration: Calibration) -> Calibration:
    """Return a number rounded for a file."""
    numbers = {name: float(f"{getattr(calibration, name):.{_DIGITS}g}") for name in NAMES}
    return Calibration(takes_fastest=calibration.takes_fastest, **numbers)


def _residuals(errors: Sequence[SeriesErrors], spread: Sequence[float]) -> list[dict[str, Any]]:
    """Return the residual errors per size class, and their uncertainty."""
    means = mean_errors(errors)
    ratios = np.concatenate([each.predicted_us / each.measured_us for each in errors])
    shares = np.maximum(ratios, 1 / ratios) - 1
    classes = np.searchsorted(ENDS_BYTES, np.concatenate([each.size_bytes for each in errors]))
    rows = []
    for number, mean in enumerate(means):
        row: dict[str, Any] = {}
        if number < len(ENDS_BYTES):
            row["up_to"] = format_size(ENDS_BYTES[number])
        within, seen = spread[number], shares[classes == number]
        if mean is not None:
            row["error_pct"] = _percent(mean[0])
        if len(seen) >= _MIN_SEEN:
            within = float(np.percentile(seen, _NINE_OF_TEN, method="higher"))
        row["interval_pct"] = _percent(within)
        rows.append(row)
    return rows


def _percent(share: float) -> float:
    return max(float(f"{100 * share:.3g}"), 0.1)
