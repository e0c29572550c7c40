"""References from pages, docstrings and comments to files, modules and names; the stale ones.

Each check takes a text, so that a test can plant a stale reference in a copy of a page.
"""

from __future__ import annotations

import ast
import importlib
import re
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from tests.check import CHECKS, FOREIGN, MORE, TORCH

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "simrank"
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)

# ---- files, and what they define ----


@cache
def defined(path: Path) -> frozenset[str]:
    """Return the names that a module defines: `function`, `Class`, `Class.member`, `CONSTANT`."""
    return frozenset(_names(ast.parse(path.read_text()).body, ""))


def _names(body: list[ast.stmt], prefix: str) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield prefix + node.name
        if isinstance(node, ast.ClassDef):
            yield from _names(node.body, f"{prefix}{node.name}.")
            for each in ast.walk(node):  # Attributes that methods set.
                if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store):
                    yield f"{prefix}{node.name}.{each.attr}"
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for target in getattr(node, "targets", None) or [node.target]:
                yield from (prefix + n.id for n in ast.walk(target) if isinstance(n, ast.Name))
        elif isinstance(node, ast.If | ast.Try):
            yield from _names([*node.body, *node.orelse], prefix)


@cache
def modules() -> dict[str, Path]:
    """Return the files of all modules of simrank, by their dotted names."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


# ---- the table "To change something" ----

_ROW = re.compile(r"\| ([^|]+) \| \[([^]]+)\]\(([^)]+)\) \| ((?:`[^`]+`(?:, )?)+) \|")


def stale_rows(page: str) -> Iterator[str]:
    """Yield what is wrong with each row: its link, its text, or a name that is not defined."""
    table = page.partition("## To change something")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("|")][2:]
    if not rows:
        yield "no table"
    for line in rows:
        row = _ROW.fullmatch(line)
        if row is None:
            if not re.fullmatch(r"\| \*\*[^|]+\*\* \| \| \|", line):
                yield f"not understood: {line}"
            continue
        title, text, link, names = row.groups()
        path = ROOT / link
        if link != f"simrank/{text}" or not path.is_file():
            yield f"{title}: the text {text} and the link {link} must name one file"
            continue
        for name in re.findall(r"`([^`]+)`", names):
            if name not in defined(path):
                yield f"{title}: {link} does not define {name}"
        words = _words(path) | {*path.with_suffix("").parts}
        for name in re.findall(r"`([^`]+)`", title):
            if not words.issuperset(re.findall(r"\w+", name)):
                yield f"{title}: {link} does not have {name}"


# ---- what confirms a decision ----


def stale_confirmations(decision: str) -> Iterator[str]:
    """Yield the confirmations of a decision that do not exist, or have a form that is unknown.

    Each is a file, `file::test`, a folder of tests, or `tests/check.py NAME`.
    """
    if "Status: superseded" in decision:
        return
    paragraph = decision.partition("Confirmed by:")[2].partition("\n\n")[0]
    for each in paragraph.replace("\n", " ").split(","):
        found = re.fullmatch(r"([\w./-]+?)/?(?:::(\w+)| (\S+))?", each.strip().strip("`"))
        if found is None:
            yield f"not understood: {each.strip()!r}"
            continue
        path, test, check = ROOT / found[1], found[2], found[3]
        if check:
            is_there = found[1] == "tests/check.py" and check in CHECKS | TORCH | FOREIGN | MORE
        elif path.is_dir():
            is_there = any(path.rglob("test_*.py"))
        else:
            is_there = path.is_file() and _has_tests(path) and (not test or test in defined(path))
        if not is_there:
            yield f"does not exist: {each.strip()}"


def _has_tests(path: Path) -> bool:
    is_test = path.name.startswith("test_")
    return not is_test or any(name.startswith("test_") for name in defined(path))


# ---- names with a slash ----

_SLASHED = re.compile(r"`([^`\s]*/[^`\s]*)`|(?<![\w./-])((?:simrank|tests|benches)/[\w./-]*\w)")
# Paths of a reader, units, URLs, and paths in other projects.
_ELSEWHERE = re.compile(
    r"[.~]*/|[A-Z]+/|\w+:(?!:)(?=.*/)|(?:\w*/s|MB/sec)$|node1/|torch/(?:csrc|distributed)/"
    r"|(?:src|csrc|lib|doc|plugins|inputs|schema|triton_dist|SimCCL|customizations|helpers)/"
    r"|examples/network|msccl/language$"
)
# They stand for any name.
_ANY_NAME = re.compile(r"<\w+>|\bNAME\b|\bNNNN-title\b")


def stale_paths(text: str, folder: Path) -> Iterator[str]:
    """Yield names with a slash that are no files from the root, `simrank/` or a folder.

    Of `file.py:name` and `file.py::test`, the file must define the name.
    """
    for found in _SLASHED.finditer(text):
        whole = found[1] or found[2]
        if _ELSEWHERE.match(whole):
            continue
        name, _, member = whole.partition(":")
        pattern = _ANY_NAME.sub("*", name.partition("#")[0]).rstrip("/")
        paths = [path for base in (ROOT, PACKAGE, folder) for path in base.glob(pattern)]
        member = member.strip(":")
        if not paths or (member and not any(member in defined(path) for path in paths)):
            yield whole


# ---- modules in sentences ----

_DOTTED = re.compile(r"(?<![\w./-])simrank(?:\.[A-Za-z_]\w*)+")
_MODULE = re.compile(r"\b[Mm]odules? `([a-z]\w*)(?:\.py)?`|`([a-z]\w*)(?:\.py)?` modules?\b")
_MEMBER = re.compile(r"`([a-z_]\w*)\.(\w+)(?:\.\w+)*(?:\(\))?`")
_FILE_TYPES = {"py", "cpp", "yaml", "csv", "h", "md", "inc", "json", "txt", "svg", "dev"}
# Libraries of the same names; names in YAML and in a model.
_NOT_OURS = {*sys.stdlib_module_names, "simrank", "torch", "lightning", "device", "attention"}


def stale_modules(text: str, code: str = "") -> Iterator[str]:
    """Yield modules that are gone: `simrank.<name>`, "the module <name>", `<name>.<member>`.

    Args:
        text: Of a page, or the docstrings and comments of a module.
        code: The module, where the name may be a variable.
    """
    known = modules()
    for found in _DOTTED.finditer(text):
        module, name = found[0], ""
        while module not in known:
            module, _, name = module.rpartition(".")
        if name and name not in _FILE_TYPES and not _has(module, name):
            yield found[0]
    stems = _stems()
    for found in _MODULE.finditer(text):
        name = found[1] or found[2]
        if name not in stems and name not in sys.stdlib_module_names:
            yield name
    for found in _MEMBER.finditer(text):
        module, name = found[1], found[2]
        if module in stems and module not in _NOT_OURS and name not in _FILE_TYPES:
            is_variable = code.count(f"{module}.{name}") > text.count(f"{module}.{name}")
            if not is_variable and not any(_has(each, name) for each in stems[module]):
                yield f"{module}.{name}"


@cache
def _stems() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in modules():
        found.setdefault(name.rpartition(".")[2], []).append(name)
    return found


@cache
def _words(path: Path) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", path.read_text()))


def _has(module: str, name: str) -> bool:
    if name in _words(modules()[module]) or f"{module}.{name}" in modules():
        return True
    return module == "simrank" and hasattr(importlib.import_module(module), name)
