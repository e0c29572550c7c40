"""Measure the structure of the package: files, lines, circles of imports, and walks of calls.

`python tests/check.py house` prints the figures and fails where one is beyond its limits. Imports
for type checkers count, too: a reader must follow them. A walk is the part of the package that one
small program enters: files, functions, and lines of all modules that it loads.
"""

from __future__ import annotations

import ast
import io
import json
import os
import subprocess
import sys
import tempfile
import tokenize
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import grimp

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "simrank"

# Files of the largest circle of imports, per package. They may only fall.
MAX_CIRCLE = {"device.tensors": 10}
MAX_CIRCLE_ELSEWHERE = 3
# Lines of code of each package, without blanks, comments and docstrings. A feature that needs more
# raises its package's line in the same commit; a deletion lowers it, and makes no room for others.
BUDGET = {
    "(top level)": 2088,
    "bench": 1559,
    "calibration": 2421,
    "cli": 4815,
    "collectives": 5086,
    "config": 4240,
    "device": 4657,
    "diagnose": 2145,
    "distributed": 6331,
    "engine": 2908,
    "equality": 6_902,
    "errors": 875,
    "formats": 1629,
    "hardware": 1415,
    "isolation": 5580,
    "kernels": 13_667,
    "multiprocessing": 2585,
    "pages": 569,
    "planning": 1608,
    "ranks": 919,
    "replay": 235,
    "suites": 2024,
    "timings": 1860,
    "torch": 10330,
    "tp": 549,
    "trace": 2439,
    "validate": 6009,
    "tests": 83_300,
}
MAX_GROWTH, MAX_FALL = 0.03, 0.05
MEND_LINES = 50  # A mend of these many lines needs no budget, in the smallest package.


class Walk(NamedTuple):
    """The part of the package that a program enters.

    Attributes:
        files: Files of the functions that are called.
        functions: Those functions, without comprehensions and lambdas.
        modules: Modules that are loaded in all.
        lines: Their lines.
        returns: Of a function to a caller in another package, per rank that runs.
    """

    files: int
    functions: int
    modules: int
    lines: int
    returns: int


# Per walk the program, whose `walked()` is measured when everything has run once, and the limits.
CORE = """
import simrank
import simrank.distributed as dist

def work(rank, ctx):
    dist.init_process_group("nccl")
    x = ctx.full((1024,), float(rank))
    dist.all_reduce(x)
    assert x[0].item() == 1.0

def run(walked):
    with simrank.Context("hgx_h100") as ctx:
        with walked():
            ctx.multiprocessing.spawn(work, args=(ctx,), nprocs=2)
"""
TORCH = """
import torch
import torch.distributed as dist
import simrank

def work(rank, walked):
    dist.init_process_group("nccl")
    torch.cuda.set_device(rank)
    x = torch.full((1024,), float(rank), device="cuda")
    dist.all_reduce(x)
    with walked():
        dist.all_reduce(x)
    assert x[0].item() == 2.0

def run(walked):
    with simrank.Context("hgx_h100") as ctx:
        ctx.multiprocessing.spawn(work, args=(walked,), nprocs=2, share_args=True)
"""
KERNEL = """
import simrank
import triton
import triton.language as tl

@triton.jit
def copy(x, y, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at))

def run(walked):
    with simrank.Context("hgx_h100") as ctx:
        x, y = ctx.ones(1024), ctx.zeros(1024)
        copy[(4,)](x, y, BLOCK=256)
        with walked():
            copy[(4,)](x, y, BLOCK=256)
            ctx.cuda.synchronize()
        assert y.sum().item() == 1024.0
"""
ROW = """
import contextlib, io, tempfile
from pathlib import Path
from simrank.cli import main

text = "cluster: hgx_h100\\ncollectives: [all_reduce]\\nalgorithms: [ring]\\nsizes: [1 MiB]\\n"

def run(walked):
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as out:
        path = Path(folder, "row.yaml")
        path.write_text(text)
        with walked(), contextlib.suppress(SystemExit):
            main(["bench", str(path)])
    assert "1048576" in out.getvalue()
"""
WALKS = {
    "core: spawn, full, all_reduce, item on 2 ranks": ("", CORE, Walk(60, 302, 181, 43_000, 71)),
    "torch: one all_reduce on 2 ranks": ("torch", TORCH, Walk(28, 76, 251, 62_700, 16)),
    "kernels: one launch of a copy": ("triton", KERNEL, Walk(49, 206, 292, 64_400, 80)),
    "bench: one row of a YAML file": ("", ROW, Walk(132, 825, 240, 60_400, 6_600)),
}
# Runs a program twice in one process, and prints the second walk.
_RECORDER = """
import contextlib, json, sys, threading
from pathlib import Path

files, functions, returns = set(), set(), [0]

def room(code):
    path = code.co_filename
    return path[len(PREFIX):].partition("/")[0] if path.startswith(PREFIX) else None

def record(frame, event, arg):
    code = frame.f_code
    if event == "return" and frame.f_back is not None:
        into = room(frame.f_back.f_code)
        returns[0] += room(code) not in (None, into) and into is not None
    if event == "call" and code.co_filename.startswith(PREFIX) and code.co_name[:1] != "<":
        files.add(code.co_filename)
        functions.add((code.co_filename, code.co_qualname))

@contextlib.contextmanager
def walked():
    threading.setprofile(record)
    sys.setprofile(record)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)

run(walked)
files.clear(), functions.clear()
returns[0] = 0
run(walked)
paths = [getattr(m, "__file__", None) or "" for m in list(sys.modules.values())]
loaded = {path for path in paths if path.startswith(PREFIX)}
lines = sum(len(Path(path).read_text().splitlines()) for path in loaded)
print(json.dumps([len(files), len(functions), len(loaded), lines, returns[0] // RANKS]))
if "--list" in sys.argv:
    for path in sorted(files):
        print(path[len(PREFIX):], *sorted(name for file, name in functions if file == path))
"""


