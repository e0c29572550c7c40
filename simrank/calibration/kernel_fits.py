"""Fits of the laws of products and attention to the measured tables, with their intervals.

A device's rule is fitted to its rows. Its errors are those of cross-validation: each (n, k) pair is
predicted by the rows of the other pairs. A sibling's are those of a device that is predicted by the
rows of another one of its architecture; those without a relative, of a device that is predicted by
constants of all other architectures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from simrank.config.files import write_text
from simrank.config.locate import locate
from simrank.hardware import load_cluster
from simrank.hardware.attention import (
    PHASES,
    AttentionConstants,
    attention_class,
    attention_places,
    attention_us,
    read_attention,
)
from simrank.hardware.gemm_model import NO_RELATIVE, OWN, SIBLING
from simrank.hardware.gemm_rows import (
    ANY,
    ITEMSIZES,
    PEAK_OF,
    TABLE_DTYPES,
    GemmDevice,
    GemmFit,
    Residual,
    RuleConstants,
    covariance,
    interpolate,
    krige_variance,
    load_gemm_rows,
    measured_devices,
    places,
    read_fits,
    read_rows,
    rule_us,
    size_class,
)
from simrank.hardware.roofline import library_product_ps
from simrank.units import PS_PER_US

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from simrank.hardware.gemm_rows import MeasuredDevice

Array = np.ndarray[Any, Any]
Widths = dict[tuple[str, str, str], dict[int, float]]

KINDS = tuple(ITEMSIZES)
# Devices that take each other's rows as siblings.
_ARCHITECTURES = (("b200_sxm", "gb200"), ("b200_sxm", "b300_sxm"), ("gb200", "b300_sxm"))

# XLA's tables of measured devices, and the clusters that have these.
_OTHERS = {"h100": "hgx_h100", "b200": "hgx_b200"}

_START = RuleConstants(0.74, 100.0, 0.27, 0.12, 2.3, 0.9, 0.9, 2.8, 0.3)
_LOWEST = RuleConstants(0.2, 5.0, 0.003, 0.01, 0.5, 0.4, 0.02, 0.1, 0.02)
_HIGHEST = RuleConstants(1.2, 400.0, 4.0, 2.0, 300.0, 1.1, 1.5, 10.0, 2.0)
_OUTLIER = 0.1  # Relative errors beyond it weigh less.
_SMALL = 100  # Rows of a matrix that numpy inverts faster at once than by halves.
_MAX_STEPS = 25
_FIT_EVERY = 3  # One row of how many constants are fitted to, where there are many.
_MANY_ROWS = 1000
_POOLED_EVERY = 10  # Likewise where several devices are fitted together.
_FOLDS = 5  # Of (n, k) pairs, in which a sibling's rows are left out.
# Smallest n and k of the kernels of block-scaled products; what is smaller takes a fallback.
_FALLBACKS = ((1, 1), (64, 128), (128, 128))
_CONFIDENCE_PCT = 90
_SAME_RATIO = 0.2


class ProductTable(NamedTuple):
    """Measured products of one kind on one device.

    Attributes:
        device: What was measured.
        kind: A key of `ITEMSIZES`.
        sizes: Rows of batch, m, n, k.
        times_us: Their times.
    """

    device: MeasuredDevice
    kind: str
    sizes: Array
    times_us: Array

    @property
    def machine(self) -> GemmDevice:
        """Facts of the device, at the peak of the kind."""
        return self.device.machine_in(self.kind)

    def part(self, chosen: Any) -> ProductTable:  # noqa: ANN401 - an index of rows
        """Return some of the rows."""
        return self._replace(sizes=self.sizes[chosen], times_us=self.times_us[chosen])

    def errors(self, fit: GemmFit) -> Array:
        """Return logarithms of measured / ruled times."""
        found: Array = np.log(self.times_us / fit.time_us(self.machine, self.sizes, self.kind))
        return found


class HeldOutRows(NamedTuple):
    """Rows that were predicted without being fitted.

    Attributes:
        device: The device of the rows.
        kind: Their kind of product.
        relation: `own`, `sibling` or `no relative`: which rows predicted them.
        donor: The measured device of these rows; `ANY` without a relative.
        classes: Index in `SIZE_CLASSES` of each.
        logs: Logarithm of measured / predicted time of each.
    """

    device: str
    kind: str
    relation: str
    donor: str
    classes: Array
    logs: Array

    @property
    def key(self) -> tuple[str, str, str]:
        """Kind, relation and device of the interval: each device has its own one."""
        return self.kind, self.relation, self.donor if self.relation == OWN else ANY


def tables(kind: str) -> list[ProductTable]:
    """Return the measured tables of a kind of product."""
    devices = measured_devices()
    return [ProductTable(devices[name], kind, *rows) for name, rows in read_rows(kind).items()]


def fit_constants(given: Sequence[ProductTable]) -> RuleConstants:
    """Return the constants with which the rule is nearest to all rows, to four digits."""
    itemsize = ITEMSIZES[given[0].kind]
    low, high = np.log(np.array(_LOWEST)), np.log(np.array(_HIGHEST))

    def errors(logs: Array) -> Array:
        constants = RuleConstants(*np.exp(np.clip(logs, low, high)))
        ruled = [rule_us(each.machine, each.sizes, itemsize, constants) for each in given]
        measured = [each.times_us for each in given]
        found: Array = np.log(np.concatenate(ruled) / np.concatenate(measured))
        return found

    smallest = min(float(np.percentile(each.times_us, 2)) for each in given)
    start = np.log(np.array(_START._replace(floor_us=smallest)))
    found = np.exp(np.clip(least_squares(errors, start), low, high))
    return RuleConstants(*(float(f"{value:.4g}") for value in found))


def least_squares(errors: Callable[[Array], Array], start: Array) -> Array:
    """Return the logarithms of constants with the least errors; outliers weigh less.

    Source: Levenberg and Marquardt's method, with the weights of a pseudo-Huber loss.
    """

    def cost(found: Array) -> float:
        return float(np.sum(np.sqrt(1 + (found / _OUTLIER) ** 2) - 1))

    logs, damping, found = start, 1.0, errors(start)
    for _ in range(_MAX_STEPS):
        shifts = 1e-3 * np.eye(len(logs))
        slopes = np.stack([(errors(logs + shift) - found) / 1e-3 for shift in shifts], axis=1)
        weighted = slopes / np.sqrt(1 + (found / _OUTLIER) ** 2)[:, None]
        normal = slopes.T @ weighted + damping * np.eye(len(logs))
        step = np.linalg.solve(normal, weighted.T @ found)
        tried = logs - step
        better = errors(tried)
        if cost(better) < cost(found):
            logs, found, damping = tried, better, damping / 3
        else:
            damping *= 4
        if np.abs(step).max() < 1e-4:
            break
    return logs


def fit_table(table: ProductTable) -> GemmFit:
    """Return the fit of one device: constants, best share of the peak, fallback."""
    options = [_fit_above(table, least) for least in _FALLBACKS[: _num_fallbacks(table.kind)]]
    return min(options, key=lambda fit: float(np.abs(table.errors(fit)).mean()))


def _num_fallbacks(kind: str) -> int:
    return len(_FALLBACKS) if kind == "fp8_block" else 1


def _fit_above(table: ProductTable, least: tuple[int, int]) -> GemmFit:
    """Return the fit where products with a smaller n or k take a fallback."""
    flops = 2 * table.sizes.prod(axis=1)
    best = float((flops / (table.times_us * 1e-6)).max() / table.machine.peak_flops)
    plain = GemmFit(_START, round(best, 4), least, 0.0)
    below = plain.falls_back(table.sizes)
    slowest = float(np.median(table.times_us[below])) if below.any() else 0.0
    every = _FIT_EVERY if len(below) > _MANY_ROWS else 1
    constants = fit_constants([table.part(~below).part(slice(None, None, every))])
    return plain._replace(constants=constants, fallback_us=float(f"{slowest:.4g}"))


def fit_pooled(given: Sequence[ProductTable]) -> GemmFit:
    """Return the fit of several devices together, of some of their rows."""
    least = _FALLBACKS[-1] if given[0].kind == "fp8_block" else _FALLBACKS[0]
    plain = GemmFit(_START, 1.0, least, 0.0)
    slow = [each.times_us[plain.falls_back(each.sizes)] for each in given]
    fallback_us = float(f"{np.median(np.concatenate(slow)):.4g}") if slow[0].size else 0.0
    parts = [each.part(~plain.falls_back(each.sizes)) for each in given]
    constants = fit_constants([each.part(slice(None, None, _POOLED_EVERY)) for each in parts])
    shares = [
        float((2 * each.sizes.prod(axis=1) / (each.times_us * 1e-6)).max())
        / each.machine.peak_flops
        for each in given
    ]
    return GemmFit(constants, round(float(np.mean(shares)), 4), least, fallback_us)


# ---- Errors of rows that were left out ----


def own_errors(table: ProductTable, fit: GemmFit) -> HeldOutRows:
    """Return the errors of each (n, k) pair, predicted by the rows of the other pairs.

    In closed form: with K the covariance of all rows and y their residuals, the rows B of a pair
    are off by the solution of (K^-1)_BB x = (K^-1 y)_B (Rasmussen and Williams, Gaussian Processes
    for Machine Learning, section 5.4.2).
    """
    errors = table.errors(fit)
    falls_back = fit.falls_back(table.sizes)
    for regime in (False, True):
        kept = np.flatnonzero(falls_back == regime)
        if not kept.size:
            continue
        at = places(table.sizes[kept], table.machine.num_sms)
        root = _inverse_root(np.linalg.cholesky(covariance(at, at, krige_variance())))
        solved = root.T @ (root @ errors[kept])
        pairs = table.sizes[kept, 2] * 1e9 + table.sizes[kept, 3]
        for pair in np.unique(pairs):
            rows = np.flatnonzero(pairs == pair)
            block = root[:, rows].T @ root[:, rows]
            errors[kept[rows]] = np.linalg.solve(block, solved[rows])
    return HeldOutRows(
        table.device.name, table.kind, OWN, table.device.name, size_class(table.sizes, fit), errors
    )


def _inverse_root(lower: Array) -> Array:
    """Return the inverse R of a Cholesky factor of K, by halves: R.T R = K^-1."""
    half = len(lower) // 2
    if half < _SMALL:
        return np.linalg.inv(lower)
    root = np.zeros_like(lower)
    root[:half, :half] = _inverse_root(lower[:half, :half])
    root[half:, half:] = _inverse_root(lower[half:, half:])
    root[half:, :half] = -root[half:, half:] @ (lower[half:, :half] @ root[:half, :half])
    return root


def sibling_errors(table: ProductTable, donor: ProductTable, fit: GemmFit) -> HeldOutRows:
    """Return the errors of a device that is predicted by another one's rule and residual.

    Rows of the same (n, k) pair do not take part.
    """
    errors = table.errors(fit)
    donor_errors = donor.errors(fit)
    falls_back, donor_falls_back = fit.falls_back(table.sizes), fit.falls_back(donor.sizes)
    known, asked = _folds(donor.sizes), _folds(table.sizes)
    for fold in range(_FOLDS):
        for regime in (False, True):
            part = (known != fold) & (donor_falls_back == regime)
            rows = np.flatnonzero((asked == fold) & (falls_back == regime))
            if not rows.size or not part.any():
                continue
            residual = Residual(donor.sizes[part], donor_errors[part], donor.machine.num_sms)
            for row in rows:
                errors[row] -= residual.log_at(table.sizes[row], table.machine.num_sms)
    return HeldOutRows(
        table.device.name,
        table.kind,
        SIBLING,
        donor.device.name,
        size_class(table.sizes, fit),
        errors,
    )


def _folds(sizes: Array) -> Array:
    """Return the fold of each row; an (n, k) pair is in one of them."""
    found: Array = (sizes[:, 2] // 32 * 7 + sizes[:, 3] // 32 * 3).astype(np.int64) % _FOLDS
    return found


def unrelated_errors(table: ProductTable, others: Sequence[ProductTable]) -> HeldOutRows:
    """Return the errors of a device that is predicted by constants of other architectures."""
    fit = fit_pooled(others)
    part = table.part(slice(None, None, _POOLED_EVERY))
    return HeldOutRows(
        table.device.name,
        table.kind,
        NO_RELATIVE,
        ANY,
        size_class(part.sizes, fit),
        part.errors(fit),
    )


def are_siblings(left: MeasuredDevice, right: MeasuredDevice, kind: str) -> bool:
    """Return whether a device's products can be scaled to another one's by the peaks.

    Devices of an architecture can, unless one has more units for the kind of product, as B300 has
    for nvfp4.
    """
    pairs = (left.name, right.name), (right.name, left.name)
    if not any(pair in _ARCHITECTURES for pair in pairs):
        return False
    mine, its = (each.peaks[PEAK_OF[kind]] / each.peaks["bfloat16"] for each in (left, right))
    return abs(mine / its - 1) < _SAME_RATIO


def left_out(
    fits: dict[tuple[str, str], GemmFit], shows: Callable[[str], None]
) -> list[HeldOutRows]:
    """Return the errors of all rows, each predicted without itself, by kind and relation."""
    found: list[HeldOutRows] = []
    for kind in KINDS:
        given = tables(kind)
        for table in given:
            name = table.device.name
            shows(f"{kind} without {name}")
            found.append(own_errors(table, fits[kind, name]))
            for donor in given:
                if are_siblings(table.device, donor.device, kind):
                    part = table.part(slice(None, None, 2))
                    found.append(sibling_errors(part, donor, fits[kind, donor.device.name]))
            others = [
                each
                for each in given
                if each.device is not table.device
                and not are_siblings(table.device, each.device, "bfloat16")
            ]
            if others:
                found.append(unrelated_errors(table, others))
    return found


def other_errors() -> list[HeldOutRows]:
    """Return the errors of XLA's products, measured alone on other machines; none was fitted."""
    found = []
    for name, cluster in _OTHERS.items():
        spec = load_cluster(cluster).device
        rows = load_gemm_rows(str(locate("gemm", name)))[TABLE_DTYPES["bfloat16"]]
        sizes = np.array([row[:4] for row in rows], dtype=np.float64)
        shapes = [(row.batch, row.m, row.n, row.k) for row in rows]
        times_ps = [library_product_ps(spec, "bfloat16", shape) for shape in shapes]
        logs = np.log(np.array([row.time_us for row in rows]) * PS_PER_US / np.array(times_ps))
        classes = size_class(sizes, read_fits()["bfloat16", ANY])
        found.append(
            HeldOutRows(f"{name} (XLA)", "bfloat16", OWN, spec.measured_as or ANY, classes, logs)
        )
    return found


