"""A table of simulated beside published figures, for the benches that print one."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def show(
    text: str | None,
    cases: Iterable[Any],
    simulated: Callable[[Any], float],
    named: Callable[[Any], str],
) -> None:
    """Print a row per case, the mean error and the worst one.

    Args:
        text: What the command line says of the bench, its first line.
        cases: Named tuples with `published` and `source`.
        simulated: Returns the simulated figure of a case.
        named: Returns how the row of a case begins.
    """
    parser = argparse.ArgumentParser(description=(text or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--only", metavar="KIND", help="cases whose row begins so")
    wanted = parser.parse_args()
    rows = []
    for case in cases:
        if not named(case).startswith(wanted.only or ""):
            continue
        value = simulated(case)
        error = value / case.published - 1
        rows.append({**case._asdict(), "simulated": value, "error": error})
        figures = f"simulated {value:>8.1f}  published {case.published:>8.1f}{error:>+7.0%}"
        print(f"{named(case)}  {figures}  {case.source}")
        sys.stdout.flush()
    errors = [abs(row["error"]) for row in rows]
    print(f"mean error {sum(errors) / len(errors):.0%}, worst {max(errors):.0%}")
    if wanted.json:
        wanted.json.write_text(json.dumps(rows, indent=1) + "\n")