# Files of tests that use a private name of a module. It may only fall.
MAX_PRIVATE_USERS = 37


def _seams() -> list[str]:
    """Print how many files of tests use private names of modules; return it if too many do."""
    found = [private_names(path) for path in (ROOT / "tests").rglob("*.py")]
    users = list(filter(None, found))
    names = sum(map(len, users))
    print(f"private names of modules: {names}, in {len(users)} of {len(found)} files of tests")
    most = MAX_PRIVATE_USERS
    text = f"{len(users)} files of tests use private names of modules, at most {most}"
    return [text] if len(users) > most else []


def private_names(path: Path) -> set[str]:
    """Return the private names of simrank's modules that a file imports, or reads of a module."""
    tree = ast.parse(path.read_text())
    modules, found = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "simrank":
            for each in node.names:
                (found if each.name.startswith("_") else modules).add(each.asname or each.name)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            is_private = node.attr.startswith("_") and not node.attr.startswith("__")
            if is_private and node.value.id in modules and node.value.id.islower():
                found.add(f"{node.value.id}.{node.attr}")
    return found


def main(arguments: list[str]) -> int:
    """Print all figures; return 1 if one is beyond its limits.

    `--list` names the functions of each walk.
    """
    failures = [*_sizes(), *_circles(), *_seams(), *_walks(lists="--list" in arguments)]
    for failure in failures:
        print(f"beyond its limits: {failure}")
    return bool(failures)