def fit_all(shows: Callable[[str], None]) -> dict[tuple[str, str], GemmFit]:
    """Return the fits of all kinds and devices, and of all devices of a kind together."""
    found: dict[tuple[str, str], GemmFit] = {}
    for kind in KINDS:
        given = tables(kind)
        for table in given:
            shows(f"{kind} on {table.device.name}")
            found[kind, table.device.name] = fit_table(table)
        shows(f"{kind} on all devices")
        found[kind, ANY] = fit_pooled(given)
    return found


def half_widths(errors: Sequence[HeldOutRows]) -> Widths:
    """Return the half-widths of 90% intervals, keyed as those of `read_widths`."""
    gathered: dict[tuple[str, str, str], list[HeldOutRows]] = {}
    for each in errors:
        gathered.setdefault(each.key, []).append(each)
    found: Widths = {}
    for key, parts in gathered.items():
        logs = np.abs(np.concatenate([each.logs for each in parts]))
        classes = np.concatenate([each.classes for each in parts])
        for number in np.unique(classes):
            width = float(np.percentile(logs[classes == number], _CONFIDENCE_PCT))
            found.setdefault(key, {})[int(number)] = round(width, 3)
    return found


def write_fits(fits: dict[tuple[str, str], GemmFit], widths: Widths, target: Path) -> None:
    """Write `constants.csv` and `intervals.csv` into a folder."""
    names = RuleConstants._fields
    lines = [
        ",".join(["kind", "device", *names, "best_share", "least_n", "least_k", "fallback_us"])
    ]
    for (kind, device), fit in fits.items():
        numbers = [*fit.constants, fit.best_share, *fit.least, fit.fallback_us]
        lines.append(",".join([kind, device, *(f"{number:g}" for number in numbers)]))
    write_text(target / "constants.csv", "\n".join(lines) + "\n")
    write_widths(widths, "kind", target)


