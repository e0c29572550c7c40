"""`simrank torch`: what torch programs need on this machine."""

from __future__ import annotations

import importlib.util
from typing import Any

import typer

from simrank.cli.common import EXIT_STATUS, app
from simrank.errors import UnsupportedError

torch_app = typer.Typer(no_args_is_help=True, help="CUDA devices for CPU builds of torch.")
app.add_typer(torch_app, name="torch")


@torch_app.callback()
def group() -> None:
    """CUDA devices for CPU builds of torch."""


@torch_app.command(epilog=EXIT_STATUS)
def build() -> None:
    """Build the CUDA devices of simulated ranks now, for the installed torch."""
    library = _library()
    library.load(lambda line: typer.echo(line, err=True))
    typer.echo(f"torch {library.torch.__version__}: {library.installed_path()}")


def _library() -> Any:  # noqa: ANN401 - a module that needs torch
    """Return what builds and loads the library.

    Raises:
        UnsupportedError: torch is not installed.
    """
    if importlib.util.find_spec("torch") is None:
        raise UnsupportedError("torch is not installed\n  to fix: pip install torch")
    return importlib.import_module("simrank.torch.cuda.library")
