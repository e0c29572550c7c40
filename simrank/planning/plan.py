"""Plans: a training command for every layout and cluster, without values; their page.

Each run is a process of `simrank run --shape-only`, so that it takes the user's program as it is
and gives its memory back.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import shlex
import time
from dataclasses import replace
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from simrank.config.plan import ERROR, FITS, INPUTS, MEASURES
from simrank.errors import ConfigError, ConfigProblem
from simrank.pages import (
    Bar,
    Curve,
    Point,
    bars,
    chart,
    document,
    folded_table,
    notes,
    pictures,
    section,
)
from simrank.pages.chart import linear_axis
from simrank.parallel import GridWatcher, Part, RowOutcome, run_grid, title_of
from simrank.planning.commands import ForkedCommands
from simrank.planning.inputs import digests_of, is_unchanged, surroundings
from simrank.trace.activity import PHASES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from simrank.config.plan import PlanCell, PlanConfig
    from simrank.pages.document import Markup
    from simrank.parallel import Row

# 90 percent of 40 published steps of 9 sources, each source counting alike, took between these
# factors of the simulated ones; their machines' power and network are known, and their programs
# take the attention of their release of torch (benches/steps_published.csv).
INTERVAL_FACTORS = (0.92, 1.12)
_MORE_MEMORY = 4  # Assumed: a layout that needs more than this many times a device's is no choice.
_NEARLY = 0.97  # Assumed: of a device's memory; above, torch frees cached blocks now and then.
_OUT_OF_MEMORY = "OutOfMemoryError"
_OF_RANK = re.compile(r"-- Process \d+ (terminated with the following error|met ranks .*):")
_CAUSE = re.compile(
    r"(deadlock|livelock) \(|command line: |no summary: |.*(terminated with|ended by) "
)
_NO_DEVICE = "no rank used a device: plan a program that computes on cuda devices"


def run_plan(
    config: PlanConfig, *, watcher: GridWatcher | None = None, part: Part | None = None
) -> list[Row]:
    """Run the command of a plan for every cluster and combination of parameters.

    A run that does not fit into its device's memory is repeated with four times as much, so that
    its row says how much it needs.

    Args:
        config: The plan.
        watcher: Gets the start, progress and rows.
        part: The workers of the runs, and which are done already; None: all of them, here.

    Returns:
        A row per run, in the order of `config.cells`: cluster, the parameters, `num_ranks`;
        `num_steps`; of the last training step (or of the whole run, where there is none) `step_ms`
        with a 90 % interval `low_ms` to `high_ms`, `tokens_per_s`, `tokens_per_s_per_rank`, `mfu`
        (model FLOPs over the bfloat16 peak), `parts_ms` (means over ranks: phases of computation,
        exposed communication by group, idle time); of the rank that reserves most
        `peak_allocated_bytes`, `peak_reserved_bytes`, `memory_by_kind_bytes`; `memory_bytes` of a
        device; `grouped_share` of the kernels' time, of products of groups; `fits`, None where
        that is not known; `error` in one line, in place of these where the run failed or needs far
        more memory; `inputs`, see `kept_rows`.

    Raises:
        ConfigError: The workers are not there.
        SimrankError: A worker was killed.
    """
    watcher, part = watcher or GridWatcher(), part or Part()
    part.workers.check()
    watcher.on_start()
    columns = [cell.columns for cell in config.cells]
    run = partial(_run_cell, config.cells, config.folder)
    if part.workers.backend is not None:
        return run_grid(run, columns, watcher, part)
    workers = replace(part.workers, are_threads=True)  # They wait for the processes of the runs.
    with _commands(config.cells[0].program, config.folder).ended():
        return run_grid(run, columns, watcher, replace(part, workers=workers))


def is_row(row: object) -> bool:
    """Return whether a file's entry is a row of a run."""
    if not isinstance(row, dict) or not {*MEASURES, FITS, ERROR, INPUTS} <= row.keys():
        return False
    inputs = row[INPUTS]
    return inputs is None or (isinstance(inputs, dict) and isinstance(inputs.get("files"), dict))


