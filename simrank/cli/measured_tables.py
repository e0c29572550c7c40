"""Measured times from the command line: tables, kits' results, and errors of kernels."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.table import Table

import simrank
from simrank.calibration import kernel_fits
from simrank.config.files import write_text
from simrank.config.locate import locate
from simrank.config.yaml_source import read_text
from simrank.errors import ConfigError, ConfigProblem
from simrank.hardware import attention
from simrank.hardware.gemm_rows import SIZE_CLASSES, read_fits, read_widths
from simrank.validate.kit.evidence import is_evidence, read_evidence
from simrank.validate.kit.script.result import notes_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simrank.calibration.kernel_fits import Array, HeldOutRows, Widths
    from simrank.validate.kit.evidence import Evidence, Timed

STDIN = "standard input"
FORMATS = (
    "built-in tables, CSV tables, nccl-tests' output or JSON, NCCL Inspector's JSON, a kit's "
    "kit.json; - is stdin"
)


def texts_of(words: list[str]) -> dict[str, str]:
    """Return the text of each word, by the name of its file.

    Args:
        words: Built-in names, files, or `-`.

    Raises:
        ConfigError: A word is neither, or cannot be read.
    """
    texts = {}
    for word in words:
        if word == "-":
            texts[STDIN] = _stdin()
        else:
            path = locate("measured", word)
            text = read_text(path)
            texts[str(path)] = read_evidence(text, word).table() if is_evidence(text) else text
    return texts


def _stdin() -> str:
    got = "no input"
    if sys.stdin is not None:
        try:
            return sys.stdin.read()
        except UnicodeDecodeError as error:
            got = f"bytes that are not UTF-8 at offset {error.start}"
    raise ConfigError(ConfigProblem(STDIN, None, "", "text", got))


# ---- results of kits on the command line ----

_COLUMNS = ("items", "mean error", "bias", "median ratio", "in the 90% interval")


def evidence_in(word: str | None) -> Evidence | None:
    """Return the result of a kit, if a word is the file of one.

    Raises:
        ConfigError: It is one that was changed, or is incomplete.
    """
    if word is None or not word.endswith(".json") or not Path(word).is_file():
        return None
    try:
        text = Path(word).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(ConfigProblem(word, None, "", "a text file", str(error))) from None
    return read_evidence(text, word) if is_evidence(text) else None


def cluster_of(word: str) -> str | None:
    """Return the cluster of a kit's result; None if a word is the file of something else."""
    found = evidence_in(word)
    return None if found is None else found.cluster or None


def show_accuracy(found: Evidence, json_file: str | None) -> None:
    """Show the errors of the predictions that a kit brought along."""
    times = found.times()
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    _say_machine(found, console)
    shown = Table(box=None, pad_edge=False)
    shown.add_column("phase", no_wrap=True)
    for column in _COLUMNS:
        shown.add_column(column, justify="right")
    phases = list(dict.fromkeys(each.phase for each in times))
    for phase in phases:
        shown.add_row(phase, *_cells([each for each in times if each.phase == phase]))
    if times:
        console.print(shown)
        console.print(
            "errors: predicted over measured; a negative bias is too fast. Median ratio: measured "
            "over predicted, as the kit prints it"
        )
    else:
        console.print("No time has a prediction: no cluster of the kit has this GPU.")
    _say_failures(found, console)
    if json_file is not None:
        rows = [
            {
                "phase": each.phase,
                "name": each.name,
                "time_us": each.time_us,
                "predicted_us": each.predicted_us,
                "low_us": each.low_us or None,
                "high_us": each.high_us or None,
            }
            for each in times
        ]
        document = {"simrank": simrank.__version__, "cluster": found.cluster, "rows": rows}
        write_text(json_file, json.dumps(document, indent=1) + "\n")


def show_differences(found: Evidence) -> bool:
    """Show which values and orders differ from those predicted; return whether any does."""
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    _say_machine(found, console)
    differs = found.differences()
    count = sum(row["kind"] == "value" for row in found.measured["rows"])
    console.print(f"{count} values and orders of calls, {len(found.measured['hangs'])} hangs")
    for line in differs:
        console.print(f"differs: {line}")
    if not differs:
        is_any = count or found.measured["hangs"]
        console.print("all as predicted" if is_any else "nothing was compared")
    _say_failures(found, console)
    return bool(differs)


def _say_machine(found: Evidence, console: Console) -> None:
    machine = found.measured["machine"]
    device = machine.get("device") or {"name": "no GPU", "count": 0}
    kit = found.document["kit"]
    nccl = ".".join(map(str, machine.get("nccl") or ["unknown"]))
    console.print(
        f"{device['count']} x {device['name']}, torch {machine.get('torch')}, nccl {nccl}, "
        f"cluster {found.cluster or 'unknown'}"
    )
    day = found.registered
    when = f"registered on {day}" if day else "not registered: nothing says when they were made"
    hashed = kit["predictions_sha256"][:16]
    console.print(f"predictions {hashed} of simrank {kit.get('simrank')}, {when}")


def _say_failures(found: Evidence, console: Console) -> None:
    for note in notes_of(found.measured["rows"]):
        console.print(f"left out: {note}")
    for failure in found.measured["failures"]:
        console.print(f"not measured: {failure['phase']}: {failure['reason']}")


def _cells(times: Sequence[Timed]) -> list[str]:
    errors = [each.error for each in times]
    mean = sum(map(abs, errors)) / len(errors)
    bias = sum(errors) / len(errors)
    inside = [each.is_inside for each in times if each.is_inside is not None]
    share = f"{sum(inside)} of {len(inside)}" if inside else "none stated"
    ratio = median(each.time_us / each.predicted_us for each in times)
    return [str(len(times)), f"{100 * mean:.0f} %", f"{100 * bias:+.0f} %", f"{ratio:.3g}", share]


# ---- tables of the errors of single kernels, for `simrank accuracy` and `simrank calibrate` ----


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
    errors: Sequence[HeldOutRows],
    widths: Widths,
    classes: Sequence[str],
) -> Table:
    """Return a row per device and relation: per size class MAE, bias, coverage, half interval."""
    shown = Table(box=None, pad_edge=False)
    for column in ("kind", "device", "predicted by"):
        shown.add_column(column, no_wrap=True)
    for column in classes:
        shown.add_column(column, no_wrap=True, justify="right")
    rows: dict[tuple[str, str, str], list[HeldOutRows]] = {}
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