def write_widths(widths: Widths, what: str, target: Path) -> None:
    """Write `intervals.csv` into a folder; its first column is named `what`."""
    lines = [f"{what},relation,device,size_class,half_width"]
    for key, by_class in widths.items():
        lines += [f"{','.join(key)},{number},{width:g}" for number, width in by_class.items()]
    write_text(target / "intervals.csv", "\n".join(lines) + "\n")


# ---- fits of attention's law to the measured tables, with errors of left-out rows ----

Fits = dict[tuple[str, str], AttentionConstants]

_LOWEST_ATTENTION = AttentionConstants(0.5, 0.05, 1e-3, 1e-4, 0.1, 1e-3, 0.1)
_HIGHEST_ATTENTION = AttentionConstants(50.0, 1.2, 1.0, 20.0, 3.0, 20.0, 20.0)
_NOISE = 0.05


def fit_attention() -> Fits:
    """Return the constants of every phase and device, to four digits."""
    low, high = np.log(np.array(_LOWEST_ATTENTION)), np.log(np.array(_HIGHEST_ATTENTION))
    found: Fits = {}
    for phase in PHASES:
        for device, (shapes, times_us) in read_attention(phase).items():
            machine = measured_devices()[device].machine

            def errors(logs: Array, rows: Any = (machine, shapes, times_us, phase)) -> Array:  # noqa: ANN401
                constants = AttentionConstants(*np.exp(np.clip(logs, low, high)))
                ruled: Array = attention_us(rows[0], rows[1], rows[3], constants)
                logs_off: Array = np.log(ruled / rows[2])
                return logs_off

            floor_us = float(np.percentile(times_us, 2))
            start = np.log(np.array((floor_us, 0.6, 0.3, 0.5, 0.8, 0.5, 1.0)))
            logs = np.clip(least_squares(errors, start), low, high)
            found[phase, device] = AttentionConstants(
                *(float(f"{value:.4g}") for value in np.exp(logs))
            )
    return found


