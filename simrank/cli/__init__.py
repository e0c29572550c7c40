"""The command line; `main` runs it, `common.COMMANDS` names the module of each command."""

from __future__ import annotations

import os
import sys
import traceback
from functools import cache
from typing import TYPE_CHECKING, Any

import typer
import typer.main

from simrank.cli.common import BAD_CONFIG, BUG, FAILED, app
from simrank.errors import ConfigError, SimrankError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["app", "main"]


def main(args: list[str] | None = None) -> None:
    """Run the command line and exit with its status; see `EXIT_STATUS`."""
    _open_closed_streams()
    sys.exit(_guarded(lambda: _commands()(args=args, prog_name="simrank", standalone_mode=True)))


def _open_closed_streams() -> None:
    """Open the null device for each closed stream (`>&-`): files would get its descriptor.

    A new descriptor is the lowest free one: opened in this order, each stream gets its own.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - kept


@cache
def _commands() -> Any:  # noqa: ANN401 - typer's
    """Build the commands once for all calls of `main`; each is built at its first use."""
    return typer.main.get_command(app)


def _say_where_it_was(end: BaseException | None) -> None:
    """Show the notes of the Ctrl-C that typer made a status of: where each rank was."""
    while end is not None and not isinstance(end, KeyboardInterrupt):
        end = end.__cause__ or end.__context__
    for note in getattr(end, "__notes__", ()):
        typer.echo(note, err=True)


def _failure_text(error: SimrankError) -> str:
    """Return the report of a failed run, which stands before the frames of its ranks."""
    from simrank.multiprocessing.tracebacks import failure_text  # noqa: PLC0415 - not at each prompt

    return failure_text(error)


def _fold_frames_again() -> None:
    """Take back `--full-traceback`: further commands may run in this process."""
    tracebacks = sys.modules.get("simrank.multiprocessing.tracebacks")
    if tracebacks is not None:
        tracebacks.shows_all_frames[0] = False


def _guarded(command: Callable[[], Any]) -> int:
    """Run a command; errors of the user's become one message and a status, never a traceback."""
    try:
        command()
    except ConfigError as error:
        typer.echo(str(error), err=True)
        return BAD_CONFIG
    except SimrankError as error:
        typer.echo(_failure_text(error), err=True)
        return FAILED
    except SystemExit as error:
        _say_where_it_was(error)
        return error.code if isinstance(error.code, int) else 0
    except OSError as error:
        typer.echo(f"simrank: {error}", err=True)
        return FAILED
    except Exception as error:  # noqa: BLE001 - shown whole, with a status that says whose fault it is
        why = "".join(traceback.format_exception_only(error)).rstrip()
        typer.echo(f"simrank: this is a bug in simrank, please report it: {why}", err=True)
        typer.echo(traceback.format_exc(), err=True)
        return BUG
    finally:
        _fold_frames_again()
    return 0
