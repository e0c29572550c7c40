"""Shared parts of the commands: application, exit statuses, checks of options."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

import simrank
from simrank.cli.completion import described
from simrank.errors import ConfigError, ConfigProblem, SpawnException
from simrank.errors.base import text_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from rich.progress import Progress

EXIT_STATUS = "exit status: 0 finished; 1 program failed; 2 bad usage or config; 3 bug in simrank"
FAILED, BAD_CONFIG, BUG = 1, 2, 3


class Command(NamedTuple):
    """A command that is imported at its use, for a fast start-up.

    Attributes:
        help: One line for the list of commands.
        modules: The modules of this package that define it; its own name if empty.
    """

    help: str
    modules: tuple[str, ...] = ()


COMMANDS = {
    "run": Command("Run a program on simulated ranks, as torchrun does."),
    "bench": Command("Benchmark collectives, with nccl-tests' options."),
    "plan": Command("Find the fastest layout of a training command."),
    "equal": Command("Compare layouts of a program with its single program."),
    "predict": Command("Predict times of a collective with 90% intervals."),
    "predict-gemm": Command("Predict times of matrix products.", ("predict",)),
    "predict-attention": Command("Predict times of attention.", ("predict",)),
    "explain": Command("Explain a predicted time and NCCL's choice."),
    "tune": Command("Write a tuner configuration for NCCL."),
    "accuracy": Command("Compare predictions with measured tables."),
    "calibrate": Command("Fit NCCL's cost law to a measured table."),
    "compare": Command("Compare a simulated run with real processes."),
    "kernels": Command("Cover, profile and check Triton kernels."),
    "prove": Command("Prove that an algorithm computes its collective."),
    "convert": Command("Convert topologies, graphs and algorithms."),
    "diagnose": Command("Explain a real job's hang from its flight records."),
    "replay": Command("Replay a trace on a simulated cluster."),
    "check": Command("Validate a cluster or benchmark file.", ("configs",)),
    "clusters": Command("List the built-in clusters.", ("configs",)),
    "schema": Command("Write JSON Schemas of the YAML files.", ("configs",)),
    "torch": Command("Build the simulated CUDA devices of torch."),
}


class Commands(TyperGroup):
    """The commands, imported one by one; a file in a command's place names the command to use."""

    def __init__(self, **attributes: Any) -> None:  # noqa: ANN401 - typer's own
        super().__init__(**attributes)
        # Names of all, for lists and suggestions; those that were imported are in it.
        self.commands = {**dict.fromkeys(COMMANDS), **self.commands}  # type: ignore[dict-item]
        self._is_listing = False

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401 - likewise
        """Import a command and return it; None if there is none of that name."""
        if cmd_name not in COMMANDS:
            return None
        command = COMMANDS[cmd_name]
        if self._is_listing:
            return TyperCommand(cmd_name, help=command.help)
        if ctx is not None and ctx.resilient_parsing:  # A shell asks: words suffice.
            return described(cmd_name)
        if self.commands[cmd_name] is None:
            for module in command.modules or (cmd_name,):
                import_module(f"simrank.cli.{module}")
            imported: Any = typer.main.get_command(app)
            self.commands[cmd_name] = imported.commands[cmd_name]
        return self.commands[cmd_name]

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - likewise
        """Write the list of commands; none is imported."""
        with self._listing():
            super().format_commands(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:  # noqa: ANN401 - likewise
        """Complete the name of a command; none is imported."""
        with self._listing():
            return super().shell_complete(ctx, incomplete)

    @contextmanager
    def _listing(self) -> Iterator[None]:
        self._is_listing = True
        yield
        self._is_listing = False

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401 - likewise
        """Find a command as typer does, with a hint where a file is named."""
        name = args[0]
        if name not in COMMANDS and not get_close_matches(name, COMMANDS) and name[:1] != "-":
            command = _command_of(name)
            if command is not None:
                ctx.fail(f"No such command '{name}'. To run it: simrank {command} {name}")
        return super().resolve_command(ctx, args)


def _command_of(name: str) -> str | None:
    """Return the command that runs a file, by its suffix and, of YAML, by its keys."""
    if Path(name).suffix not in (".yaml", ".yml"):
        return "run" if Path(name).suffix == ".py" else None
    from simrank.config.plan import is_plan  # noqa: PLC0415 - not at each prompt
    from simrank.config.yaml_source import read_yaml  # noqa: PLC0415 - likewise

    return "plan" if Path(name).is_file() and is_plan(read_yaml(name).data) else "bench"


app = typer.Typer(
    name="simrank",
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Run multi-GPU programs on simulated clusters, with real numbers and simulated time.",
    epilog=EXIT_STATUS,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"simrank {simrank.__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Run multi-GPU programs on simulated clusters, with real numbers and simulated time."""


def parse_ranks(
    text: str | None, option: str = "--trace-ranks", num_ranks: int | None = None
) -> list[int] | None:
    """Return ranks given as `0,8`.

    Raises:
        ConfigError: The text is no list of ranks, or one of them is not below `num_ranks`.
    """
    if text is None:
        return None
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        problem = ConfigProblem("command line", None, option, "ranks such as 0,8", text)
        raise ConfigError(problem)
    ranks = [int(part) for part in parts]
    missing = [str(rank) for rank in ranks if num_ranks is not None and rank >= num_ranks]
    if missing:
        expected = f"ranks of the run, 0 to {(num_ranks or 1) - 1}"
        raise ConfigError(ConfigProblem("command line", None, option, expected, ",".join(missing)))
    return ranks


def traced_ranks(trace: str | None, text: str | None, num_ranks: int) -> list[int] | None:
    """Return the ranks of --trace-ranks, for a timeline that --trace writes.

    Raises:
        ConfigError: There is no --trace, the text is no list of ranks, or the run lacks one.
    """
    if trace is None and text is not None:
        to_fix = "name the timeline's file, --trace FILE, or leave out --trace-ranks"
        expected = "--trace FILE with it"
        raise ConfigError(
            ConfigProblem("command line", None, "--trace-ranks", expected, text, to_fix)
        )
    return parse_ranks(text, num_ranks=num_ranks)


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """End a block or a function at SIGTERM as at Ctrl-C: files are removed, finished rows kept.

    Raises:
        SystemExit: SIGTERM arrived; the status is 143, as shells have it.
    """
    arrived: list[int] = []

    def interrupt(number: int, _frame: FrameType | None) -> None:
        arrived.append(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        if arrived:
            raise SystemExit(128 + signal.SIGTERM) from None
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def progress_bar() -> Progress:
    """Return a progress bar on stderr, which shows nothing where that is no terminal.

    It says the time that has passed, and the time left at the mean speed so far.
    """
    from rich.console import Console  # noqa: PLC0415 - not at every prompt
    from rich.progress import (  # noqa: PLC0415 - likewise
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(file=sys.stderr)  # This one, even while a program's output is kept.
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        speed_estimate_period=float("inf"),
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
        disable=not console.is_terminal,
    )


def terminal_width() -> int | None:
    """Return the width of the terminal; None in a pipe or file."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def why_it_ended(error: BaseException) -> str:
    """Return why a run ended, in one line."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, SpawnException) and error.error_index in error.errors:
        cause = why_it_ended(error.errors[error.error_index])
        return f"{type(error).__name__}: rank {error.error_index}: {cause}"
    text = text_of(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def check_writable(*paths: str | None) -> None:
    """Look before a long run whether its results can be written.

    Raises:
        ConfigError: One cannot.
    """
    for path in filter(None, paths):
        got = _why_not_writable(Path(path))
        if got is not None:
            raise ConfigError(ConfigProblem(path, None, "", "a file that can be written", got))


def _why_not_writable(path: Path) -> str | None:
    folder = path.absolute().parent
    if not folder.is_dir():
        return f"no folder {folder}"
    if path.is_dir():
        return "a folder"
    if not os.access(path if path.exists() else folder, os.W_OK):
        return "no permission to write it"
    return None
