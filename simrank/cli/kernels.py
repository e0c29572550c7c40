"""`simrank kernels`: coverage of Triton's language, profiles and checks of kernels.

A case is a function of the file whose name begins with `case`: it makes tensors and launches, and
may assert what it likes. What kernels store to, and what it returns, is compared between the modes.
"""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import ml_dtypes
import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from simrank.cli.common import EXIT_STATUS, FAILED, app, check_writable, ended_by_sigterm
from simrank.config.files import write_text
from simrank.config.project import SIMULATED
from simrank.context import Context
from simrank.device import Tensor
from simrank.device.memory import PATTERN
from simrank.errors import ConfigError, ConfigProblem, SpawnException, UnsupportedError
from simrank.errors.base import text_of
from simrank.multiprocessing.script import names_of, program_imports, run_script
from simrank.multiprocessing.spawn import spawn_in
from simrank.trace.kernel_report import report_html, report_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from simrank.kernels.launch import RecordedLaunch

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
    from simrank.kernels.source import names  # noqa: PLC0415 - it needs triton

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
    from simrank.kernels.machine.statistics import collected  # noqa: PLC0415 - it needs triton

    check_writable(html)
    file, _, name = target.partition("::")
    folder = Path(file).absolute().parent
    with (
        collected() as profiles,
        Context(cluster, cuda_devices=SIMULATED) as context,
        program_imports(folder),
    ):
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


# ---- `simrank kernels check`: compile a file's kernels, run its cases in all modes ----

# In the user's words, and as launches have them. Shuffled programs find atomics whose order counts.
MODES = {"lockstep": "auto", "tasks": "tasks", "shuffled": "shuffled"}
_KNOWN = ("rank", "ctx", "world_size")
# Of one problem, these differ between modes: times, programs, elements.
_VARIES = re.compile(r" at t=[\d.,]+ \w+|\b(?:programs?|element|lanes) -?\d+(?:(?:,| and) -?\d+)*")
_OF_ORDER = "the result depends on the order in which programs run"
_MANY_ROUNDINGS, _LARGEST_ROUNDING = 32, 0.02  # assumed: of atomics on one element


class _Run(NamedTuple):
    """A case in one mode.

    Attributes:
        values: Stored and returned values by name.
        launches: Its launches.
        problems: Its error, and the findings of its Context.
        failed: Whether it raised, so that its values are not compared.
    """

    values: dict[str, np.ndarray[Any, Any]]
    launches: list[RecordedLaunch]
    problems: list[str]
    failed: bool


@group.command("check", epilog=EXIT_STATUS)
@ended_by_sigterm()
def check(
    file: Annotated[str, typer.Argument(help="A file with kernels, and functions `case...`.")],
    target: Annotated[
        str | None,
        typer.Option(help="Compile for these: sm_90,gfx942. Default: the cluster's device."),
    ] = None,
    cluster: Annotated[str, typer.Option(help="Cluster name or file.")] = "hgx_h100",
    nproc: Annotated[
        int, typer.Option("--nproc-per-node", "--nproc_per_node", help="Ranks of each case.")
    ] = 1,
    rtol: Annotated[
        float | None,
        typer.Option(
            help="Tolerance between modes, relative to the largest value. Default: rounding of "
            "floats; 0 for integers."
        ),
    ] = None,
) -> None:
    """Compile the kernels of a file, run its cases in all modes, and report all findings."""
    _triton()
    with program_imports(Path(file).absolute().parent):
        names = names_of(file)
        cases = _cases(file, names)
        launches: list[RecordedLaunch] = []
        num_problems = 0
        for name, case in cases.items():
            runs = {mode: _run(case, cluster, nproc, mode) for mode in MODES}
            problems = _merged(runs)
            if not any(run.failed for run in runs.values()):
                differences = _differences(runs, rtol)
                if differences:
                    again = _run(case, cluster, nproc, "lockstep")
                    differences = _unrepeatable(runs["lockstep"], again, rtol) or differences
                problems += differences
            launches += [launched for run in runs.values() for launched in run.launches]
            num_problems += _show(name, problems, f"{len(runs['lockstep'].launches)} launch(es)")
        for kernel, place, problem in _compiled(launches, target, cluster):
            num_problems += _show(f"{kernel.__name__} for {place}", problem, "compiles")
    for kernel in _left_out(names, launches):
        typer.echo(f"not checked: no case launches kernel '{kernel}'")
    if num_problems:
        raise typer.Exit(FAILED)


def _show(what: str, problems: Sequence[str], fine: str) -> int:
    """Show how something went; return how many problems it has."""
    typer.echo(f"{what}: {f'{len(problems)} problem(s)' if problems else fine}")
    for problem in problems:
        typer.echo("\n".join(f"  {line}" for line in problem.splitlines()))
    return len(problems)


