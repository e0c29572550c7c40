"""`simrank run`: a script once per rank, where torchrun would stand."""

from __future__ import annotations

import io
import json
import os
import shlex
import sys
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, replace
from errno import EPIPE
from functools import partial
from importlib import import_module
from pathlib import Path
from time import process_time
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

import simrank
from simrank import explore, units
from simrank.cli import options
from simrank.cli.common import (
    EXIT_STATUS,
    FAILED,
    app,
    check_writable,
    progress_bar,
    traced_ranks,
    why_it_ended,
)
from simrank.cli.debugging import (
    flight_recorder,
    show_records,
    variables_text,
)
from simrank.cli.every_timing import search_every_timing
from simrank.cli.folding import folding_of, show_limits, unfolds
from simrank.cli.hash_seeds import check_hash_seeds
from simrank.cli.options import CHOICES_OF, LaunchCommand, check_words
from simrank.cli.prediction_options import Changed, with_changes
from simrank.cli.rank_output import Outputs
from simrank.config.files import write_text
from simrank.context import Context
from simrank.engine import TimeLimitError
from simrank.engine.delays import Delays
from simrank.errors import (
    CollectiveMismatchError,
    ConfigError,
    ConfigProblem,
    DeadlockError,
    ProcessException,
    SimrankError,
    SpawnException,
)
from simrank.errors.base import add_note
from simrank.hardware.load import load_cluster
from simrank.hardware.roofline import peak_flops
from simrank.isolation.output import is_unread, keep_lines, set_output
from simrank.isolation.package_changes import RESTART
from simrank.isolation.process_state import ERROR_FILES, RESTARTS
from simrank.multiprocessing.script import run_module, run_script
from simrank.multiprocessing.tracebacks import failure_text
from simrank.timings.run import OtherWayError, TimingRun
from simrank.timings.search import TimingEnd, draw, end_of
from simrank.trace import PeakMemory, Rates, Summary, Timeline, summary_json, summary_text
from simrank.trace.summary import not_run_text

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from simrank.hardware.cluster import Cluster
    from simrank.probing import Found, Probe


_SHORT_S = 30.0  # Assumed: CPU time of a run that is run again to find a line.


# ---- `simrank run`: a script once per rank, where torchrun would stand ----

# Parameters that a replay sets itself, or that say nothing to it.
_OF_FIRST_RUN = {  # Options of looking at a run, and of what it writes.
    "checks", "races", "strict", "divergence", "replicas", "flight_recorder_folder", "summary",
    "trace", "html", "tee", "redirects", "log_dir", "second_run",
}  # fmt: skip
_NO_REPLAY = {
    "program",
    "args",
    "seeds",
    "every_timing",
    "delays",
    "timing",
    "torchrun_values",
    "torchrun_flags",
}


