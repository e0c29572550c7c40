"""`simrank equal`: whether layouts of a program compute what its single program computes."""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

import simrank
from simrank.cli import options
from simrank.cli.common import (
    EXIT_STATUS,
    FAILED,
    app,
    check_writable,
    ended_by_sigterm,
    progress_bar,
)
from simrank.config.equal import EqualConfig, layouts_of, load_layouts
from simrank.config.files import write_text
from simrank.errors import ConfigError, ConfigProblem
from simrank.parallel import Workers, in_parallel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simrank.equality.runs import RunOptions
    from simrank.equality.verdict import Verdict

_SIZE = re.compile(r"\s*([A-Za-z_]\w*?)\s*[=:]?\s*(\d+)\s*")


@app.command(epilog=EXIT_STATUS)
@ended_by_sigterm()
def equal(
    program: Annotated[str, typer.Argument(help="A Python file with build, batch, loss, ...")],
    layouts: Annotated[str | None, typer.Option(help="A YAML file of layouts.")] = None,
    layout: Annotated[
        list[str] | None, typer.Option("--layout", help="A layout: dp=2,tp=2; may be repeated.")
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Training steps [2].")] = None,
    dtype: Annotated[str | None, typer.Option(help="Compute in this type [float64].")] = None,
    device: Annotated[
        str | None, typer.Option(help="Where models and batches lie: cuda, or cpu with gloo.")
    ] = None,
    devices: options.CudaDevices = None,
    private: options.Private = None,
    first: Annotated[bool, typer.Option("--first", help="Stop at the first that fails.")] = False,
    every: Annotated[bool, typer.Option("--all", help="List all modules that differ.")] = False,
    jobs: options.Jobs = None,
    backend: options.Backend = None,
    json_file: Annotated[str | None, typer.Option("--json", help="Write verdicts as JSON.")] = None,
    html_file: Annotated[str | None, typer.Option("--html", help="Write a matrix page.")] = None,
) -> None:
    """Compare each layout of PROGRAM with its single program, and name the first difference."""
    if find_spec("torch") is None:
        to_fix = "pip install torch"
        raise ConfigError(ConfigProblem("command line", None, "equal", "torch", "none", to_fix))
    options.check_program(program, as_module=False)
    check_writable(json_file, html_file)
    config = _config(program, layouts, layout or [])
    given = {"steps": steps, "dtype": dtype, "device": device}
    changed = {name: value for name, value in given.items() if value is not None}
    cuda_devices = options.cuda_devices(devices)
    from simrank.equality.runs import RunOptions  # noqa: PLC0415 - needs torch

    config = layouts_of({**config.model_dump(), **changed}, "command line")
    asked = RunOptions.of(str(Path(program).absolute()), config, cuda_devices, private or ())
    results = _Results(program, config, json_file, html_file, lists_modules=every)
    with results.kept():
        _run(asked, config, Workers(jobs, backend), results, stops=first)
    if results.num_failed:
        raise typer.Exit(FAILED)


def _run(
    asked: RunOptions,
    config: EqualConfig,
    workers: Workers,
    results: _Results,
    *,
    stops: bool,
) -> None:
    """Check the layouts, and print each verdict in its turn."""
    from simrank.equality.judge import prepared  # noqa: PLC0415 - needs torch
    from simrank.equality.layout import Layout  # noqa: PLC0415 - as above

    layouts = [Layout(axes) for axes in config.layouts]
    with TemporaryDirectory() as folder, progress_bar() as bar:
        shown = bar.add_task("the single program", total=len(layouts))
        checks, notes = prepared(asked, layouts, Path(folder))
        notes += [f"not compared: {module}" for module in config.ignore]
        notes += [f"not compared: {module}, {why}" for module, why in config.allow.items()]
        for note in notes:
            typer.echo(f"# {note}")
        bar.update(shown, description=str(layouts[0]))
        ended: dict[int, Verdict] = {}
        for index, verdict in in_parallel(checks, range(len(layouts)), workers):
            ended[index] = verdict
            while len(results.verdicts) in ended:
                results.add(ended[len(results.verdicts)])
            waiting = next((str(a) for n, a in enumerate(layouts) if n not in ended), "")
            bar.update(shown, description=waiting, completed=len(ended))
            if stops and results.num_failed:
                return


class _Results:
    """The verdicts so far, and the files that they go to.

    Args:
        program: The file.
        config: The layouts.
        json_file: For the verdicts; None: nowhere.
        html_file: For the page; None: nowhere.
        lists_modules: Whether to print all modules that differ.

    Attributes:
        verdicts: In the order of the layouts.
    """

    def __init__(
        self,
        program: str,
        config: EqualConfig,
        json_file: str | None,
        html_file: str | None,
        *,
        lists_modules: bool,
    ) -> None:
        self._program, self._config, self._lists_modules = program, config, lists_modules
        self._json, self._html = json_file, html_file
        self.verdicts: list[Verdict] = []

    @property
    def num_failed(self) -> int:
        """Count the layouts that differ."""
        return sum(verdict.found is not None for verdict in self.verdicts)

    def add(self, verdict: Verdict) -> None:
        """Keep a verdict, and print it."""
        from simrank.equality.verdict import details, verdict_text  # noqa: PLC0415 - needs torch

        typer.echo(verdict_text(verdict))
        same = next((each for each in self.verdicts if _is_same_error(each, verdict)), None)
        lines = details(verdict, lists_modules=self._lists_modules)
        for line in lines if same is None else [f"as {same.layout}"]:
            typer.echo(f"  {line}")
        self.verdicts.append(verdict)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Write the files at the end of the block, also of a part of the layouts."""
        try:
            yield
        finally:
            if self.verdicts:
                self._write()

    def _write(self) -> None:
        from simrank.equality.verdict import equal_page, verdict_json  # noqa: PLC0415 - as above

        config = self._config
        head = {"simrank": simrank.__version__, "program": self._program}
        facts = {**head, "steps": config.steps, "dtype": config.dtype}
        facts |= {f"allowed: {module}": reason for module, reason in config.allow.items()}
        if self._json is not None:
            rows = [verdict_json(verdict) for verdict in self.verdicts]
            write_text(self._json, json.dumps({**facts, "layouts": rows}, indent=1) + "\n")
        if self._html is not None:
            listed = [(name, str(value)) for name, value in facts.items()]
            write_text(self._html, equal_page(self._program, self.verdicts, listed))


def _is_same_error(one: Verdict, other: Verdict) -> bool:
    """Return whether two layouts ended with one error, whose report is then printed once."""
    first, second = one.found, other.found
    if first is None or second is None or not first.report:
        return False
    return (first.direction, first.cause) == (second.direction, second.cause)


def _config(program: str, file: str | None, given: list[str]) -> EqualConfig:
    """Return the layouts of the options; those of a file, or else the program's own `LAYOUT`."""
    if given:
        listed = [_layout(text) for text in given]
        if file is None:
            return layouts_of({"layouts": listed}, "command line")
        return load_layouts(file).model_copy(update={"layouts": tuple(listed)})
    if file is not None:
        return load_layouts(file)
    return layouts_of({"layouts": _own_layouts(program)}, program)


def _layout(text: str) -> dict[str, int]:
    """Return the sizes of `dp=2,tp=2`, `dp2,tp2` or `dp2 x tp2`."""
    axes: dict[str, int] = {}
    for part in re.split(r",| x ", text):
        match = _SIZE.fullmatch(part)
        if match is None or match[1] in axes:
            problem = ConfigProblem(
                "command line", None, "--layout", "axes such as dp=2,tp=2", text
            )
            raise ConfigError(problem)
        axes[match[1]] = int(match[2])
    return axes


def _own_layouts(program: str) -> Any:  # noqa: ANN401 - as the program has it
    """Return `LAYOUTS` or `LAYOUT` of a program, which are literals."""
    import ast  # noqa: PLC0415 - without layouts only

    for node in ast.parse(Path(program).read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name in ("LAYOUT", "LAYOUTS"):
                value = ast.literal_eval(node.value)
                return [value] if name == "LAYOUT" else value
    expected = "--layouts FILE, --layout dp=2,tp=2, or LAYOUT = {...} in the program"
    raise ConfigError(ConfigProblem("command line", None, "--layouts", expected, "none"))
