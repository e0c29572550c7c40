"""nccl-tests' options of `simrank bench`, and their meaning here.

Options whose value asks for what happens anyway are taken; with another value they are refused by
name, with what to do instead.

Source:
    NVIDIA/nccl-tests, `README.md` and the usage text of `src/common.cu`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import typer
import typer.main
from typer.core import TyperCommand

from simrank import units
from simrank.config.locate import builtin_names, is_file
from simrank.config.quantity import COLLECTIVE_ALIASES, COLLECTIVES, closest
from simrank.errors import ConfigError, ConfigProblem

ALL = "all"
AVERAGES = {"0": "rank0", "1": "avg", "2": "min", "3": "max"}
_SUFFIX = "_perf"


class Settled(NamedTuple):
    """An option that changes nothing with the values that are taken.

    Attributes:
        short: As `-p`.
        long: As `--parallel_init`.
        taken: Values that ask for what happens anyway.
        instead: What to do where another is wanted.
    """

    short: str
    long: str
    taken: tuple[str, ...]
    instead: str


SETTLED = (
    Settled("-p", "--parallel_init", ("0", "1"), "leave it out: setting up takes no time here"),
    Settled("-y", "--stream_null", ("0", "1"), "leave it out: only one stream is in use"),
    Settled(
        "-m", "--agg_iters", ("1",), "leave it out: calls are not fused; -n repeats them in a row"
    ),
    Settled("-G", "--cudagraph", ("0",), "leave it out: graphs are not simulated"),
    Settled(
        "-C",
        "--report_cputime",
        ("0",),
        "leave it out: a call costs the host the cluster's launch_overhead, and nothing else",
    ),
    Settled(
        "-R",
        "--local_register",
        ("0",),
        "leave it out; for symmetric memory name a kernel in a YAML file",
    ),
    Settled(
        "-N", "--run_cycles", ("1",), "leave it out: each cycle has the same times; see --seed"
    ),
    Settled("-x", "--cta_policy", ("0",), "name an algorithm with num_channels in a YAML file"),
    Settled("-S", "--report_timestamps", ("0",), "write --trace FILE: a timeline with all times"),
    Settled("-J", "--output_file", (), "write --json FILE, which has simrank's columns"),
    Settled("-D", "--device_implementation", ("0",), "name a kernel in a YAML file"),
    Settled("-V", "--device_cta_count", (), "name a kernel with num_channels in a YAML file"),
    Settled("-M", "--memory_report", ("0",), "run a program with simrank run --summary"),
)


class NcclTestsCommand(TyperCommand):
    """A command that also has the options of `SETTLED`, unseen in its help."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - typer's
        super().__init__(*args, **kwargs)
        self.params += map(_option, SETTLED)


def _option(settled: Settled) -> Any:  # noqa: ANN401 - typer's
    """Return an option that is looked at, and then forgotten."""

    def check(value: str | None) -> None:
        if value is not None and value not in settled.taken:
            expected = " or ".join(settled.taken) or "this option left out"
            names = f"{settled.short}, {settled.long}"
            raise bad_option(names, expected, value, settled.instead)

    declared = typer.Option(
        None, settled.short, settled.long, hidden=True, expose_value=False, callback=check
    )

    def command(value: str | None = declared) -> None:
        """Hold the option: typer makes options for functions only."""

    alone = typer.Typer()
    alone.command()(command)
    (option, *_) = typer.main.get_command(alone).params
    option.name = settled.long.lstrip("-")
    return option


def bad_option(option: str, expected: str, got: str, to_fix: str | None = None) -> ConfigError:
    """Return the error for an option of the command line."""
    return ConfigError(ConfigProblem("command line", None, option, expected, got, to_fix))


def collective_of(target: str) -> str | None:
    """Return the collective that a target names, also as nccl-tests' program; None: a file.

    Raises:
        ConfigError: It is neither, but near to one.
    """
    word = Path(target).name.removesuffix(_SUFFIX)
    name = COLLECTIVE_ALIASES.get(word, word)
    if name in COLLECTIVES and (word == target or target.endswith(_SUFFIX)):
        return name
    if target in builtin_names("bench") or is_file(Path(target)):
        return None
    expected = "a YAML file, a built-in benchmark or a collective"
    if word == "hypercube":
        instead = "write `all_gather --algorithm halving_doubling`, which exchanges alike"
        raise bad_option("target", expected, target, instead)
    near = closest(word, [*COLLECTIVES, *COLLECTIVE_ALIASES])
    if near is not None or target.endswith(_SUFFIX):
        to_fix = near and f"write `{COLLECTIVE_ALIASES.get(near, near)}`"
        raise bad_option("target", expected, target, to_fix)
    return None


def mapping_of(collective: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return a benchmark as YAML would give it, from the options of the command line."""
    cluster, nodes = given["cluster"], given["nodes"]
    mapping: dict[str, Any] = {
        "cluster": cluster if nodes is None else {"name": cluster, "nodes": nodes},
        "collectives": [collective],
        "algorithms": given["algorithm"].split(","),
        "dtypes": _words(given["dtype"]),
        "redops": _words(given["redop"]),
        "root": _root(given["root"]),
        "sizes": _sizes(given),
        "iterations": {
            "warmup": given["warmup"],
            "timed": given["iters"],
            "blocking": bool(given["blocking"]),
        },
        "average": _average(given["average"]),
        "check": bool(given["check"]),
    }
    optional = {"num_ranks": _num_ranks(given)}
    optional |= {name: given[name] for name in ("measured", "seed")}
    return mapping | {name: value for name, value in optional.items() if value is not None}


def _num_ranks(given: dict[str, Any]) -> int | None:
    """Return threads times GPUs of each, which is one where only the threads are given."""
    nthreads, ngpus = given["nthreads"], given["num_ranks"]
    if nthreads is None:
        return ngpus  # type: ignore[no-any-return]
    return int(nthreads * (1 if ngpus is None else ngpus))


def _words(text: str) -> str | list[str]:
    return text if text == ALL else text.split(",")


def _root(text: str) -> int | str:
    """Return a rank, or `all` for nccl-tests' -1."""
    if text in (ALL, "-1"):
        return ALL
    if text.isascii() and text.isdigit():
        return int(text)
    raise bad_option("-r, --root", "a rank, or -1 for every rank in turn", text)


def _average(text: str) -> str:
    if text in AVERAGES:
        return AVERAGES[text]
    to_fix = None if text.lstrip("-").isdigit() else f"write `--algorithm {text}`"
    expected = "0 (rank 0's time), 1 (mean of the ranks), 2 (least) or 3 (largest)"
    raise bad_option("-a, --average", expected, text, to_fix)


def _sizes(given: dict[str, Any]) -> dict[str, Any]:
    sizes: dict[str, Any] = {
        "from": _size(given["begin"], "--minbytes"),
        "to": _size(given["end"], "--maxbytes"),
    }
    if given["step"] is not None:
        sizes["step"] = _size(given["step"], "--stepbytes")
    if given["factor"] is not None or given["step"] is None:
        sizes["factor"] = 2 if given["factor"] is None else given["factor"]
    return sizes


def _size(text: str, option: str) -> str:
    """Return an nccl-tests size as the YAML form writes it."""
    try:
        return f"{units.parse_size_nccl(text)} B"
    except ValueError:
        raise bad_option(option, "a size such as 8, 4K, 64M or 8G", text) from None
