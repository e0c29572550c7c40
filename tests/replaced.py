"""List the names that simrank replaces: `python tests/replaced.py` writes them and their table.

A program of torch that uses devices runs in a Context, and the ledger says what is replaced then:
`replaced.txt` has each name, `docs/rank-state.md` their numbers. Locks are not among them: they are
found in the modules that a program has imported.
"""

from __future__ import annotations

import importlib
import inspect
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import simrank
from simrank.isolation import ledger, locks
from tests import leftovers

ROOT = Path(__file__).resolve().parent.parent
LISTED, PAGE = ROOT / "tests" / "replaced.txt", ROOT / "docs" / "rank-state.md"
BEGIN, END = "<!-- names: begin -->\n", "<!-- names: end -->\n"
WAYS = ("wrapped", "replaced", "dispatched", "refused", "switched", "kept")
SHARED = ("simrank.ranks.current", "simrank.isolation.mock_patches")  # Make patches for others.
MODULES = (  # The watched ones that the programs of leftovers.py do not import.
    "concurrent.futures.process", "multiprocessing.connection", "multiprocessing.pool", "sched",
)  # fmt: skip


def name_of(owner):
    """Return the full name of an owner."""
    if isinstance(owner, type) or inspect.isfunction(owner):
        return f"{owner.__module__}.{owner.__qualname__}"
    name = getattr(owner, "__name__", None)
    return name if isinstance(name, str) else f"{type(owner).__module__}.{type(owner).__qualname__}"


def way_of(entry):
    """Return the way in which a name is replaced, by what has replaced it."""
    value = entry.value
    function = inspect.unwrap(getattr(value, "__func__", value)) if callable(value) else None
    made = getattr(getattr(value, "__func__", value), "__code__", None)
    if entry.name == "is_on":
        return "switched"
    if made is not None and made.co_qualname.partition(".")[0].startswith(("refuse", "_refuse")):
        return "refused"
    if inspect.isclass(value) and entry.name != "__class__":
        return "replaced"
    if made is not None:
        return "replaced" if function is getattr(value, "__func__", value) else "wrapped"
    is_ours = (value if inspect.isclass(value) else type(value)).__module__.startswith("simrank.")
    return "dispatched" if is_ours or hasattr(type(value), "__set__") else "kept"


def home_of(entry):
    """Return the module of simrank in which the value is made; otherwise the one that asked."""
    value = getattr(entry.value, "fget", None) or getattr(entry.value, "__func__", entry.value)
    code = getattr(value, "__code__", None)
    kind = value if inspect.isclass(value) else type(value)
    path = "" if code is None else code.co_filename
    found = kind.__module__ if code is None else path.partition("/simrank/")[2][:-3]
    found = found.replace("/", ".") if found.startswith("simrank.") else f"simrank.{found}"
    found = found.replace("/", ".").removesuffix(".__init__")
    return found if found in sys.modules and found not in SHARED else entry.home


def listed():
    """Return owner, name, way and home of each name that a Context of torch replaces."""
    found = [
        (name_of(each.owner), each.name, way_of(each), home_of(each))
        for each in ledger.entries()
        if each.home != locks.__name__
    ]
    return sorted(set(found))


def print_list():
    """Print the list of a Context in which a program uses what leftovers.py looks at."""
    leftovers.import_torch()
    for name in MODULES:
        importlib.import_module(name)
    found = []

    def program(rank):
        leftovers.trains(rank)
        leftovers.compiles(rank)
        found[:] = listed()

    with simrank.Context("hgx_h100") as context:
        context.multiprocessing.spawn(program, nprocs=2, share_args=True)
    release, _, build = str(importlib.import_module("torch").__version__).partition("+")
    of = f"Python 3.{sys.version_info.minor}, torch {release.rpartition('.')[0]} {build[:3]}"
    print(json.dumps([of, *found]))  # noqa: T201 - for `found_now`


def found_now():
    """Return the releases, and the lines of the list, made in a fresh process."""
    code = "from tests.replaced import print_list; print_list()"
    command = [sys.executable, "-W", "ignore", "-c", code]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    of, *found = json.loads(run.stdout.splitlines()[-1])
    return of, [" | ".join(each) for each in found]


def table(lines):
    """Return the table of numbers by package and way."""
    rows = [line.split(" | ") for line in lines[1:]]
    counts = Counter((package_of(owner), way) for owner, _, way, _ in rows)
    counts.update(("all", way) for _, _, way, _ in rows)
    cells = [[lines[0], *WAYS, "all"], ["---"] * (len(WAYS) + 2)]
    for owner in dict.fromkeys(owner for owner, _ in counts):
        numbers = [counts[owner, way] for way in WAYS]
        cells.append([owner, *(number or "" for number in numbers), sum(numbers)])
    return "".join(f"| {' | '.join(map(str, row))} |\n" for row in cells)


def package_of(owner):
    """Return the package of an owner, or the standard library."""
    top = owner.partition(".")[0]
    return "standard library" if top in sys.stdlib_module_names else f"`{top}`"


def page_with(lines):
    """Return the page with the table of a list."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    return before + BEGIN + table(lines) + END + rest.partition(END)[2]


if __name__ == "__main__":
    header, names = found_now()
    LISTED.write_text("\n".join([header, *names]) + "\n")
    PAGE.write_text(page_with([header, *names]))