@dataclass(frozen=True)
class _Job:
    """A script and the Contexts that it runs in."""

    program: str
    args: list[str]
    num_ranks: int
    settings: dict[str, Any]
    as_module: bool = False
    max_restarts: int = 0
    tokens_per_step: int | None = None
    second_run: bool = True
    start: _Start | None = None
    folded: list[Found] = field(default_factory=list)  # Until its ranks have run.

    def run(self, context: Context) -> None:
        """Run the script, and restart all ranks after a failure, as torchrun.

        A hang is reported at once: restarted ranks would hang again.
        """
        import_module("asyncio")  # Entering a Context prepares it only where it is imported.
        run = run_module if self.as_module else run_script
        with context:
            for count in range(self.max_restarts + 1):
                context.program.local[RESTARTS] = count, self.max_restarts
                try:
                    run(context.program, self.program, self.args, self.num_ranks)
                except ProcessException as error:
                    if count == self.max_restarts:
                        raise
                    _tell_of_restart(error, f"restart {count + 1} of {self.max_restarts}")
                else:
                    return

    def run_quietly(self, delays: Delays) -> dict[tuple[int, str], list[str]]:
        """Run the script in a Context of its own; return the lines of each rank and stream."""
        context = Context(**self.settings, delays=delays)
        kept = keep_lines(context.program)
        self._run_hidden(context)
        lines = kept()
        for rank, codes in delays.exit_codes.items():
            lines[rank or 0, "exit codes"] = [str(code) for code in sorted(codes)]
        return lines

    def run_timing(self, timing: TimingRun) -> TimingEnd:
        """Run the script in one timing of a search, in a Context of its own."""
        settings = self.settings | {"races": self.settings["races"] or "report", "timing": timing}
        context = Context(**settings)
        kept = keep_lines(context.program)
        failure: Exception | None = None
        try:
            self._run_hidden(context)
        except (OtherWayError, ConfigError, TimeLimitError):
            raise
        except Exception as error:  # noqa: BLE001 - any end is what is looked for
            failure = error
        found = (*context.races, *context.suspicions)
        return TimingEnd(
            end_of(failure), kept(), tuple(str(each).partition("\n")[0] for each in found)
        )

    def run_alone(self, probe: Probe) -> None:
        """Run the script on one rank, in a Context that a probe watches, without its output."""
        settings = self.settings | {"folding": probe.folding, "flight_recorder": None, "faults": ()}
        self._run_hidden(probe.watch(Context(**settings)))

    def run_to_locate(self, failure: SimrankError) -> None:
        """Run the script again, to raise its failure with the line at which ranks diverged.

        It returns where all ranks were followed already, or the second run ends otherwise.
        """
        settings = self.settings
        if settings["divergence"] or settings["checks"] != "default" or settings.get("folding"):
            return
        try:
            again = settings | {"divergence": True, "flight_recorder": None}
            self._run_hidden(Context(**again))
        except SimrankError as located:
            if _first_line(located) == _first_line(failure):
                text = "simrank: a second run looked for the line (--no-second-run: one run only)"
                add_note(located, text)
                raise located from None

    def _run_hidden(self, context: Context) -> None:
        hidden = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
        with redirect_stdout(hidden), redirect_stderr(hidden):
            self.run(context)


def _tell_of_restart(error: ProcessException, restart: str) -> None:
    """Print the failed ranks, and that all ranks restart."""
    errors = error.errors if isinstance(error, SpawnException) else {error.error_index: error}
    reported = [f"rank {rank}: {type(each).__name__}: {each}" for rank, each in errors.items()]
    first_lines = "; ".join(text.partition("\n")[0] for text in reported)
    typer.echo(f"simrank: {restart}, after {first_lines}", err=True)


# ---- a second start, with a package private that ranks cannot share ----

_MAX_STARTS = 10  # assumed: packages of one program whose state ranks write, and more
_STARTS = "SIMRANK_STARTS"  # Starts before this one; for the started process alone.


@dataclass(frozen=True)
class _Start:
    """The command of the process, for a second start.

    Attributes:
        command: Its command line.
        num_words_before_options: Of the command line, up to `run`.
        environment: Its variables.
        folder: Its working directory.
        count: How often it has started before.
        streams: Of the process, not of a rank.
    """

    command: list[str]
    num_words_before_options: int
    environment: dict[str, str]
    folder: str
    count: int
    streams: tuple[TextIO, TextIO]

    @classmethod
    def of_process(cls) -> _Start | None:
        """Return the start of this process; None if it does not run `simrank run` alone."""
        count, words = int(os.environ.pop(_STARTS, "0")), sys.argv[1:]
        if words[:1] != ["run"] or sys.orig_argv[-len(words) :] != words or count >= _MAX_STARTS:
            return None
        streams = sys.stdout, sys.stderr
        before = len(sys.orig_argv) - len(words) + 1
        return cls(sys.orig_argv, before, dict(os.environ), str(Path.cwd()), count, streams)

    def again(self, private: Sequence[str], package: str, conflict: str) -> None:
        """Replace this process by one in which a package is private, too.

        Args:
            private: The packages that are private in this run.
            package: The package.
            conflict: How the ranks conflict.
        """
        end = self.num_words_before_options
        options = [word for name in (*private, package) for word in ("--private", name)]
        command = [sys.executable, *self.command[1:end], *options, *self.command[end:]]
        stdout, stderr = self.streams
        stdout.flush()
        stderr.write(
            f"simrank: {conflict}\nsimrank: the run starts again with {package} private "
            f"(--private {package}: one start only; --no-second-run: none)\n"
        )
        stderr.flush()
        os.chdir(self.folder)
        os.execve(sys.executable, command, self.environment | {_STARTS: str(self.count + 1)})


