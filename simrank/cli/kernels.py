"""`simrank kernels`: what of Triton's language is emulated."""

from __future__ import annotations

import sys

import typer
from rich.console import Console
from rich.table import Table

from simrank.cli.common import EXIT_STATUS, app
from simrank.errors import UnsupportedError

group = typer.Typer(
    help="Triton kernels: what of the language is emulated.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(group, name="kernels")


@group.callback()
def _kernels() -> None:
    """Triton kernels: what of the language is emulated."""


@group.command(epilog=EXIT_STATUS)
def coverage() -> None:
    """List every name of triton.language with how it is emulated."""
    try:
        import triton  # noqa: PLC0415 - an extra
    except ImportError:
        raise UnsupportedError("triton is not installed\n  to fix: pip install triton") from None
    from simrank.kernels import coverage as names  # noqa: PLC0415 - it needs triton

    states = names.coverage()
    shown = Table(box=None, pad_edge=False)
    shown.add_column("triton.language", no_wrap=True)
    shown.add_column("state", no_wrap=True)
    for name, state in sorted(states.items()):
        shown.add_row(name, state)
    Console(width=None if sys.stdout.isatty() else 160).print(shown)
    not_there = (names.REFUSED_BY_NAME, names.MISSING)
    num_covered = sum(state not in not_there for state in states.values())
    counts = [
        f"{sum(own == state for own in states.values())} {state}"
        for state in dict.fromkeys(
            (names.NATIVE, names.OWN_SOURCE, names.TYPE_OR_CLASS, *not_there)
        )
    ]
    typer.echo(f"{num_covered} of {len(states)} names of triton {triton.__version__}: ", nl=False)
    typer.echo(", ".join(counts))