def run_key(cell: PlanCell, here: object) -> str:
    """Return a text that is another where the command, the cluster or `surroundings()` are."""
    facts = command_of(cell), cell.config.model_dump_json(), here
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def kept_rows(config: PlanConfig, found: object) -> tuple[dict[int, Row], list[Row]]:
    """Return the rows of a file that hold: nothing that they rest on has changed.

    `inputs` of a row has the key of its run, and digests of the files that it read; it is None
    where they changed under it, and for a run that failed, which is tried again.

    Args:
        config: The plan.
        found: Rows of any plan, as a file has them.

    Returns:
        Those of runs of this plan by their number, and the others.
    """
    rows = [row for row in found if is_row(row) and row[INPUTS]] if isinstance(found, list) else []
    digests = {file for row in rows for file in row[INPUTS]["files"].items()}
    held = {(path, digest) for path, digest in digests if is_unchanged(path, digest, config.folder)}
    by_key = {row[INPUTS].get("run"): row for row in rows if row[INPUTS]["files"].items() <= held}
    own, here = {}, surroundings()
    for index, cell in enumerate(config.cells if by_key else ()):
        row = by_key.pop(run_key(cell, here), None)
        if row is not None:
            own[index] = {name: row[name] for name in (*MEASURES, FITS, ERROR, INPUTS)}
    return own, list(by_key.values())


class _Ended(NamedTuple):
    """The summary of a run, or the report of its failure."""

    summary: dict[str, Any] | None
    report: str


def command_of(cell: PlanCell, *options: str) -> list[str]:
    """Return the words of the run, from `simrank` on.

    Args:
        cell: The run.
        options: Further options of `simrank run`.
    """
    given = (*cell.run_options(), *cell.options, *options)  # Of two that are alike the last counts.
    return ["simrank", "run", "--shape-only", *given, *cell.program]


def _run_cell(cells: Sequence[PlanCell], folder: Path, index: int) -> RowOutcome:
    cell = cells[index]
    memory_bytes, begin_ns = cell.memory_bytes, time.time_ns()
    ended, fits = _run(cell, folder), True
    if ended.summary is None and _OUT_OF_MEMORY in ended.report:
        fits, more = False, memory_bytes * _MORE_MEMORY
        report, ended = ended.report, _run(cell, folder, "--set", f"memory={more} B")
        if ended.summary is None and _OUT_OF_MEMORY in ended.report:
            why = f"needs more than {more / 2**30:.0f} GiB per device"
            return _failed(cell, why, report, fits=False)
    if ended.summary is None:
        return _failed(cell, _one_line(ended.report), ended.report)
    if not ended.summary["ranks"]:
        return _failed(cell, _NO_DEVICE, f"{_NO_DEVICE}\n{ended.report}")
    if ended.summary["optimizers"] and not ended.summary["has_backward"]:
        made = ", ".join(ended.summary["optimizers"])
        why = f"ended before it trained: it made {made}, and no backward ran"
        return _failed(cell, why, f"{why}\n{ended.report}")
    found = {**_measures(cell, ended.summary), "memory_bytes": memory_bytes}
    measures = {name: found[name] for name in MEASURES}
    digests = digests_of(ended.summary["files_read"], folder, begin_ns)
    inputs = None if digests is None else {"run": run_key(cell, surroundings()), "files": digests}
    row = {**cell.columns, **measures, FITS: fits, ERROR: None, INPUTS: inputs}
    return RowOutcome(row, None)


def _failed(cell: PlanCell, why: str, report: str, *, fits: bool | None = None) -> RowOutcome:
    none = dict.fromkeys(MEASURES)
    memory = {"memory_bytes": cell.memory_bytes}
    row = {**cell.columns, **none, **memory, FITS: fits, ERROR: why, INPUTS: None}
    return RowOutcome(row, report)


def _run(cell: PlanCell, folder: Path, *options: str) -> _Ended:
    """Run the command in a process of its own."""
    shown = ("--summary", "json", "--prefix", "none")
    _, *words = command_of(cell, *shown, *options)
    status, said = _commands(cell.program, folder).run(words, folder)
    if status == 0:
        return _summary_of(said)
    if status < 0:
        to_fix = "; to fix: if memory ran out, take fewer --jobs" if status == -9 else ""
        said += f"the run was ended by signal {-status}{to_fix}\n"
    return _Ended(None, said)


