"""Fits of attention's law to the measured tables, with errors of left-out rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from simrank.bench.gemm_fit import LeftOut, are_siblings, half_widths, least_squares, write_widths
from simrank.config.files import write_text
from simrank.hardware.attention import (
    PHASES,
    AttentionConstants,
    attention_class,
    attention_places,
    attention_us,
    read_attention,
)
from simrank.hardware.gemm_model import NO_RELATIVE, OWN, SIBLING
from simrank.hardware.gemm_rows import ANY, covariance, interpolate, measured_devices

if TYPE_CHECKING:
    from pathlib import Path

    from simrank.bench.gemm_fit import Widths

Array = np.ndarray[Any, Any]
Fits = dict[tuple[str, str], AttentionConstants]

_LOWEST = AttentionConstants(0.5, 0.05, 1e-3, 1e-4, 0.1, 1e-3, 0.1)
_HIGHEST = AttentionConstants(50.0, 1.2, 1.0, 20.0, 3.0, 20.0, 20.0)
_NOISE = 0.05


def fit_attention() -> Fits:
    """Return the constants of every phase and device, to four digits."""
    low, high = np.log(np.array(_LOWEST)), np.log(np.array(_HIGHEST))
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


def attention_left_out(fits: Fits) -> list[LeftOut]:
    """Return the errors of rows that are predicted without themselves, by phase and relation.

    Own rows leave out one combination of heads, heads of keys and width, in the closed form of
    `gemm_fit.own_errors`; siblings' rows likewise. Without a relative the law alone predicts.
    """
    found: list[LeftOut] = []
    devices = measured_devices()
    for phase in PHASES:
        for name, (shapes, times_us) in read_attention(phase).items():
            machine = devices[name].machine
            classes = attention_class(shapes, phase)
            own = _without_group(name, phase, fits[phase, name])
            found.append(LeftOut(name, phase, OWN, name, classes, own))
            for donor, (known, known_us) in read_attention(phase).items():
                if donor == name:
                    continue
                constants, other = fits[phase, donor], devices[donor].machine
                logs = np.log(times_us / attention_us(machine, shapes, phase, constants))
                if not are_siblings(devices[name], devices[donor], "bfloat16"):
                    found.append(LeftOut(name, phase, NO_RELATIVE, ANY, classes, logs))
                    continue
                left = np.log(known_us / attention_us(other, known, phase, constants))
                at = attention_places(known, other.num_sms)
                for row in range(0, len(logs), 3):
                    place = attention_places(shapes[row][None], machine.num_sms)[0]
                    far = (known[:, :3] != shapes[row, :3]).any(axis=1)
                    logs[row] -= interpolate(at[far], left[far], place, _NOISE)
                part = slice(None, None, 3)
                found.append(LeftOut(name, phase, SIBLING, donor, classes[part], logs[part]))
    return found


def _without_group(device: str, phase: str, constants: AttentionConstants) -> Array:
    shapes, times_us = read_attention(phase)[device]
    machine = measured_devices()[device].machine
    errors: Array = np.log(times_us / attention_us(machine, shapes, phase, constants))
    at = attention_places(shapes, machine.num_sms)
    inverse = np.linalg.inv(covariance(at, at, _NOISE))
    solved = inverse @ errors
    groups = shapes[:, 0] * 1e6 + shapes[:, 1] * 1e3 + shapes[:, 2]
    for group in np.unique(groups):
        rows = np.flatnonzero(groups == group)
        errors[rows] = np.linalg.solve(inverse[np.ix_(rows, rows)], solved[rows])
    return errors


def write_attention(fits: Fits, errors: list[LeftOut], target: Path) -> Widths:
    """Write `constants.csv` and `intervals.csv` into a folder, and return the intervals."""
    lines = [",".join(["phase", "device", *AttentionConstants._fields])]
    for (phase, device), constants in fits.items():
        lines.append(",".join([phase, device, *(f"{number:g}" for number in constants)]))
    write_text(target / "constants.csv", "\n".join(lines) + "\n")
    widths = half_widths(errors)
    write_widths(widths, "phase", target)
    return widths