@app.command(
    name="run",
    cls=LaunchCommand,
    epilog=EXIT_STATUS,
    context_settings={"allow_interspersed_args": False},
)
def run_command(
    command: typer.Context,
    program: Annotated[str, typer.Argument(help="A Python file; with -m a module.")],
    args: Annotated[list[str] | None, typer.Argument(help="Arguments of the program.")] = None,
    as_module: options.AsModule = False,
    cluster: options.ClusterName = "hgx_h100",
    nproc_per_node: options.NprocPerNode = None,
    nnodes: options.Nnodes = None,
    changed: Changed = None,
    standalone: options.Standalone = False,
    max_restarts: options.MaxRestarts = 0,
    seed: Annotated[int, typer.Option(help="Seed of all random choices.")] = 0,
    trace: Annotated[str | None, typer.Option(help="Write a timeline for Perfetto.")] = None,
    trace_ranks: Annotated[str | None, typer.Option(help="Only these ranks: 0,8.")] = None,
    html: Annotated[str | None, typer.Option(help="Write an HTML page of charts.")] = None,
    summary: Annotated[str, typer.Option(help="text, json or none.")] = "text",
    tokens_per_step: options.TokensPerStep = None,
    prefix: options.Prefix = "rank",
    tee: options.Tee = "0",
    redirects: options.Redirects = "0",
    log_dir: options.LogDir = None,
    local_ranks_filter: options.LocalRanksFilter = None,
    torchrun_values: options.TorchrunValues = None,
    torchrun_flags: options.TorchrunFlags = False,
    checks: options.ChecksLevel = "default",
    races: options.Races = None,
    strict: options.IsStrict = None,
    shape_only: Annotated[bool, typer.Option(help="Large device tensors have no values.")] = False,
    unknown: options.Unknown = None,
    routing: options.RoutingText = None,
    fold: options.Fold = "auto",
    default_device: options.DefaultDevice = None,
    on_failure: options.OnFailure = "abort",
    carrier: options.Carrier = "auto",
    private: options.Private = None,
    flight_recorder_folder: options.FlightRecorderFolder = None,
    divergence: options.FollowsDivergence = None,
    replicas: options.ComparesReplicas = None,
    second_run: options.RunsTwice = True,
    compute_time: options.ComputeTime = "roofline",
    devices: options.CudaDevices = None,
    faults: Annotated[str | None, typer.Option(help="YAML of faults to inject.")] = None,
    seeds: options.Seeds = None,
    delays: options.DelaysText = None,
    every_timing: options.EveryTiming = False,
    timing: options.TimingText = None,
    max_delay: Annotated[str, typer.Option(help="Longest delay of a seed.")] = "1 ms",
    watchdog: options.Watchdog = None,
    time_limit: options.TimeLimit = None,
    full_traceback: options.FullTraceback = False,
) -> None:
    """Run PROGRAM once per simulated rank, in one process, with torchrun's options."""
    built = _checked_cluster(command.params)
    settings = _settings(command.params, built)
    num_ranks, max_ps = options.num_ranks(built, nproc_per_node), _max_delay_ps(max_delay)
    how = (as_module, max_restarts, tokens_per_step, second_run, _Start.of_process())
    job = _Job(program, args or [], num_ranks, settings, *how)
    traced = traced_ranks(trace, trace_ranks, num_ranks)
    if every_timing or seeds is not None:
        _explore(command, job, None if every_timing else seeds, max_ps)
        return
    recorder, drawn = flight_recorder(flight_recorder_folder, checks), _delays(delays, max_ps)
    settings |= {"flight_recorder": recorder, "divergence": divergence, "delays": drawn}
    settings["timing"] = _timing(timing)
    outputs = Outputs(prefix, tee, redirects, log_dir, local_ranks_filter)
    show = partial(_run_shown, job, trace, traced, summary)
    with _late_options_named(command, job):
        _run_folded(job, fold, partial(_run_written, job, outputs, html, show))
    _compare_hash_seeds(command, job)