def _cases(file: str, names: dict[str, Any]) -> dict[str, Callable[..., Any]]:
    """Return a file's cases by name.

    Raises:
        ConfigError: It has none, or one takes unknown arguments.
    """
    found: dict[str, Callable[..., Any]] = {
        n: f for n, f in names.items() if n.startswith("case") and inspect.isfunction(f)
    }
    if not found:
        expected = "a file with functions whose names begin with `case`"
        raise ConfigError(ConfigProblem("command line", None, "file", expected, file))
    for name, case in found.items():
        wanted = inspect.signature(case).parameters
        if set(wanted) - set(_KNOWN):
            expected = f"a case with only the arguments {', '.join(_KNOWN)}"
            got = f"{name}({', '.join(wanted)})"
            raise ConfigError(ConfigProblem("command line", None, "file", expected, got))
    return found


def _run(case: Callable[..., Any], cluster: str, nproc: int, mode: str) -> _Run:
    """Run a case on ranks of a fresh Context in one mode, with race checks."""
    from simrank.kernels.launch import recorded_launches  # noqa: PLC0415 - it needs triton

    wanted = inspect.signature(case).parameters
    values: dict[str, np.ndarray[Any, Any]] = {}
    problems: list[str] = []
    context = Context(cluster, races="report", cuda_devices=SIMULATED)
    context.fills_memory = True

    def on_rank(rank: int) -> None:
        given = {"rank": rank, "ctx": context, "world_size": nproc}
        returned = case(**{name: given[name] for name in wanted})
        context.synchronize()
        values.update(_arrays(f"rank {rank}: result", returned))

    with recorded_launches(MODES[mode]) as seen:
        try:
            with context:
                spawn_in(context.program, on_rank, (), nproc, is_users=False)
                values.update((name, t.numpy()) for name, t in _written(seen.launches))
        except Exception as error:  # noqa: BLE001 - any exception of a case is shown
            problems.append(_text(error))
    failed = bool(problems)
    problems += _unwritten(values, _handed_on(seen.launches))
    problems += [textwrap.dedent(text) for text in context.findings if text.strip() not in problems]
    if not seen.launches and not problems:
        problems.append("no kernel was launched")
    return _Run(values, seen.launches, problems, failed)


def _handed_on(launches: Sequence[RecordedLaunch]) -> set[str]:
    """Return the names of `_written` of what another kernel loads: part of it may stay unused."""
    from simrank.kernels.source.analyse import loaded_by_jit  # noqa: PLC0415 - it needs triton

    loaded = {
        launched.bound[name].storage
        for launched in launches
        for name in loaded_by_jit(launched.jit) - launched.written.keys()
        if isinstance(launched.bound.get(name), Tensor)
    }
    return {name for name, tensor in _written(launches) if tensor.storage in loaded}


def _unwritten(values: dict[str, np.ndarray[Any, Any]], passed_over: set[str]) -> Iterator[str]:
    """Yield the floats that hold the pattern of fresh memory, which arithmetic keeps."""
    for name, array in values.items():
        if name in passed_over or array.dtype.kind in "iub" or not array.size:
            continue
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        is_fresh = (raw.reshape(array.size, -1) == PATTERN).all(axis=1)
        if is_fresh.any():
            yield (
                f"{name}: {np.count_nonzero(is_fresh)} of {array.size} elements, first "
                f"{int(is_fresh.argmax())}, were never written or computed from such memory: NaN "
                "here, anything on a GPU\n  to fix: store all elements, or begin with zeros"
            )


def _merged(runs: dict[str, _Run]) -> list[str]:
    """Return the problems of all modes, each once, with its modes unless all have it."""
    found: dict[str, tuple[str, list[str]]] = {}
    for mode, run in runs.items():
        for text in run.problems:
            key = "\n".join(sorted(_VARIES.sub("", text).splitlines()))  # A pair has no order.
            modes = found.setdefault(key, (text, []))[1]
            modes += [mode] if mode not in modes else []
    return [
        text if len(modes) == len(runs) else f"{', '.join(modes)}: {text}"
        for text, modes in found.values()
    ]


def _text(error: BaseException) -> str:
    """Return the text of an error, of several ranks the first rank's, with its notes."""
    if isinstance(error, SpawnException):
        error = next(iter(error.errors.values()))
    return "\n".join(
        [f"{type(error).__name__}: {text_of(error)}", *getattr(error, "__notes__", [])]
    )


def _arrays(name: str, value: Any) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:  # noqa: ANN401
    """Yield the tensors of a case's result, as arrays by name."""
    from simrank.kernels.library_tensors import running  # noqa: PLC0415 - it needs triton

    library = running()
    of_library = None if library is None else library.values(value)
    if of_library is not None:
        yield name, of_library
    elif isinstance(value, Tensor):
        yield name, np.array(value.numpy())
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from _arrays(f"{name}[{key!r}]", part)
    elif isinstance(value, tuple | list):
        for index, part in enumerate(value):
            yield from _arrays(f"{name}[{index}]", part)


def _written(launches: Sequence[RecordedLaunch]) -> Iterator[tuple[str, Tensor]]:
    """Yield each tensor that kernels have stored to, once, by name.

    How often a kernel was launched does not count: `autotune` tries configurations once only.
    """
    seen: dict[tuple[int | None, str, str], dict[tuple[int, tuple[int, ...]], Tensor]] = {}
    for launched in launches:
        for name, tensor in launched.written.items():
            known = seen.setdefault((launched.rank, launched.jit.__name__, name), {})
            known.setdefault((tensor.data_ptr(), tensor.shape), tensor)
    for (rank, kernel, name), tensors in seen.items():
        for number, tensor in enumerate(tensors.values()):
            which = f" #{number + 1}" if number else ""
            yield f"rank {rank}: '{name}'{which} of {kernel}", tensor


