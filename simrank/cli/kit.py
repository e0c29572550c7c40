"""`simrank compare --kit`: a script with predictions, which others run on their GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from simrank.cli.common import progress_bar
from simrank.config.files import write_text
from simrank.config.yaml_source import read_text
from simrank.errors import ConfigError, ConfigProblem
from simrank.validate.kit.assemble import Own, script
from simrank.validate.kit.predictions import CLUSTERS, predicted, steps

if TYPE_CHECKING:
    from collections.abc import Sequence

_WORLDS = (2, 4, 8)  # GPUs that run collectives together.


def write_kit(
    gpus: int,
    clusters: Sequence[str],
    out: str | None,
    program: str | None = None,
    kernels: str | None = None,
) -> None:
    """Write a kit for as many GPUs to a file, or to stdout.

    Args:
        gpus: The most GPUs that it uses together.
        clusters: Names or files; none: all whose GPUs the kit knows.
        out: The file; None: stdout.
        program: FILE.py:FUNCTION to run and compare as well.
        kernels: A file of kernel cases, likewise.

    Raises:
        ConfigError: A file cannot be read, or no function is named.
    """
    own = _own(program, kernels)
    asked = clusters or CLUSTERS
    worlds = [ranks for ranks in _WORLDS if ranks <= gpus]
    with progress_bar() as bar:
        task = bar.add_task("", total=steps(asked))
        done = iter(range(steps(asked)))

        def on_step(title: str) -> None:
            bar.update(task, description=title, completed=next(done))

        text = script(predicted(asked, worlds, on_step, own), own)
    if out is None:
        typer.echo(text, nl=False)
    else:
        write_text(out, text)
        typer.echo(
            f"{out}: {len(text) / 1024:.0f} KiB; run it on a machine with GPUs: python {out}"
        )


def _own(program: str | None, kernels: str | None) -> Own:
    """Return the texts of the author's files.

    Raises:
        ConfigError: A file cannot be read, or no function is named.
    """
    path, colon, function = (program or "").rpartition(":")
    if program and not (colon and function.isidentifier()):
        expected = "FILE.py:FUNCTION, a function of rank and number of ranks"
        raise ConfigError(ConfigProblem("command line", None, "program", expected, program))
    return Own(
        read_text(Path(path)) if program else "",
        function if program else "",
        read_text(Path(kernels)) if kernels else "",
    )