def _compare_hash_seeds(command: typer.Context, job: _Job) -> None:
    """Compare the calls of a finished run with those under another hash seed, if all is checked."""
    recorder = job.settings["flight_recorder"]
    if job.settings["checks"] == "all" and job.second_run and recorder is not None:
        words = _given(command, job, _OF_FIRST_RUN)
        remark = check_hash_seeds(recorder, words, job.num_ranks)
        if remark is not None:
            typer.echo(f"simrank: {remark}", err=True)


def _checked_cluster(given: Mapping[str, Any]) -> Cluster:
    """Return the cluster, once choices, the files to write and the program are checked."""
    check_words(**{name: given[name] for name in CHOICES_OF if name in given})
    check_writable(given["trace"], given["html"])
    options.check_program(given["program"], as_module=given["as_module"])
    changed = with_changes(given["cluster"], given["changed"])
    return load_cluster(changed, options.num_nodes(given["nnodes"]))


_GIVEN = {  # Settings of a Context as options give them, by the option's name.
    "seed": "seed", "checks": "checks", "races": "races", "strict": "strict",
    "on_failure": "on_failure", "watchdog": "watchdog_s", "time_limit": "time_limit_s",
    "carrier": "carrier", "compute_time": "compute_time", "replicas": "replicas",
}  # fmt: skip


def _settings(given: Mapping[str, Any], built: Cluster) -> dict[str, Any]:
    """Return the settings of a Context that the options state, but for its recorders."""
    shape_only = given["shape_only"]
    settings = {setting: given[option] for option, setting in _GIVEN.items()}
    return settings | {
        "cluster": built,
        "data": not shape_only,
        "unknown": options.stated_values(given["unknown"], given["routing"], shape_only=shape_only),
        "private": given["private"] or None,
        "faults": given["faults"] or (),
        "cuda_devices": options.cuda_devices(given["devices"], has_values=not shape_only),
        "default_device": _device(built, given["default_device"]),
    }


@contextmanager
def _late_options_named(command: typer.Context, job: _Job) -> Iterator[None]:
    """Print the options of simrank that went to the program, if its run fails in the block."""
    try:
        yield
    except SimrankError:
        own = {name for parameter in command.command.params for name in parameter.opts}
        late = [word for word in job.args if word.partition("=")[0] in own]
        if late:
            words = ", ".join(late)
            text = f"simrank: {words} went to the program: options of simrank go before it"
            typer.echo(text, err=True)
        raise


def _run_folded(job: _Job, fold: str, run: Callable[[], None]) -> None:
    """Run the script with folded ranks; again, with more or all, if they do not fit or differ."""
    settings = job.settings
    found = folding_of(job.run_alone, job.num_ranks, fold, settings)
    settings["folding"] = found.folding
    job.folded.append(found)
    is_done = False
    while not is_done:
        tried = settings["folding"]
        try:
            run()
        except SimrankError as error:
            if tried is None or not unfolds(error, fold):
                raise
            settings["folding"] = None
            show_limits(found, job.num_ranks)
        is_done = settings["folding"] is tried
    sys.stdout.flush()  # Here, where a closed pipe ends it quietly.


