"""`kit.py`: the parts of `script` in one file, with the predictions and their hash."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import simrank
from simrank.validate.kit.script.result import hash_of_parts, sha256

if TYPE_CHECKING:
    from collections.abc import Mapping

PARTS = (
    "rows", "machine", "device_work", "collectives", "programs", "kernels", "children", "own",
    "worker", "result", "nccl_tests", "main",
)  # fmt: skip
_OPTIONAL = ("torch", "torch.distributed")
_MARKS = re.compile(r"\s*# (?:noqa|type: ignore|fmt: skip).*$")  # For linters of this repository.
_OWN = re.compile(r"^OWN: dict.*$", re.MULTILINE)
_HEADER = '''"""Measures this machine's GPUs beside what simrank {version} predicted of them.

    python kit.py

takes at most five minutes and writes kit.json. Please attach that file to an issue of simrank.

What it does: it times launches, copies, matrix products, attention, Triton kernels (if triton is
installed), collectives and messages of NCCL on 2, 4 and 8 GPUs, runs five small programs of
torch.distributed and two that hang, which it ends, and compares all that with the predictions
below.
What it does not do: it needs no network, sends nothing, installs nothing, changes no setting of a
GPU, and reads no file of yours. kit.json has the models and drivers of GPUs and CPU, versions,
settings of NCCL and times; no names of hosts, users or folders, no serial numbers.

Each phase runs in processes of its own, under a limit: what crashes or hangs ends that phase alone.
The predictions were made before; their hash is {hash}.
"""
'''


@dataclass(frozen=True)
class Own:
    """A program and kernels of a kit's author.

    Attributes:
        program: Text of a file; "" for none.
        function: Its function of rank and number of ranks.
        kernels: Text of a file of kernel cases, as `simrank compare --kernels` takes it.
    """

    program: str = ""
    function: str = ""
    kernels: str = ""

    def texts(self) -> dict[str, str]:
        """Return the texts that are not empty, by name."""
        every = {"program": self.program, "function": self.function, "kernels": self.kernels}
        return {name: text for name, text in every.items() if text}


def script(predictions: Mapping[str, str], own: Own | None = None) -> str:
    """Return the text of `kit.py`.

    Args:
        predictions: Their parts, as texts: one per cluster, and the values.
        own: A program and kernels to measure as well.
    """
    added = (own or Own()).texts()
    hashes = {name: sha256(text) for name, text in predictions.items()}
    total = hash_of_parts(hashes)
    imports: dict[str, set[str]] = {}
    names: list[str] = []
    bodies = [_part(name, imports, names) for name in PARTS]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise AssertionError(f"parts of the kit share names: {', '.join(sorted(twice))}")
    pieces = [
        _HEADER.format(version=simrank.__version__, hash=total),
        "from __future__ import annotations\n",
        _imports(imports),
        _guarded(),
        *(_with_own(each, added) for each in bodies[:-1]),
        *_constants(predictions, total, bodies[-1]),
    ]
    return "\n".join(pieces)


def _with_own(part: str, added: Mapping[str, str]) -> str:
    """Return a part with the texts of the author in it."""
    lines = [f"    {name!r}: {_literal(text)}," for name, text in added.items()]
    return _OWN.sub(lambda _: "\n".join(["OWN = {", *lines, "}"]), part) if added else part


def _imports(found: Mapping[str, set[str]]) -> str:
    """Return the imports of all parts, each module once."""
    whole = [f"import {module}" for module, names in sorted(found.items()) if not names]
    some = [
        f"from {module} import {', '.join(sorted(names, key=str.lower))}"
        for module, names in sorted(found.items())
        if names
    ]
    return "\n".join([*whole, *some]) + "\n"


def _guarded() -> str:
    return (
        "try:\n    import torch\n    import torch.distributed as dist\n"
        "except (ImportError, OSError):  # Then `main` says so.\n    torch = dist = None\n"
    )


def _constants(predictions: Mapping[str, str], total: str, main: str) -> list[str]:
    """Return the last part, its constants filled."""
    start = main.index("KIT: dict")
    end = main.index("\n\n", main.index("PARTS: dict"))
    kit = {"simrank": simrank.__version__, "predictions_sha256": total}
    lines = [f"KIT = {kit!r}", "PARTS = {"]
    lines += [f"    {name!r}: {_literal(text)}," for name, text in predictions.items()]
    return [main[:start] + "\n".join([*lines, "}"]) + main[end:]]


def _literal(text: str) -> str:
    """Return a text as a literal, a line each."""
    return 'r"""' + text + '"""' if "\\" not in text and '"""' not in text else repr(text)


def _part(name: str, imports: dict[str, set[str]], names: list[str]) -> str:
    """Return a part's text without its imports, which are added to those of all."""
    path = Path(__file__).parent / "script" / f"{name}.py"
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    tree = ast.parse(text)
    dropped: set[int] = set()
    for node in tree.body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for module, taken in _taken(node):
                if not module.startswith(("simrank", "__future__", *_OPTIONAL)):
                    imports.setdefault(module, set()).update(taken - {"TYPE_CHECKING"})
            dropped.update(range(node.lineno, (node.end_lineno or 0) + 1))
        elif _is_for_types(node):
            dropped.update(range(node.lineno, (node.end_lineno or 0) + 1))
        else:
            names += _defined(node)
    first = tree.body[0]
    dropped.update(range(first.lineno, (first.end_lineno or 0) + 1))
    title = (ast.get_docstring(tree) or name).partition("\n")[0]
    kept = [_MARKS.sub("", e) for number, e in enumerate(lines, 1) if number not in dropped]
    return f"# ---- {title} ----\n\n" + "\n".join(kept).strip("\n") + "\n\n"


def _taken(node: ast.Import | ast.ImportFrom) -> list[tuple[str, set[str]]]:
    """Return modules, and the names that are taken from each; none: the module itself."""
    if isinstance(node, ast.ImportFrom):
        return [(str(node.module), {each.name for each in node.names})]
    return [(each.name, set()) for each in node.names]


def _is_for_types(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _defined(node: ast.stmt) -> list[str]:
    """Return the names that a statement of a module defines."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else []
    if isinstance(node, ast.AnnAssign):
        targets = [node.target]
    return [each.id for each in targets if isinstance(each, ast.Name)]
