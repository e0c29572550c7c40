"""`simrank kernels`: coverage of Triton's language, and profiles of kernels."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from simrank.cli.common import EXIT_STATUS, app, check_writable
from simrank.config.files import write_text
from simrank.context import Context
from simrank.errors import ConfigError, ConfigProblem, UnsupportedError
from simrank.multiprocessing.script import names_of, program_imports, run_script
from simrank.multiprocessing.spawn import spawn_in
from simrank.trace.kernel_report import report_html, report_text

if TYPE_CHECKING:
    from collections.abc import Callable

group = typer.Typer(
    help="Triton kernels: emulated names, cost reports and checks.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(group, name="kernels")


@group.callback()
def _kernels() -> None:
    """Triton kernels: emulated names, cost reports and checks."""


@group.command(epilog=EXIT_STATUS)
def coverage() -> None:
    """List the names of triton.language and how each is emulated."""
    triton = _triton()
    from simrank.kernels.source import coverage as names  # noqa: PLC0415 - it needs triton

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


@group.command(epilog=EXIT_STATUS)
def report(
    target: Annotated[
        str, typer.Argument(help="Program that launches kernels: FILE or FILE::FUNCTION.")
    ],
    cluster: Annotated[str, typer.Option(help="Cluster name or file.")] = "hgx_h100",
    nproc: Annotated[
        int, typer.Option("--nproc-per-node", "--nproc_per_node", help="Number of ranks.")
    ] = 1,
    html: Annotated[str | None, typer.Option(help="Write an HTML page instead of text.")] = None,
) -> None:
    """Run a script or one of its functions, and report the cost of each kernel line."""
    _triton()
    from simrank.kernels.machine.profile import collected  # noqa: PLC0415 - it needs triton

    check_writable(html)
    file, _, name = target.partition("::")
    folder = Path(file).absolute().parent
    with collected() as profiles, Context(cluster) as context, program_imports(folder):
        if name:
            spawn_in(context.program, _function(file, name, context), (), nproc, is_users=False)
        else:
            run_script(context.program, file, [], nproc)
    if not profiles:
        problem = ConfigProblem(
            "command line", None, "target", "a program that launches kernels", target
        )
        raise ConfigError(problem)
    if html is None:
        typer.echo(report_text(profiles))
    else:
        write_text(html, report_html(profiles))


def _triton() -> Any:  # noqa: ANN401 - the module
    try:
        import triton  # noqa: PLC0415 - an extra
    except ImportError:
        raise UnsupportedError("triton is not installed\n  to fix: pip install triton") from None
    return triton


def _function(file: str, name: str, context: Context) -> Callable[[int], None]:
    """Return a rank's call of a file's function, with the arguments that it names.

    Raises:
        ConfigError: There is no such file or function, or it takes unknown arguments.
        SimrankError: The file raised.
    """
    function = names_of(file).get(name)
    if not callable(function):
        expected = f"a function of {file}"
        raise ConfigError(ConfigProblem("command line", None, "target", expected, name))
    known = {"rank", "ctx", "world_size"}
    wanted = set(inspect.signature(function).parameters)
    if wanted - known:
        expected = f"a function with only the arguments {', '.join(sorted(known))}"
        got = f"{name}({', '.join(sorted(wanted))})"
        raise ConfigError(ConfigProblem("command line", None, "target", expected, got))

    def on_rank(rank: int) -> None:
        from simrank.ranks import require_rank  # noqa: PLC0415 - on the rank

        size = require_rank("a report").world_size
        values = {"rank": rank, "ctx": context, "world_size": size}
        function(**{key: value for key, value in values.items() if key in wanted})

    return on_rank