def _is_final(job: _Job, context: Context) -> bool:
    """Return whether the ranks that ran represent the others, by all their comparisons.

    Otherwise the settings have the ranks that run, from the start.
    """
    if context.comparisons is None or not job.folded:
        return True
    found = job.folded.pop().after_run(context.comparisons)
    for line in found.lines:
        typer.echo(f"simrank: {line}", err=True)
    if found.folding is not None and found.folding.running == job.settings["folding"].running:
        return True
    job.settings["folding"] = found.folding
    which = "all ranks run" if found.folding is None else found.folding.describe()
    typer.echo(f"simrank: again, from the start: {which}", err=True)
    if found.folding is None:
        show_limits(found, job.num_ranks)
    return False


def _run_written(
    job: _Job, outputs: Outputs, html: str | None, show: Callable[[Context], None]
) -> None:
    """Run the script once, with its lines and its page where the options have them."""
    context = Context(**job.settings)
    if job.second_run and job.start is not None:
        context.program.local[RESTART] = partial(job.start.again, context.private)
    num_local = context.cluster.devices_per_node
    with outputs.open(job.num_ranks, num_local) as output, _page_kept(html, job, context):
        set_output(context.program, output)
        if outputs.log_dir is not None:
            context.program.local[ERROR_FILES] = outputs.log_dir
        show(context)


def _show_surroundings(summary: str) -> None:
    """Name variables of torch and NCCL by their effect."""
    if summary != "text":
        return
    variables = variables_text(os.environ)
    if variables is not None:
        typer.echo(variables, err=True)


@contextmanager
def _page_kept(path: str | None, job: _Job, context: Context) -> Iterator[None]:
    """Write the page of the run within the block, failed ones included."""
    if path is None:
        yield
        return
    from simrank.trace.run_page import LinkBytes, Seen, run_page  # noqa: PLC0415 - few runs need it

    added, links, partial, report = Summary(context.folding), LinkBytes(), None, None
    context.observe(added)
    context.observe(links)
    try:
        yield
    except BaseException as error:
        partial = why_it_ended(error)
        report = failure_text(error) if isinstance(error, SimrankError) else None
        raise
    finally:
        program = shlex.join([job.program, *job.args])
        cluster = context.cluster
        facts = {
            "simrank": simrank.__version__,
            "seed": str(job.settings["seed"]),
            "cluster": cluster.name,
            "ranks": str(job.num_ranks),
        }
        if not_run := added.not_run():
            facts["not run"] = not_run_text(not_run)
        seen = Seen(
            added, links, context.now_ps, _peaks(context, job.num_ranks), cluster.provenance
        )
        write_text(path, run_page(f"simrank run: {program}", facts, seen, partial, report))


def _peaks(context: Context, num_ranks: int) -> dict[int, PeakMemory]:
    """Return the peak memory of each device of a rank, or in use."""
    memories = {device.index: device.memory for device in context.devices}
    return {
        index: PeakMemory(
            memory.peak_bytes,
            memory.peak_by_kind,
            memory.peak_reserved_bytes,
            memory.totals_bytes,
            memory.total_bytes,
        )
        for index, memory in memories.items()
        if index < num_ranks or memory.peak_bytes
    }


def _run_shown(
    job: _Job, trace: str | None, trace_ranks: list[int] | None, summary: str, context: Context
) -> None:
    """Run the script once, and write its timeline and summary."""
    _show_surroundings(summary)
    timeline, added = Timeline(trace_ranks), Summary(context.folding)
    context.observe(added)
    if trace is not None:
        context.observe(timeline)
    begin_s = process_time()
    try:
        job.run(context)
    except SimrankError as error:
        if _is_of_reader(error):
            raise BrokenPipeError(EPIPE, "the output pipe is closed") from None
        _show_found(context, error)
        show_records(context.recorder)
        if job.second_run and _ranks_diverged(error) and process_time() - begin_s < _SHORT_S:
            job.run_to_locate(error)
        raise
    finally:
        if trace is not None:
            timeline.write(trace)
    if _is_final(job, context):
        _show_summary(job, summary, added, context)


