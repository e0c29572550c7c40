"""`simrank calibrate`: fit constants of NCCL's laws to measured times of one cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from simrank.calibration.accuracy import DIRECT, mean_errors
from simrank.calibration.hold_outs import left_out, observed_of
from simrank.calibration.pool_fit import fit_site
from simrank.collectives.nccl.evidence import shipped_pool
from simrank.collectives.nccl.laws import CONSTANTS, Calibration
from simrank.collectives.nccl.pool import FIT, NORMAL_90, UNKNOWN, Constants
from simrank.collectives.nccl.size_classes import ENDS_BYTES
from simrank.units import format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from simrank.calibration.accuracy import SeriesErrors, TableSeries
    from simrank.calibration.pool_fit import Observed, SiteFit
    from simrank.collectives.nccl.laws import Floats

_DIGITS = 4
_MIDDLES = (1 << 12, 1 << 18, 1 << 23, 1 << 29)  # Bytes, in the middle of each class of size.
# Standard deviations from which on measured times are doubted; a single one: from twice as many.
# Assumed; no shipped table is doubted.
_DOUBTFUL = 4.0


@dataclass(frozen=True, slots=True)
class Calibrated:
    """Fitted constants and residual errors.

    Attributes:
        calibration: The constants.
        errors: What is left of each series.
        data: The content of the file.
        doubts: Of each series, why it may be of another machine or in another unit, or None.
        intervals: [series, 4] Half-width of the 90 % interval of a prediction with the constants,
            at a size in the middle of each class of size, as a share of the time.
        measured: [series, 4] Whether a size of the class was measured.
    """

    calibration: Calibration
    errors: tuple[SeriesErrors, ...]
    data: dict[str, Any]
    doubts: tuple[str | None, ...]
    intervals: Floats
    measured: npt.NDArray[np.bool_]

    def text(self) -> str:
        """Return the text of the file."""
        head = "# yaml-language-server: $schema=../schemas/calibration.schema.json\n"
        return head + yaml.safe_dump(self.data, sort_keys=False, default_flow_style=None, width=100)


def calibrate(series: Sequence[TableSeries], *, library: str = "unknown") -> Calibrated:
    """Fit the constants to measured times, starting from the pooled ones.

    One small size is enough: what the times do not tell stays pooled, and as uncertain as at an
    unknown site.

    Args:
        series: What was measured, of one cluster, back to back.
        library: NCCL or RCCL with its version.

    Raises:
        ValueError: The series are of several clusters, of loops of a framework, or there is none.
    """
    clusters = sorted({each.cluster for each in series})
    if len(clusters) != 1:
        raise ValueError(f"expected measured times of one cluster, got {clusters or 'none'}")
    loops = sorted({each.mode for each in series} - {DIRECT})
    if loops:
        raise ValueError(f"expected back-to-back calls, got loops of {', '.join(loops)}")
    observed = [observed_of(each) for each in series]
    names = {each.labels.network for each in observed} - {None, UNKNOWN}
    networks = {"network": names.pop()} if len(names) == 1 else {}
    fitted = fit_site(shipped_pool(), observed)
    found = _rounded(fitted.calibration)
    errors = tuple(each.errors(found) for each in series)
    tables = sorted({each.table for each in series})
    lower = fitted.covariance[np.tril_indices(len(CONSTANTS))]
    data = {
        "cluster": clusters[0],
        "platform": observed[0].labels.platform,
        **networks,
        "source": f"fitted to {', '.join(tables)}",
        "library": library,
        "takes_fastest": found.takes_fastest,
        "constants": {name: getattr(found, name) for name in CONSTANTS},
        "covariance": [float(f"{each:.{_DIGITS}g}") for each in lower],
        "fitted": [_shape_of(each) for each in errors],
        "residuals": _residuals(errors, np.expm1(NORMAL_90 * fitted.noises)),
    }
    return Calibrated(
        found,
        errors,
        data,
        tuple(map(doubt, observed)),
        np.array([_interval(each, found, fitted) for each in observed]),
        np.array([np.isin(range(len(_MIDDLES)), each.classes) for each in observed]),
    )


def _interval(observed: Observed, found: Calibration, fitted: SiteFit) -> Floats:
    """Return the half-widths [4] of a series' 90 % intervals in the middle of each class."""
    middle = observed._replace(size_bytes=np.array(_MIDDLES))
    constants = Constants(found, {FIT: fitted.covariance}, fitted.noises)
    return constants.half_widths(middle.work(found), np.arange(len(_MIDDLES)))


def doubt(observed: Observed) -> str | None:
    """Return why a series may be of another machine or in another unit, or None.

    Its median time is outside of what is predicted for such a machine by far, or a single one is.
    """
    left = left_out(observed, shipped_pool())
    sigmas = np.sqrt(left.variance + shipped_pool().noises[left.kind][observed.classes] ** 2)
    distances = left.errors / sigmas
    worst = int(np.argmax(np.abs(distances)))
    if max(abs(float(np.median(distances))), abs(distances[worst]) / 2) < _DOUBTFUL:
        return None
    size, time_us = int(observed.size_bytes[worst]), float(observed.time_us[worst])
    expected_us = time_us * float(np.exp(left.errors[worst]))
    return (
        f"{observed.labels.series}: {format_size(size)} took {time_us:.6g} us; predicted for "
        f"{observed.device} are {expected_us:.4g} us: check the cluster, the unit and the row"
    )


def _shape_of(errors: SeriesErrors) -> dict[str, Any]:
    return {
        "collective": errors.collective,
        "num_ranks": errors.num_ranks,
        "num_nodes": errors.num_nodes,
    }


def _rounded(calibration: Calibration) -> Calibration:
    """Return a number rounded for a file."""
    numbers = {name: float(f"{getattr(calibration, name):.{_DIGITS}g}") for name in CONSTANTS}
    return Calibration(takes_fastest=calibration.takes_fastest, **numbers)


def _residuals(errors: Sequence[SeriesErrors], widths: Floats) -> list[dict[str, Any]]:
    """Return the residual errors per size class, and the interval that they leave."""
    rows = []
    for number, (mean, width) in enumerate(zip(mean_errors(errors), widths, strict=True)):
        row: dict[str, Any] = {}
        if number < len(ENDS_BYTES):
            row["up_to"] = format_size(ENDS_BYTES[number])
        if mean is not None:
            row["error_pct"] = _percent(mean[0])
        row["interval_pct"] = _percent(float(width))
        rows.append(row)
    return rows


def _percent(share: float) -> float:
    return max(float(f"{100 * share:.3g}"), 0.1)
