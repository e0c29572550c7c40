"""Writes `simrank/cli/surface.json`, what shells complete, from the commands themselves."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import typer.main

from simrank.calibration.cross_validation import FITS
from simrank.cli import app
from simrank.cli.completion import ANY, FLAG, SURFACE, Spelling
from simrank.cli.options import CHOICES_OF
from simrank.collectives.algorithms import algorithms_for
from simrank.config.check import KINDS
from simrank.config.locate import builtin_names
from simrank.config.quantity import COLLECTIVES, DTYPES, REDOPS

if TYPE_CHECKING:
    from collections.abc import Iterator

ALL = "all"
# Where a command is not named, the option of any.
LISTS = {
    ("", "--cluster"): "clusters",
    ("", "--collective"): "collectives",
    ("", "--calibration"): "calibrations",
    ("run", "--races"): "races",
    ("run", "--on-failure"): "on_failure",
    ("run", "--carrier"): "carrier",
    ("run", "--compute-time"): "compute_time",
    ("run", "--devices"): "devices",
    ("run", "--summary"): "summary",
    ("run", "--prefix"): "prefix",
    ("bench", "target"): "targets",
    ("bench", "-d"): "dtypes",
    ("bench", "--datatype"): "dtypes",
    ("bench", "-o"): "redops",
    ("bench", "--op"): "redops",
    ("bench", "--algorithm"): "algorithm",
    ("bench", "--measured"): "measured",
    ("accuracy", "table"): "measured",
    ("accuracy", "--fit"): "fits",
    ("calibrate", "measured"): "measured",
    ("compare", "--backend"): "backend",
    ("prove", "algorithm"): "algorithms",
    ("schema", "kind"): "schemas",
}


def surface_of(commands: Any) -> dict[str, Any]:
    """Return what `surface.json` holds, read from the commands themselves.

    Args:
        commands: The whole command line, as `typer.main.get_command` returns it.
    """
    found = {}
    for name in commands.list_commands(None):
        command = commands.get_command(None, name)
        for words, each in _with_subcommands(name, command):
            found[words] = dict(_spellings(words, each))
    return {"commands": dict(sorted(found.items())), "words": word_lists()}


def _with_subcommands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    below = getattr(command, "commands", None)
    if below is None:
        yield name, command
    for key, each in (below or {}).items():
        yield f"{name} {key}", each


def _spellings(name: str, command: Any) -> Iterator[tuple[str, Spelling]]:
    for each in command.params:
        is_option = each.param_type_name == "option"
        for spelling in [*each.opts, *each.secondary_opts] if is_option else [each.name]:
            chosen = LISTS.get((name, spelling)) or LISTS.get(("", spelling))
            takes = chosen or (FLAG if is_option and each.is_flag else ANY)
            yield spelling, Spelling(takes, each.help or "", each.hidden)


def word_lists() -> dict[str, list[str]]:
    """Return every list by the name that `LISTS` gives it."""
    some_ranks = 8  # Every algorithm can run on as many.
    found = [name for each in COLLECTIVES for name in algorithms_for(each, some_ranks)]
    algorithms = list(dict.fromkeys(found))
    return {
        "clusters": builtin_names("clusters"),
        "collectives": list(COLLECTIVES),
        "calibrations": ["auto", "none", *builtin_names("calibrations")],
        "targets": [*COLLECTIVES, *builtin_names("bench")],
        "dtypes": [*DTYPES, ALL],
        "redops": [*REDOPS, ALL],
        "algorithms": algorithms,
        "algorithm": ["auto", "nccl", *algorithms],
        "measured": builtin_names("measured"),
        "fits": [*FITS, ALL],
        "schemas": list(KINDS),
        **{name: list(words) for name, words in CHOICES_OF.items()},
    }


def main() -> None:
    """Write `surface.json` anew."""
    surface = surface_of(typer.main.get_command(app))
    SURFACE.write_text(json.dumps(surface, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
