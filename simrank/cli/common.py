"""What the commands share: the application, exit statuses, and checks of options."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from typer.core import TyperGroup

import simrank
from simrank.config.quantity import closest
from simrank.errors import ConfigError, ConfigProblem

EXIT_STATUS = "exit status: 0 finished; 1 program failed; 2 bad usage or config; 3 bug in simrank"
FAILED, BAD_CONFIG, BUG = 1, 2, 3


class Commands(TyperGroup):
    """The commands; who names a file where a command stands is told which one to write."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401 - typer's own
        """As typer does."""
        name, near = args[0], closest(args[0], self.commands)
        if name not in self.commands and near is None and not name.startswith("-"):
            command = _COMMAND_BY_SUFFIX.get(Path(name).suffix)
            if command is not None:
                ctx.fail(f"No such command '{name}'. To run it: simrank {command} {name}")
        return super().resolve_command(ctx, args)


_COMMAND_BY_SUFFIX = {".py": "run", ".yaml": "bench", ".yml": "bench"}

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


def parse_ranks(text: str | None, option: str = "--trace-ranks") -> list[int] | None:
    """Return ranks given as `0,8`."""
    if text is None:
        return None
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        problem = ConfigProblem("command line", None, option, "ranks such as 0,8", text)
        raise ConfigError(problem)
    return [int(part) for part in parts]


def progress_bar() -> Progress:
    """Return a progress bar on stderr, which shows nothing where that is no terminal.

    It says the time that has passed, and the time left at the mean speed so far.
    """
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


def why_it_ended(error: BaseException) -> str:
    """Return why a run ended, in one line."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    text = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def write_text(path: str, text: str) -> None:
    """Write a file, with the same bytes on every system."""
    Path(path).write_text(text, encoding="utf-8", newline="")


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
