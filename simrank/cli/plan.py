"""`simrank plan`: one training command for many layouts and clusters, the best first."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simrank.cli import options
from simrank.cli.common import EXIT_STATUS, FAILED, app, ended_by_sigterm
from simrank.cli.nccl_tests import bad_option
from simrank.cli.results import GridResults, ShownGrid
from simrank.config.decoder import load_decoder
from simrank.config.files import configs_dir, write_text
from simrank.config.gpus import devices_of
from simrank.config.locate import locate
from simrank.config.plan import ERROR, FITS, load_plan
from simrank.pages.text_table import text_table
from simrank.parallel import Part, Workers
from simrank.planning.layouts import TrainingJob, choose, plan_text
from simrank.planning.plan import (
    best_command,
    check_program,
    command_text,
    kept_rows,
    label_of,
    limits_of,
    plan_page,
    remarks_of,
    run_plan,
    table_of,
    times_text,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from simrank.config.plan import PlanConfig
    from simrank.parallel import Row


@app.command(epilog=EXIT_STATUS)
@ended_by_sigterm()
def plan(
    file: Annotated[
        str | None, typer.Argument(help="A YAML file with a command and its parameters.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", help="Instead of FILE: plan layouts of a model, or its YAML file."),
    ] = None,
    gpus: Annotated[
        str | None, typer.Option("--gpus", help="Of --model: devices, such as 64xh100.")
    ] = None,
    seq: Annotated[
        int | None, typer.Option("--seq", min=1, help="Of --model: tokens of a sequence.")
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option("--batch", min=1, help="Of --model: sequences of a step (one per GPU)."),
    ] = None,
    save: Annotated[
        str | None,
        typer.Option(
            "--save", help="Of --model: folder for its plan and program (llama3-8b-64xh100)."
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the runs.")] = False,
    devices: options.CudaDevices = None,
    jobs: options.Jobs = None,
    backend: options.Backend = None,
    json_file: Annotated[str | None, typer.Option("--json", help="Write rows as JSON.")] = None,
    csv_file: Annotated[str | None, typer.Option("--csv", help="Write rows as CSV.")] = None,
    html_file: Annotated[str | None, typer.Option("--html", help="Write a chart page.")] = None,
) -> None:
    """Find the fastest layout that fits: run a training command for each, without values.

    The command is that of FILE, or trains --model on --gpus. With --json a plan that was stopped
    goes on where it ended.
    """
    of_model = {"--gpus": gpus, "--seq": seq, "--batch": batch, "--save": save}
    config = _plan_of(file, model, of_model)
    check_program(config)
    options.cuda_devices(devices, has_values=False)
    if dry_run:
        for cell in config.cells:
            typer.echo(command_text(config, cell))
        return
    given = {"json_file": json_file, "csv_file": csv_file, "html_file": html_file}
    results = _Results(config, {**given, "trace": None, "trace_ranks": None})
    finished = results.finished(json_file)
    if json_file is not None and Path(json_file).is_file():
        typer.echo(
            f"# {len(finished)} of {len(config.cells)} runs are in {json_file} and need not be "
            "done again"
        )
    shown = _Shown(config, results, None)
    with results.kept(), shown.table(), shown.progress:
        run_plan(config, watcher=shown, part=Part(Workers(jobs, backend), finished))
    if any(row[FITS] is None for row in results.rows):
        raise typer.Exit(FAILED)


def _plan_of(file: str | None, model: str | None, of_model: Mapping[str, Any]) -> PlanConfig:
    """Return the plan of a file or a model; print what was chosen for a model."""
    if file is None and model is None:
        raise bad_option("FILE", "a YAML file, or --model and --gpus", "neither")
    if file is not None and model is not None:
        raise bad_option("FILE", "a YAML file or --model", "both", f"leave out {file} or --model")
    if file is not None:
        for option, value in of_model.items():
            if value is not None:
                raise bad_option(option, "this option with --model only", str(value))
        _refuse_program(file)
        return load_plan(file)
    assert model is not None, "checked above"
    if of_model["--gpus"] is None:
        raise bad_option("--gpus", "the devices beside --model", "nothing", "write --gpus 64xh100")
    return _plan_of_model(model, of_model)


def _plan_of_model(word: str, of_model: Mapping[str, Any]) -> PlanConfig:
    """Return the plan of the layouts that are worth a run, whose files it writes."""
    model, (cluster, count) = load_decoder(word), devices_of(of_model["--gpus"])
    job = TrainingJob(
        model, cluster, count, of_model["--seq"] or model.seq, of_model["--batch"] or count
    )
    chosen, name = choose(job), Path(word).stem
    title = f"{name}, {model.num_parameters / 1e9:.1f} billion parameters"
    where = f"{count} x {cluster.device.name} of {cluster.name}"
    typer.echo(f"# {title}, on {where}: {job.batch} sequences of {job.seq} tokens per step")
    left_out = "; ".join(f"{number} {why}" for why, number in chosen.left_out.items())
    typer.echo(f"# layouts left out by arithmetic: {left_out or 'none'}")
    if not chosen.layouts:
        to_fix = "take more devices, another --batch or a shorter --seq"
        raise bad_option("--gpus", "devices on which some layout fits", where, to_fix)
    folder = Path(of_model["--save"] or f"{name}-{count}x{cluster.name}")
    texts = {
        "train.py": (configs_dir() / "models" / "train.py").read_text(),
        "model.yaml": locate("models", word).read_text(),
        "plan.yaml": plan_text(job, ("train.py", "model.yaml"), chosen),
    }
    for file, text in texts.items():
        path = folder / file
        if path.exists() and path.read_text() != text:
            to_fix = f"simrank plan {folder / 'plan.yaml'}, or another --save"
            raise bad_option("--save", "a folder without another plan", f"{path} differs", to_fix)
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in texts.items():
        write_text(folder / file, text)
    typer.echo(f"# to change it and run it again: simrank plan {folder / 'plan.yaml'}")
    return load_plan(folder / "plan.yaml")


def _refuse_program(file: str) -> None:
    """Raise ConfigError for a program, with the plan that runs it."""
    if Path(file).suffix == ".py":
        expected, keys = (
            "a YAML file",
            "`cluster: hgx_h100`, `parameters: {nproc_per_node: [4, 8]}`",
        )
        to_fix = f"write `command: {file}`, {keys} to plan.yaml; then simrank plan plan.yaml"
        raise bad_option("FILE", expected, f"the program {file}", to_fix)


class _Results(GridResults):
    """The rows of a plan; its JSON file keeps those of other layouts, too.

    Args:
        config: The plan.
        given: The options of the command line.
    """

    def __init__(self, config: PlanConfig, given: dict[str, Any]) -> None:
        head = {"seed": 0, "command": config.command}
        super().__init__(given, head, lambda *facts: plan_page(config, self.rows, *facts))
        self._config = config
        self._other_rows: list[Row] = []

    def finished(self, path: str | None) -> Mapping[int, Row]:
        """Return the rows, by run, that a file has and that hold; keep its others."""
        found = self.earlier(path)
        rows = [row for key in ("rows", "other_rows") for row in found.get(key) or ()]
        own, self._other_rows = kept_rows(self._config, rows)
        return own

    def beside_rows(self) -> dict[str, Any]:
        """Return the rows of other plans' runs, by their key."""
        return {"other_rows": self._other_rows} if self._other_rows else {}