@lru_cache(maxsize=1)
def _commands(program: tuple[str, ...], folder: Path) -> ForkedCommands:
    """Return the runner of a plan's commands, one in a process."""
    name = program[0]
    if name == "-m":
        name = f"{program[1].replace('.', '/')}.py"
    return ForkedCommands(folder / name)


def _summary_of(said: str) -> _Ended:
    """Find the summary in what a run wrote to stderr: its last line of JSON."""
    lines = said.splitlines(keepends=True)
    for number in reversed(range(len(lines))):
        if lines[number].startswith('{"constants"'):
            left = "".join(lines[:number] + lines[number + 1 :])
            return _Ended(json.loads(lines[number]), left)
    return _Ended(None, f"no summary: the run ended before it wrote one\n{said}")


def _one_line(report: str) -> str:
    """Return the line of a report that says what failed; a program may write anything before."""
    lines = [line.strip() for line in report.splitlines() if line.strip()]
    for line, after in pairwise(lines):
        if _OF_RANK.match(line):
            return after
    causes = [line for line in lines if _CAUSE.match(line)]
    return (causes or lines or ["no output"])[-1]


def _measures(cell: PlanCell, summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of a run."""
    steps, ranks = summary["steps"], summary["ranks"]
    step_ms = (steps["times_us"][-1] if steps else summary["simulated_us"]) / 1e3
    fullest = max(ranks, key=_reserved)
    is_rate = cell.tokens_per_step is not None and step_ms > 0
    tokens_per_s = (cell.tokens_per_step or 0) / step_ms * 1e3 if is_rate else None
    num_ranks = sum(len(rank["ranks"]) for rank in ranks)
    return {
        "num_steps": len(steps["times_us"]) if steps else 0,
        "step_ms": step_ms,
        "low_ms": step_ms * INTERVAL_FACTORS[0],
        "high_ms": step_ms * INTERVAL_FACTORS[1],
        "tokens_per_s": tokens_per_s,
        "tokens_per_s_per_rank": tokens_per_s and tokens_per_s / num_ranks,
        "mfu": steps.get("model_flops_utilization") if steps else None,
        "parts_ms": _parts_of_steps(steps["last"]) if steps else _parts_of_run(ranks),
        "peak_allocated_bytes": fullest["peak_memory_bytes"],
        "peak_reserved_bytes": _reserved(fullest),
        "memory_by_kind_bytes": fullest["memory_by_kind_bytes"],
        "grouped_share": sum(summary["grouped_products"].values()),
    }


def _reserved(rank: Mapping[str, Any]) -> int:
    """Return the most bytes that a rank's device gave away: only torch's allocator keeps more."""
    return int(max(rank["peak_reserved_bytes"], rank["peak_memory_bytes"]))


def _parts_of_steps(last: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the mean times of the last step's parts over all ranks."""
    sums: dict[str, float] = {}
    num_ranks = sum(len(step["ranks"]) for step in last)
    for step in last:
        named = [
            *step["by_phase_us"].items(),
            *((f"wait for {group}", us) for group, us in step["exposed_by_group_us"].items()),
            ("idle", step["idle_us"]),
        ]
        for name, us in named:
            sums[name] = sums.get(name, 0.0) + us * len(step["ranks"]) / num_ranks / 1e3
    order = [*PHASES, "other"]
    waits = sorted(sums.keys() - {*order, "idle"}, key=lambda name: -sums[name])
    return {name: sums[name] for name in (*order, *waits, "idle") if sums.get(name)}


def _parts_of_run(ranks: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the mean times of a whole run without training steps."""
    num_ranks = sum(len(rank["ranks"]) for rank in ranks)
    names = {"compute": "compute_us", "wait": "exposed_communication_us", "idle": "idle_us"}
    return {
        name: sum(rank[key] * len(rank["ranks"]) for rank in ranks) / num_ranks / 1e3
        for name, key in names.items()
    }


# ---- Order and text ----


def best_first(rows: Sequence[Row]) -> list[Row]:
    """Return rows by what they are worth: tokens per second and rank, or else short steps.

    Runs that took no time, or no training step where others did, follow, then those that do not
    fit, the least memory first, then those that failed.
    """
    one_trains = any(row["num_steps"] for row in rows)

    def worth(row: Row) -> tuple[int, float]:
        if row[ERROR] is not None:
            return 3, 0.0
        if not row[FITS]:
            return 2, row["peak_reserved_bytes"]
        if not row["step_ms"] or (one_trains and not row["num_steps"]):
            return 1, 0.0
        rate = row["tokens_per_s_per_rank"]
        return 0, row["step_ms"] if rate is None else -rate

    return sorted(rows, key=worth)


def pareto_front(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that fit and that no other row beats in both speed and memory."""
    front: list[Row] = []
    for row in best_first([row for row in rows if row[ERROR] is None and row[FITS]]):
        if not front or row["peak_reserved_bytes"] < front[-1]["peak_reserved_bytes"]:
            front.append(row)
    return front


def limits_of(row: Row, most: int = 2) -> str:
    """Return the largest parts of a step's time, or why a run has none, in one line."""
    if row[ERROR] is not None:
        return str(row[ERROR])
    if not row[FITS]:
        needed, held = row["peak_allocated_bytes"] / 2**30, row["memory_bytes"] / 2**30
        said = f"does not fit: allocates {needed:.1f} GiB of {held:.1f}"
        in_pieces = f", for which torch reserves {row['peak_reserved_bytes'] / 2**30:.1f}"
        return f"{said}{in_pieces}" if needed <= held else said
    parts = row["parts_ms"]
    whole = sum(parts.values()) or 1.0
    compute = sum(ms for name, ms in parts.items() if _is_compute(name))
    shares = {"compute": compute} | {n: ms for n, ms in parts.items() if not _is_compute(n)}
    largest = sorted(shares.items(), key=lambda entry: -entry[1])[:most]
    found = [f"{name} {ms / whole:.0%}" for name, ms in largest if ms] or ["nothing"]
    if row["grouped_share"]:
        found.append(f"kernels {row['grouped_share']:.0%} products of groups")
    if row["peak_reserved_bytes"] > _NEARLY * row["memory_bytes"]:
        found.append("memory is nearly full")
    return ", ".join(found)


def _is_compute(name: str) -> bool:
    return name in (*PHASES, "other", "compute")


def _ms(time_ms: float) -> str:
    return f"{time_ms:.0f}" if time_ms >= _ROUNDED_MS else f"{time_ms:.3g}"


_ROUNDED_MS = 100  # Of intervals: above, three digits are before the point.
_CELLS: dict[str, Callable[[Row], str]] = {
    "step ms": lambda row: f"{row['step_ms']:.1f}" if row["step_ms"] >= 1 else _ms(row["step_ms"]),
    "90% interval": lambda row: f"{_ms(row['low_ms'])}-{_ms(row['high_ms'])}",
    "tokens/s/GPU": lambda row: f"{row['tokens_per_s_per_rank']:.0f}",
    "MFU": lambda row: f"{row['mfu']:.1%}",
    "GiB reserved": lambda row: f"{row['peak_reserved_bytes'] / 2**30:.1f}",
    "of GiB": lambda row: f"{row['memory_bytes'] / 2**30:.1f}",
}
_NEEDS = {"tokens/s/GPU": "tokens_per_s_per_rank", "MFU": "mfu"}


def times_text(row: Row) -> str:
    """Return the time of a step with its interval: `129.0 ms (119-144)`."""
    return f"{_CELLS['step ms'](row)} ms ({_CELLS['90% interval'](row)})"


def table_of(config: PlanConfig, rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Return the columns and the cells of a table, the best row first."""
    cells = {
        name: cell for name, cell in _CELLS.items()
        if name not in _NEEDS or any(row[_NEEDS[name]] is not None for row in rows)
    }  # fmt: skip
    names = ["cluster", *config.parameters, "num_ranks"]
    lines = []
    for row in best_first(rows):
        is_known = row[ERROR] is None
        shown = [cell(row) if is_known or name == "of GiB" else "-" for name, cell in cells.items()]
        lines.append([*(str(row[name]) for name in names), *shown, limits_of(row)])
    return [*names[:-1], "GPUs", *cells, "time goes to"], lines


def label_of(row: Row, config: PlanConfig) -> str:
    """Return the words that name a row by what differs: `h100_ib tp=8, pp=2`."""
    names = [name for name, values in config.parameters.items() if len(values) > 1]
    shown = {name: row[name] if row[name] != "" else "''" for name in names}
    return title_of({"cluster": row["cluster"], **shown})


def best_command(config: PlanConfig, rows: Sequence[Row]) -> str | None:
    """Return the command of the best row, to be run where the plan lies; None if none fits."""
    best = next((row for row in best_first(rows) if row[FITS] and row["step_ms"]), None)
    if best is None:
        return None
    cell = next(each for each in config.cells if each.columns.items() <= best.items())
    return command_text(config, cell)


def command_text(config: PlanConfig, cell: PlanCell) -> str:
    """Return the command of a run, for the current folder."""
    text = shlex.join(command_of(cell))
    return (
        text if config.folder == Path.cwd() else f"cd {shlex.quote(str(config.folder))} && {text}"
    )


# SDPA takes cuDNN's kernels there (pytorch/pytorch#162073) where torch's wheels have a cuDNN that
# is new enough, since 2.11.
_STACK = (
    "Times are those of torch 2.11 and newer on CUDA 12.8 and newer: on Hopper and Blackwell, "
    "attention is cuDNN's; for an older one, torch.backends.cuda.enable_cudnn_sdp(False)"
)


_GROUPED = (
    "Products of groups, as of experts, rest on less than others: rows go to groups evenly, "
    "kernels take 1.2 times those of a batch (assumed; six published sources have 1.1 to 1.5), and "
    "none of the published steps of the 90% interval has them"
)


def remarks_of(rows: Sequence[Row]) -> list[str]:
    """Return remarks on a plan's rows: the stack, no training steps, failures."""
    said = [_STACK] if any(row[ERROR] is None for row in rows) else []
    if any(row["num_steps"] == 0 for row in rows):
        several = any(row["num_steps"] for row in rows)
        which = "in some runs, which come last" if several else "in any run"
        said.append(f"No optimizer has stepped {which}: times are those of whole runs")
    if any(row["grouped_share"] for row in rows):
        said.append(_GROUPED)
    num_failed = sum(row[FITS] is None for row in rows)
    if num_failed:
        said.append(f"{num_failed} of {len(rows)} runs failed")
    return said


def check_program(config: PlanConfig) -> None:
    """Raise ConfigError if no word of the command is a file, nor is `-m` among them."""
    first, *_ = (*config.cells[0].program, "")
    if first == "-m" or (config.folder / first).is_file():
        return
    expected = f"the options of `simrank run`, then a Python file in {config.folder} or -m MODULE"
    problem: ConfigProblem = config.source.problem(("command",), expected, config.command)
    raise ConfigError(problem)


# ---- a plan as a page: speed over memory with the best trade-offs, and the parts of steps ----

_MOST_BARS = 20  # Of one picture: the best rows.


def plan_page(
    config: PlanConfig,
    rows: Sequence[Row],
    head: Mapping[str, object],
    partial: str | None = None,
) -> str:
    """Return the page of a plan; equal rows give equal text.

    Args:
        config: The plan.
        rows: As in the JSON file.
        head: As in the JSON file.
        partial: Why rows are missing, if some are.
    """
    facts = {name: str(value) for name, value in head.items()}
    facts["combinations"] = f"{config.num_combinations}, of which {len(config.cells)} are run"
    known = [row for row in best_first(rows) if row[ERROR] is None]
    best = best_command(config, rows)
    if best is not None:
        facts["the best"] = best
    facts |= {f"note {number}": text for number, text in enumerate(remarks_of(rows), 1)}
    num_curves = sum(len({row[name] for row in known}) for name in ("cluster", "memory_bytes"))
    drawn: list[Markup] = []
    if known:
        drawn += _pictures(config, known)
        drawn += [_times(config, known), _memory(config, known)]
    if rows:
        columns, lines = table_of(config, rows)
        drawn.append(folded_table("Table of all rows", columns, lines))
    return document(
        f"simrank plan: {config.command}", list(facts.items()), drawn, partial=partial,
        num_curves=1 + num_curves,
    )  # fmt: skip


def _pictures(config: PlanConfig, known: Sequence[Row]) -> Iterator[Markup]:
    """Yield the section of speed over memory: the best trade-offs, all rows, devices' memories."""
    is_rate = all(row["tokens_per_s_per_rank"] is not None for row in known)
    title = "tokens per second and GPU" if is_rate else "steps per second"

    def points_of(rows: Sequence[Row]) -> tuple[Point, ...]:
        by_memory = sorted(rows, key=lambda row: float(row["peak_reserved_bytes"]))
        return tuple(_point(config, row, is_rate) for row in by_memory)

    curves = [Curve("best for its memory", points_of(pareto_front(known)), 0)]
    for cluster in dict.fromkeys(row["cluster"] for row in known):
        own = points_of([row for row in known if row["cluster"] == cluster])
        curves.append(Curve(str(cluster), own, len(curves), is_measured=True))
    most = max(point.y for curve in curves for point in curve.points)
    for gib in sorted({row["memory_bytes"] / 2**30 for row in known}):
        text = f"a device's {gib:.1f} GiB"
        ends = Point(gib, 0.0, text), Point(gib, most, text)
        curves.append(Curve(text, ends, len(curves)))
    every = [point for curve in curves for point in curve.points]
    axes = (
        linear_axis([point.x for point in every], "peak of reserved memory (GiB)"),
        linear_axis([point.y for point in every], title),
    )
    remark = (
        "Layouts that do not fit were run with four times the memory, of which torch keeps more."
    )
    picture = pictures(curves, chart("Speed over memory", axes, curves))
    yield section("Speed and memory", picture, notes([remark]))


def _point(config: PlanConfig, row: Row, is_rate: bool) -> Point:
    gib = row["peak_reserved_bytes"] / 2**30
    rate = row["tokens_per_s_per_rank"] if is_rate else 1e3 / (row["step_ms"] or math.inf)
    fits = "" if row[FITS] else ", does not fit"
    unit = "tokens/s/GPU" if is_rate else "steps/s"
    shown = f"{row['step_ms']:.1f} ms, {rate:.0f} {unit}, {gib:.1f} GiB reserved{fits}"
    text = f"{label_of(row, config)}: {shown}"
    return Point(gib, rate, text)


def _times(config: PlanConfig, known: Sequence[Row]) -> Markup:
    shown = known[:_MOST_BARS]
    names = list(dict.fromkeys(name for row in shown for name in row["parts_ms"]))
    rows = [
        Bar(
            label_of(row, config),
            tuple(row["parts_ms"].get(name, 0.0) for name in names),
            f"{row['step_ms']:.1f} ms" + ("" if row[FITS] else ", does not fit"),
        )
        for row in shown
    ]
    return section("Time of a step, mean of ranks", bars("ms", names, rows), _left(known))


def _memory(config: PlanConfig, known: Sequence[Row]) -> Markup:
    shown = known[:_MOST_BARS]
    kinds = list(dict.fromkeys(kind for row in shown for kind in row["memory_by_kind_bytes"]))
    rows = []
    for row in shown:
        held = row["memory_by_kind_bytes"]
        allocated, reserved = row["peak_allocated_bytes"], row["peak_reserved_bytes"]
        parts = [held.get(kind, 0) for kind in kinds]
        parts += [max(allocated - sum(held.values()), 0), max(reserved - allocated, 0)]
        total = f"{reserved / 2**30:.1f} of {row['memory_bytes'] / 2**30:.1f} GiB"
        rows.append(Bar(label_of(row, config), tuple(part / 2**30 for part in parts), total))
    names = [*kinds, "other", "reserved beyond that"]
    title = "Peak memory of the fullest rank"
    return section(title, bars("GiB", names, rows), _left(known))


def _left(known: Sequence[Row]) -> Markup:
    left = len(known) - _MOST_BARS
    return notes([f"The best {_MOST_BARS}; {left} more are in the table."] if left > 0 else [])
