"""What benchmarks have in common that run each case in a process of its own; see `main`."""

import argparse
import json
import platform
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import simrank

Figures = dict[str, Any]


class Case(NamedTuple):
    """One case.

    Attributes:
        run: Returns its figures.
        aim_s: What `seconds` should be at most; None: there is no aim.
    """

    run: Callable[[], Figures]
    aim_s: float | None


def main(
    script: str, cases: Mapping[str, Case], *, seconds: str, **about: object
) -> dict[str, Figures]:
    """Run all cases, or the one that the parent process asked for, and return their figures.

    Args:
        script: The benchmark's file; its docstring is the help text.
        cases: By name.
        seconds: The figure that is compared with the aim.
        about: What the JSON file says besides.
    """
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--case", choices=list(cases), help="run one case here, print JSON")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    arguments = parser.parse_args()
    if arguments.case:
        found = cases[arguments.case].run()
        found["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps(found))
        return {}
    rows = {}
    for name, case in cases.items():
        command = [sys.executable, script, "--case", name]
        answer = subprocess.run(command, check=True, capture_output=True, text=True)
        rows[name] = json.loads(answer.stdout)
        _print_row(name, rows[name], seconds, case.aim_s)
    if arguments.json:
        machine = {"machine": platform.platform(), "python": platform.python_version()}
        versions = {"simrank": simrank.__version__, "numpy": np.__version__}
        text = json.dumps({**about, **machine, **versions, "rows": rows}, indent=1)
        arguments.json.write_text(text + "\n")
    return rows


def _print_row(name: str, found: Figures, seconds: str, aim_s: float | None) -> None:
    took_s = found[seconds]
    beside = "" if aim_s is None else f"  aim {aim_s:g} s ({took_s / aim_s:.2f} of it)"
    rest = {key: value for key, value in found.items() if key not in (seconds, "peak_mib")}
    notes = ", ".join(f"{key} {value:.6g}" for key, value in rest.items())
    print(f"{name:42} {took_s:8.4f} s{beside}; peak {found['peak_mib']:.0f} MiB; {notes}")