class _Shown(ShownGrid):
    """Prints a line for each run that ends, under a progress bar, and the table at the end.

    Args:
        config: The plan.
        results: As of `ShownGrid`.
        resumed: As of `ShownGrid`.
    """

    def __init__(self, config: PlanConfig, results: GridResults, resumed: str | None) -> None:
        super().__init__(results, resumed)
        self._config = config
        self._num_ended = 0

    def on_start(self) -> None:
        """Print the first lines, and how many runs there are."""
        super().on_start()
        left_out = self._config.num_combinations - len(self._config.cells)
        without = f"; `where` leaves out {left_out}" if left_out else ""
        count = len(self._config.cells)
        what = "1 run" if count == 1 else f"{count} runs"
        typer.echo(f"# {what} of: {self._config.command}{without}")

    def on_end(self, index: int, row: Row) -> None:
        """Keep a row, and print its line."""
        super().on_end(index, row)
        self._num_ended += 1
        told = limits_of(row)
        if row[ERROR] is None:
            rate = row["tokens_per_s_per_rank"]
            speed = "" if rate is None else f"{rate:.0f} tokens/s/GPU, "
            gib = row["peak_reserved_bytes"] / 2**30
            memory = f"{gib:.1f} GiB; " if row[FITS] else ""
            told = f"{times_text(row)}, {speed}{memory}{told}"
        label = label_of(row, self._config)
        self._say(f"{self._num_ended}/{len(self._config.cells)} {label}: {told}", err=True)

    def on_row(self, row: Row, report: str | None) -> None:
        """Print the whole text of an error that is new."""
        if row[FITS] is None:
            self._report(row[ERROR], report)

    @contextmanager
    def table(self) -> Iterator[None]:
        """Print the table after the block, also of a part of the runs."""
        try:
            yield
        finally:
            if self._results.rows:
                typer.echo(_table_text(self._config, self._results.rows))


def _table_text(config: PlanConfig, rows: Sequence[Row]) -> str:
    """Return the rows as text, the best first."""
    columns, lines = table_of(config, rows)
    text = text_table((columns, *lines))
    text += [f"# {remark}" for remark in remarks_of(rows)]
    best = best_command(config, rows)
    if best is not None:
        text.append(f"# The best: {best}")
    return "\n".join(text)
