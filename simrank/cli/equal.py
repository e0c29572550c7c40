"""`simrank equal`: whether layouts of a program compute what its single program computes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any

import typer

import simrank
from simrank.cli import torchrun
from simrank.cli.common import EXIT_STATUS, FAILED, app, check_writable
from simrank.config.equal import EqualConfig, layouts_of, load_layouts
from simrank.config.files import write_text
from simrank.errors import ConfigError, ConfigProblem

_SIZE = re.compile(r"\s*([A-Za-z_]\w*?)\s*[=:]?\s*(\d+)\s*")


@app.command(epilog=EXIT_STATUS)
def equal(
    program: Annotated[str, typer.Argument(help="A Python file with build, batch, loss, ...")],
    layouts: Annotated[str | None, typer.Option(help="A YAML file of layouts.")] = None,
    layout: Annotated[
        list[str] | None, typer.Option("--layout", help="A layout: dp=2,tp=2; may be repeated.")
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Training steps [3].")] = None,
    first: Annotated[bool, typer.Option("--first", help="Stop at the first that fails.")] = False,
    json_file: Annotated[str | None, typer.Option("--json", help="Write verdicts as JSON.")] = None,
) -> None:
    """Compare each layout of PROGRAM with its single program, and name the first difference."""
    torchrun.check_program(program, as_module=False)
    check_writable(json_file)
    config = _config(program, layouts, layout or [])
    from simrank.equal.judge import Judge  # noqa: PLC0415 - needs torch
    from simrank.equal.layout import Layout  # noqa: PLC0415
    from simrank.equal.report import verdict_json, verdict_text  # noqa: PLC0415
    from simrank.equal.runs import Options, Runner, run_single  # noqa: PLC0415

    options = Options(program, steps or config.steps, config.dtype)
    reference = run_single(options)
    runner = Runner(options, reference)
    found: list[dict[str, Any]] = []
    for axes in config.layouts:
        asked = Layout(axes)
        verdict = Judge(reference, runner.layout(asked), asked, runner).judge()
        typer.echo(verdict_text(verdict))
        found.append(verdict_json(verdict))
        if first and verdict.found is not None:
            break
    if json_file is not None:
        document = {"simrank": simrank.__version__, "program": program, "layouts": found}
        write_text(json_file, json.dumps(document, indent=1) + "\n")
    if not all(each["is_equal"] for each in found):
        raise typer.Exit(FAILED)


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
            problem = ConfigProblem("command line", None, "--layout", "axes such as dp=2,tp=2", text)
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