def attention_left_out(fits: Fits) -> list[HeldOutRows]:
    """Return the errors of rows that are predicted without themselves, by phase and relation.

    Own rows leave out one combination of heads, heads of keys and width, in the closed form of
    `own_errors`; siblings' rows likewise. Without a relative the law alone predicts.
    """
    found: list[HeldOutRows] = []
    devices = measured_devices()
    for phase in PHASES:
        for name, (shapes, times_us) in read_attention(phase).items():
            machine = devices[name].machine
            classes = attention_class(shapes, phase)
            own = _without_group(name, phase, fits[phase, name])
            found.append(HeldOutRows(name, phase, OWN, name, classes, own))
            for donor, (known, known_us) in read_attention(phase).items():
                if donor == name:
                    continue
                constants, other = fits[phase, donor], devices[donor].machine
                logs = np.log(times_us / attention_us(machine, shapes, phase, constants))
                if not are_siblings(devices[name], devices[donor], "bfloat16"):
                    found.append(HeldOutRows(name, phase, NO_RELATIVE, ANY, classes, logs))
                    continue
                left = np.log(known_us / attention_us(other, known, phase, constants))
                at = attention_places(known, other.num_sms)
                to = attention_places(shapes, machine.num_sms)
                for row in range(0, len(logs), 3):
                    far = (known[:, :3] != shapes[row, :3]).any(axis=1)
                    logs[row] -= interpolate(at[far], left[far], to[row], _NOISE)
                part = slice(None, None, 3)
                found.append(HeldOutRows(name, phase, SIBLING, donor, classes[part], logs[part]))
    return found