def _differences(runs: dict[str, _Run], rtol: float | None) -> list[str]:
    """Return the differences of each further mode from the first, of each value once."""
    (first, ours), *rest = runs.items()
    found: dict[str, str] = {}
    for second, theirs in rest:
        for name, text in _between(first, ours, second, theirs, rtol):
            found.setdefault(name, text)
    return [*found.values()]


def _unrepeatable(first: _Run, second: _Run, rtol: float | None) -> list[str]:
    """Return the differences of two runs in one mode, which are no fault of the kernels."""
    return [
        f"{text}: the case depends on earlier runs\n"
        "  to fix: make all tensors in the case, from a fixed seed; a module may keep some"
        for _, text in _between("a run", first, "a second run in the same mode", second, rtol)
    ]


def _between(
    first: str, ours: _Run, second: str, theirs: _Run, rtol: float | None
) -> Iterator[tuple[str, str]]:
    """Yield the names of values that differ between two modes, with a text."""
    if ours.values.keys() != theirs.values.keys():
        only = ", ".join(sorted(ours.values.keys() ^ theirs.values.keys()))
        yield only, f"only one of {first} and {second} has {only}"
        return
    for name, values in ours.values.items():
        other = theirs.values[name]
        if values.shape != other.shape or values.dtype != other.dtype:
            yield name, (f"{name}: {values.dtype}{values.shape} in {first}, "
                         f"{other.dtype}{other.shape} in {second}")  # fmt: skip
            continue
        allowed = _rounding(values.dtype) if rtol is None else rtol
        wide = [np.asarray(v).astype(np.float64).ravel() for v in (values, other)]
        with np.errstate(all="ignore"):
            largest = np.abs(wide[0][np.isfinite(wide[0])]).max(initial=0.0)
            apart = np.abs(wide[0] - wide[1])
            is_same = (wide[0] == wide[1]) | (np.isnan(wide[0]) & np.isnan(wide[1]))
            differs = np.flatnonzero(~is_same & ~(apart <= allowed * largest))
        if len(differs):
            at = differs[0]
            why = f": {_OF_ORDER}" if second == "shuffled" else ""
            yield (
                name,
                (
                    f"{name} differs in {len(differs)} of {values.size} elements, first in {at}: "
                    f"{wide[0][at]:.9g} in {first}, {wide[1][at]:.9g} in {second}{why}"
                ),
            )


def _rounding(dtype: np.dtype[Any]) -> float:
    """Return the relative difference that sums of floats in another order may have."""
    if dtype.kind in "iub":
        return 0.0
    eps = float(ml_dtypes.finfo(dtype).eps)  # type: ignore[no-untyped-call]
    return min(_MANY_ROUNDINGS * eps, _LARGEST_ROUNDING)


def _compiled(
    launches: Sequence[RecordedLaunch], target: str | None, cluster: str
) -> Iterator[tuple[Any, str, list[str]]]:
    """Yield each launched kernel with a target, and its compiler's error."""
    from simrank.kernels.compiler.driver import parse_target, target_of  # noqa: PLC0415 - likewise
    from simrank.kernels.compiler.metadata import problem_of  # noqa: PLC0415 - it needs triton

    if target is None:
        with Context(cluster, cuda_devices=SIMULATED) as context:
            targets = [target_of(context.devices[0].spec)]
    else:
        targets = [parse_target(text) for text in target.split(",")]
    for place in targets:
        seen: dict[Any, list[str]] = {}
        for launched in launches:
            problems = seen.setdefault(launched.jit, [])
            problem = problem_of(launched.jit, launched.bound, launched.options, place)
            if problem is not None and problem not in problems:
                problems.append(problem)
        shown = f"sm_{place.arch}" if place.backend == "cuda" else str(place.arch)
        for kernel, problems in seen.items():
            yield kernel, shown, problems


def _left_out(names: dict[str, Any], launches: Sequence[RecordedLaunch]) -> list[str]:
    """Return the file's kernels that no case has launched, directly or not."""
    jits = {n: v for n, v in names.items() if hasattr(v, "fn") and hasattr(v, "arg_names")}
    own = {name: _plain_function(value) for name, value in jits.items()}
    reached, waiting = set(), [launched.jit.fn for launched in launches]
    while waiting:
        function = waiting.pop()
        if function not in reached:
            reached.add(function)
            waiting += [own[name] for name in function.__code__.co_names if name in own]
    return sorted(
        name for name, function in own.items()
        if function not in reached and function.__code__.co_filename == names["__file__"]
    )  # fmt: skip


def _plain_function(kernel: Any) -> Any:  # noqa: ANN401 - of triton's classes, one around the other
    """Return the Python function of a kernel, also of an autotuned one."""
    while hasattr(kernel, "fn"):
        kernel = kernel.fn
    return kernel