def _show_summary(job: _Job, summary: str, added: Summary, context: Context) -> None:
    """Print what the run took, and what was found."""
    rates = Rates(peak_flops(context.cluster.device, "bfloat16"), job.tokens_per_step)
    facts = (added, context.now_ps, _peaks(context, job.num_ranks), context.cluster.provenance)
    if summary == "json":
        from simrank.planning import inputs  # noqa: PLC0415 - few runs need it

        found: dict[str, Any] = {"findings": [line.strip() for line in context.findings]}
        found |= inputs.facts()
        typer.echo(json.dumps(summary_json(*facts, rates) | found), err=True)
    elif summary == "text":
        for line in (summary_text(*facts, rates), *context.findings, *context.notes):
            typer.echo(line, err=True)
        show_records(context.recorder)
    else:  # What was asked for by an option of its own is no part of the summary.
        for finding in (*context.races, *context.suspicions):
            typer.echo(str(finding), err=True)


def _ranks_diverged(failure: SimrankError) -> bool:
    """Return whether ranks made different calls: the run hung, or calls did not match."""
    errors = failure.errors.values() if isinstance(failure, SpawnException) else (failure,)
    return any(isinstance(each, DeadlockError | CollectiveMismatchError) for each in errors)


def _first_line(failure: SimrankError) -> str:
    return str(failure).partition("\n")[0]


def _is_of_reader(failure: SimrankError) -> bool:
    """Return whether ranks failed only at a closed pipe: `simrank run ... | head`."""
    errors = failure.errors.values() if isinstance(failure, SpawnException) else ()
    return is_unread() and bool(errors) and all(isinstance(e, BrokenPipeError) for e in errors)


def _show_found(context: Context, failure: SimrankError) -> None:
    """Print findings before a failure, without the failure itself."""
    text = str(failure)
    found = [str(race) for race in context.races if str(race).partition("\n")[0] not in text]
    found += context.suspicions
    if found:
        typer.echo("\n".join(["simrank: found before the failure:", *found]), err=True)


def _refuse_beside(command: typer.Context, own: str, *names: str) -> None:
    """Refuse options that would not be used beside another one."""
    for name in names:
        if _is_given(command, name):
            raise ConfigError(ConfigProblem("command line", None, f"--{name}", f"no {own}", "both"))


def _explore(command: typer.Context, job: _Job, num_seeds: int | None, max_ps: int) -> None:
    """Run the script under many seeds; print the first failure, shrunk, with its replay.

    Without a number of seeds: in every timing.
    """
    if num_seeds is None:
        own = "--every-timing, which goes through every order"
        _refuse_beside(command, own, "timing", "delays", "seeds")
        _search_every_timing(command, job)
        return
    _refuse_beside(command, "--seeds, which draws delays and orders", "timing", "delays")
    # What fails without any delay is no matter of order.
    comparison = explore.Comparison(job.run_quietly, job.settings["seed"])
    with progress_bar() as progress:
        task = progress.add_task("", total=num_seeds)

        def show(what: str, done: int, total: int) -> None:
            progress.update(task, description=what, completed=done, total=total)

        search = partial(explore.search, max_delay_ps=max_ps, on_progress=show)
        failure = search(comparison.see, num_seeds)
        found, differing = failure, comparison.differing
        if failure is None and differing:  # Shrunk as failures are.
            found = search(comparison.check, 1, first_seed=differing[0])
        if found is None and not _is_given(command, "max_delay"):
            _draw_orders(command, job, num_seeds, partial(show, "other orders"))
    if failure is None:
        bound = units.format_time(max_ps)
        typer.echo(f"simrank: no failure in {num_seeds} seed(s), delays up to {bound}", err=True)
        for line in comparison.describe_orders(bound):
            typer.echo(f"simrank: {line}", err=True)
    if found is not None:
        if failure is None:
            found = replace(found, num_seeds=num_seeds)
            others = f"{len(differing)} of {num_seeds} seed(s) print something else"
            error, described = f"simrank: {others}: {found.error}", found.describe("differs")
        else:
            error, described = failure_text(found.error), str(found)
        typer.echo(f"{error}\nsimrank: {described}", err=True)
        typer.echo(f"to replay: {_replay(command, job, '--delays', str(found.delays))}", err=True)
    if failure is not None:
        raise typer.Exit(FAILED)