def _without_group(device: str, phase: str, constants: AttentionConstants) -> Array:
    shapes, times_us = read_attention(phase)[device]
    machine = measured_devices()[device].machine
    errors: Array = np.log(times_us / attention_us(machine, shapes, phase, constants))
    at = attention_places(shapes, machine.num_sms)
    root = _inverse_root(np.linalg.cholesky(covariance(at, at, _NOISE)))
    solved = root.T @ (root @ errors)
    groups = shapes[:, 0] * 1e6 + shapes[:, 1] * 1e3 + shapes[:, 2]
    for group in np.unique(groups):
        rows = np.flatnonzero(groups == group)
        errors[rows] = np.linalg.solve(root[:, rows].T @ root[:, rows], solved[rows])
    return errors


def write_attention(fits: Fits, errors: list[HeldOutRows], target: Path) -> Widths:
    """Write `constants.csv` and `intervals.csv` into a folder, and return the intervals."""
    lines = [",".join(["phase", "device", *AttentionConstants._fields])]
    for (phase, device), constants in fits.items():
        lines.append(",".join([phase, device, *(f"{number:g}" for number in constants)]))
    write_text(target / "constants.csv", "\n".join(lines) + "\n")
    widths = half_widths(errors)
    write_widths(widths, "phase", target)
    return widths
