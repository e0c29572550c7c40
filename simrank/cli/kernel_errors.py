"""Tables of the errors of single kernels, for `simrank accuracy` and `simrank calibrate`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.table import Table

from simrank.bench import kernel_fits
from simrank.hardware import attention
from simrank.hardware.gemm_rows import SIZE_CLASSES, read_fits, read_widths

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from simrank.bench.kernel_fits import Array, LeftOut, Widths


def gemm_errors() -> Table:
    """Return the errors of matrix products that were left out, by shipped constants."""
    errors = [*kernel_fits.left_out(read_fits(), lambda _: None), *kernel_fits.other_errors()]
    return errors_table(errors, read_widths(), SIZE_CLASSES)


def calibrate_gemm(folder: Path) -> Table:
    """Fit the rule and the intervals of matrix products, and write them into a folder."""
    console = Console(stderr=True)
    with console.status("fit") as status:
        fits = kernel_fits.fit_all(status.update)
        errors = kernel_fits.left_out(fits, status.update)
    widths = kernel_fits.half_widths(errors)
    kernel_fits.write_fits(fits, widths, folder)
    return errors_table(errors, widths, SIZE_CLASSES)


def attention_errors() -> Table:
    """Return the errors of attention kernels that were left out, by shipped constants."""
    errors = kernel_fits.attention_left_out(attention.read_attention_fits())
    return errors_table(errors, attention.read_attention_widths(), attention.SIZE_CLASSES)


def calibrate_attention(folder: Path) -> Table:
    """Fit attention's law and its intervals, and write them into a folder."""
    fits = kernel_fits.fit_attention()
    errors = kernel_fits.attention_left_out(fits)
    widths = kernel_fits.write_attention(fits, errors, folder)
    return errors_table(errors, widths, attention.SIZE_CLASSES)


def errors_table(
    errors: Sequence[LeftOut],
    widths: Widths,
    classes: Sequence[str],
) -> Table:
    """Return a row per device and relation: per size class MAE, bias, coverage, half interval."""
    shown = Table(box=None, pad_edge=False)
    for column in ("kind", "device", "predicted by"):
        shown.add_column(column, no_wrap=True)
    for column in classes:
        shown.add_column(column, no_wrap=True, justify="right")
    rows: dict[tuple[str, str, str], list[LeftOut]] = {}
    for each in errors:
        rows.setdefault((each.kind, each.device, f"{each.relation}: {each.donor}"), []).append(each)
    for words, parts in rows.items():
        found = np.concatenate([each.classes for each in parts])
        logs, by_class = np.concatenate([each.logs for each in parts]), widths[parts[0].key]
        cells = [
            _cell(logs[found == number], by_class.get(number, 0.0))
            for number in range(len(classes))
        ]
        shown.add_row(*words, *cells)
    return shown


def _cell(logs: Array, width: float) -> str:
    """Return the mean error, bias, coverage and half interval of some rows."""
    if not logs.size:
        return "-"
    errors = np.expm1(-logs)  # Predicted / measured, less one.
    covered = float((np.abs(logs) <= width).mean())
    mae, bias = 100 * float(np.abs(errors).mean()), 100 * float(errors.mean())
    half = 100 * float(np.expm1(width))
    return f"{mae:.1f} % ({bias:+.0f}) {100 * covered:.0f} % of {half:.0f} %"


def show(table: Table) -> None:
    """Print a table, wide where no terminal limits it."""
    Console(width=None if sys.stdout.isatty() else 200, highlight=False).print(table)