def _draw_orders(
    command: typer.Context, job: _Job, num_runs: int, on_progress: Callable[[int, int], None]
) -> None:
    """Run the script with drawn orders of what timing can decide, however far apart it is.

    Raises:
        typer.Exit: A run failed, as is then printed.
    """
    found = draw(job.run_timing, num_runs, on_progress=lambda done: on_progress(done, num_runs))
    if found is not None:
        typer.echo(f"simrank: fails in another order: {found.seen.end}", err=True)
        typer.echo(f"to replay: {_replay(command, job, '--timing', found.replay)}", err=True)
        raise typer.Exit(FAILED)


def _search_every_timing(command: typer.Context, job: _Job) -> None:
    """Run the script in every timing; print whether all end the same, and replays if not."""

    def replay(timing: str) -> str:
        return _replay(command, job, *(["--timing", timing] if timing else []))

    if not search_every_timing(job.run_timing, job.num_ranks, replay):
        raise typer.Exit(FAILED)


def _timing(text: str | None) -> TimingRun | None:
    if text is None:
        return None
    try:
        return TimingRun.parse(text)
    except ValueError:
        expected = "what --every-timing has printed, such as 0.2.1@train.py:17"
        raise ConfigError(ConfigProblem("command line", None, "--timing", expected, text)) from None


def _replay(command: typer.Context, job: _Job, *options: str) -> str:
    """Return the command line that runs the same once, with delays or a timing."""
    return shlex.join(["simrank", "run", *options, *_given(command, job)])


def _is_given(command: typer.Context, name: str) -> bool:
    source = command.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _given(command: typer.Context, job: _Job, left_out: Collection[str] = ()) -> list[str]:
    """Return the options that describe the run, the program and its arguments."""
    words: list[str] = []
    for parameter in command.command.params:
        name = parameter.name or ""
        if name in _NO_REPLAY or name in left_out or not _is_given(command, name):
            continue
        value = command.params[name]
        for each in value if isinstance(value, list) else [value]:
            words += [parameter.opts[0]] if each is True else [parameter.opts[0], str(each)]
    return [*words, job.program, *job.args]


def _delays(text: str | None, max_ps: int) -> Delays | None:
    if text is None:
        return None
    try:
        return Delays.parse(text, max_ps=max_ps)
    except ValueError:
        expected = "a seed from 1, with points such as 17:h3.12,w0.4"
        raise ConfigError(ConfigProblem("command line", None, "--delays", expected, text)) from None


def _max_delay_ps(text: str) -> int:
    try:
        max_ps = units.parse_time(text)
    except ValueError:
        max_ps = 0
    if max_ps < 1:
        expected = "a time above zero such as '1 ms'"
        raise ConfigError(ConfigProblem("command line", None, "--max-delay", expected, text))
    return max_ps


def _device(cluster: Cluster, index: int | None) -> int | None:
    """Return the current device of every rank at first, which the cluster has."""
    if index is not None and index >= cluster.num_devices:
        expected = f"0 to {cluster.num_devices - 1}, a device of {cluster.name}"
        option, got = "--default-device", str(index)
        raise ConfigError(ConfigProblem("command line", None, option, expected, got))
    return index