def _sizes() -> list[str]:
    """Print files and lines of each package, and of the tests; return those off their budget."""
    print(f"{'':28}  files    lines     code   budget")
    paths: dict[str, list[Path]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        paths.setdefault(_part(path), []).append(path)
    paths["tests"] = [*(ROOT / "tests").rglob("*.py")]
    sums, codes = [0, 0, 0], {}
    for name, files in paths.items():
        found = [len(files), *map(sum, zip(*map(_lines, files), strict=True))]
        codes[name] = found[2]
        if name != "tests":
            sums = [total + each for total, each in zip(sums, found, strict=True)]
        print(f"{name:28} {found[0]:6} {found[1]:8} {found[2]:8} {BUDGET.get(name, 0):8}")
    print(f"{'simrank, all':28} {sums[0]:6} {sums[1]:8} {sums[2]:8}")
    return off_budget(codes, BUDGET)


def off_budget(codes: dict[str, int], budget: dict[str, int]) -> list[str]:
    """Return the packages that have grown or shrunk beyond the budget, with the line to write."""
    failures = []
    for name in sorted({*codes, *budget}):
        code, planned = codes.get(name, 0), budget.get(name, 0)
        if code and not planned:
            failures.append(f'{name} is new: write `"{name}": {code},` in BUDGET of tests/house.py')
        elif not code:
            failures.append(f"{name} is gone: delete its line in BUDGET of tests/house.py")
        elif code > planned + max(planned * MAX_GROWTH, MEND_LINES):
            failures.append(
                f"{name} has grown from {planned} lines of code to {code}: delete some, or write"
                f" {code} in BUDGET of tests/house.py, in the commit of the feature"
            )
        elif code < planned - max(planned * MAX_FALL, MEND_LINES):
            failures.append(
                f"{name} has fallen from {planned} lines of code to {code}: write {code} in BUDGET"
                " of tests/house.py, so that the room is not filled again"
            )
    return failures


def _part(path: Path) -> str:
    first, *rest = path.relative_to(PACKAGE).parts
    return first if rest else "(top level)"


def _lines(path: Path) -> tuple[int, int]:
    """Return the lines of a file, and those without blanks, comments and docstrings."""
    text = path.read_text()
    skipped = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in skipped and token.type != tokenize.ENDMARKER:
            code.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                code.difference_update(range(first.lineno, (first.end_lineno or 0) + 1))
    return len(text.splitlines()), len(code)


@cache
def _graph() -> grimp.ImportGraph:
    return grimp.build_graph("simrank", cache_dir=None)


def arrows() -> dict[str, set[str]]:
    """Return the packages that each one imports, without those that it imports by way of others."""
    needs: dict[str, set[str]] = {}
    for module in _graph().modules - {"simrank", "simrank.__main__"}:
        for imported in _graph().find_modules_directly_imported_by(module) - {"simrank"}:
            package, needed = module.split(".")[1], imported.split(".")[1]
            if package != needed:
                needs.setdefault(package, set()).add(needed)

    @cache
    def below(package: str) -> frozenset[str]:
        direct = needs.get(package, set())
        return frozenset(direct).union(*map(below, direct))

    return {
        package: {each for each in direct if not any(each in below(other) for other in direct)}
        for package, direct in needs.items()
    }


def circles() -> list[list[str]]:
    """Return the groups of modules that import each other in a circle, the largest first."""
    graph = _graph()
    found, seen = [], set()
    for module in sorted(graph.modules):
        if module not in seen:
            after, before = (
                graph.find_downstream_modules(module),
                graph.find_upstream_modules(module),
            )
            circle = sorted({module, *(after & before)})
            seen.update(circle)
            if len(circle) > 1:
                found.append(circle)
    return sorted(found, key=len, reverse=True)


def _circles() -> list[str]:
    """Print the circles and how many modules have one importer; return those that are too large."""
    failures = []
    for circle in circles():
        home = circle[0].rpartition(".")[0].removeprefix("simrank.")
        names = ", ".join(module.rpartition(".")[2] for module in circle)
        print(f"circle of {len(circle)} in {home}: {names}")
        if len(circle) > MAX_CIRCLE.get(home, MAX_CIRCLE_ELSEWHERE):
            failures.append(f"circle of {len(circle)} in {home}")
    graph = _graph()
    importers = [len(graph.find_modules_that_directly_import(each)) for each in graph.modules]
    print(f"modules with exactly one importer: {importers.count(1)} of {len(importers)}")
    return failures


def walk(program: str, *options: str) -> tuple[Walk, str]:
    """Return the walk of a program, in a process of its own, and the list that it printed."""
    num_ranks = 2 if "nprocs=2" in program else 1
    source = f"{program}\nPREFIX = {str(PACKAGE) + '/'!r}\nRANKS = {num_ranks}\n{_RECORDER}"
    paths = os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "walk.py"  # Triton reads the sources of kernels.
        path.write_text(source)
        done = subprocess.run(
            [sys.executable, str(path), *options],
            cwd=ROOT, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"a walk failed:\n{done.stderr}")
    first, _, listed = done.stdout.partition("\n")
    return Walk(*json.loads(first)), listed


def _is_installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


def _walks(*, lists: bool) -> list[str]:
    """Print the walks whose packages are installed; return those over a limit."""
    failures = []
    for title, (package, program, limit) in WALKS.items():
        if package and not _is_installed(package):
            print(f"walk of {title}: skipped, {package} is not installed")
            continue
        found, listed = walk(program, *(["--list"] if lists else []))
        print(f"walk of {title}:", ", ".join(f"{n} {name}" for name, n in found._asdict().items()))
        print(listed, end="")
        failures += [
            f"walk of {title}: {number} {name}, at most {most}"
            for (name, number), most in zip(found._asdict().items(), limit, strict=True)
            if number > most
        ]
    return failures


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
