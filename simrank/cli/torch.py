"""`simrank torch`: the C++ library of torch programs on this machine."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path  # noqa: TC003 - Typer reads the annotation
from typing import Annotated, Any

import typer

from simrank.cli.common import EXIT_STATUS, app
from simrank.errors import UnsupportedError

torch_app = typer.Typer(no_args_is_help=True, help="Simulated CUDA devices of torch.")
app.add_typer(torch_app, name="torch")


@torch_app.callback()
def group() -> None:
    """Simulated CUDA devices of torch."""


@torch_app.command(epilog=EXIT_STATUS)
def build(
    into: Annotated[
        Path | None, typer.Option("--into", help="Copy it to FOLDER/<release of torch>/, too.")
    ] = None,
) -> None:
    """Build the CUDA devices of simulated ranks now, for the installed torch."""
    library = _library()
    library.load(lambda line: typer.echo(line, err=True))
    path = library.installed_path()
    if into is not None:
        target = into / library.prebuilt_path().parent.name / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        path = shutil.copy2(path, target)
    typer.echo(f"torch {library.torch.__version__}: {path}")


def _library() -> Any:  # noqa: ANN401 - a module that needs torch
    """Return the module that builds and loads the library.

    Raises:
        UnsupportedError: torch is not installed.
    """
    if importlib.util.find_spec("torch") is None:
        raise UnsupportedError("torch is not installed\n  to fix: pip install torch")
    return importlib.import_module("simrank.torch.cuda.library")
