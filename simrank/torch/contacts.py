"""The names of torch that simrank's own source uses, looked up in the installed release.

A name that is used in the middle of a run would be an AttributeError, or a TypeError for a keyword,
on some rank. `unknown_uses` reads the source of this package, follows what is imported from torch,
and looks up each attribute and the keywords of each call, without a list of them. It is run on
releases that simrank is not tested with, and by a test on those that it is.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import sys
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from simrank.config.files import write_text
from simrank.isolation import libraries
from simrank.torch.cuda.library import cache_folder
from simrank.torch.devices.first_use import BASES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_FOLDER = Path(__file__).parent
_ABSENT = object()


def unknown_uses(*, imports: bool = False) -> list[str]:
    """Return the uses of names and keywords that the installed torch does not have.

    Args:
        imports: Whether modules of torch that are not imported yet are; otherwise their names are
            not looked up.

    Returns:
        Lines such as `groups/registry.py:165: torch.distributed.x has no y`. A name that simrank
        asks for by a string, such as in `hasattr`, or adds itself, is never one of them.
    """
    _object.cache_clear()
    sources = {path: path.read_text(encoding="utf-8") for path in sorted(_FOLDER.rglob("*.py"))}
    trees = {path: ast.parse(text) for path, text in sources.items()}
    handled = {
        node.value
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    given = {
        (f"simrank.{place}", name): module for module, (place, name) in libraries.parts().items()
    }
    found: list[str] = []
    for path, tree in trees.items():
        where = path.relative_to(_FOLDER)
        package = ".".join(("simrank", "torch", *where.with_suffix("").parts))
        reader = Uses({name: module for (place, name), module in given.items() if place == package})
        reader.visit(tree)
        for node, name in reader.uses:
            problem = _problem(node, name, handled, imports=imports)
            if problem is not None:
                found.append(f"{where}:{node.lineno}: {problem}")
    return found + [line for kind, base in BASES for line in unknown_to_base(kind, base)]


def unknown_to_base(kind: type, base: type) -> Iterator[str]:
    """Yield what a class of torch asks of its base that simrank's replacement does not have.

    Args:
        kind: The class of torch.
        base: The replacement of its base.
    """
    for node in ast.walk(ast.parse(dedent(inspect.getsource(kind)))):
        if (
            isinstance(node, ast.Attribute)
            and ast.unparse(node.value) == "super()"
            and not hasattr(base, node.attr)
        ):
            yield f"{kind.__module__}.{kind.__qualname__} asks its base for {node.attr}"


def known_unknown_uses() -> list[str]:
    """Return `unknown_uses`, kept in the cache folder: a search takes 1.5 s."""
    digest = hashlib.sha256(torch.__version__.encode())
    for path in sorted(_FOLDER.rglob("*.py")):
        digest.update(path.read_bytes())
    kept = cache_folder() / f"contacts-{torch.__version__}-{digest.hexdigest()[:16]}.json"
    if kept.is_file():
        found: list[str] = json.loads(kept.read_text(encoding="utf-8"))
        return found
    found = unknown_uses()
    with suppress(OSError):  # A folder that cannot be written costs time.
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_text(str(kept), json.dumps(found))
    return found


class Uses(ast.NodeVisitor):
    """Collects the uses of torch's names in a module, by their full names.

    Args:
        given: Functions of the module by name, and the module of torch that each gets.

    Attributes:
        uses: Attributes and calls, with the full names of what they use.
    """

    def __init__(self, given: Mapping[str, str]) -> None:
        self.uses: list[tuple[ast.Attribute | ast.Call, str]] = []
        self._given = given
        self._scopes: list[dict[str, str | None]] = [{}]

    def visit_Import(self, node: ast.Import) -> None:
        """Bind the imported module."""
        for alias in node.names:
            if alias.name.partition(".")[0] == "torch":
                self._scopes[-1][alias.asname or "torch"] = alias.name if alias.asname else "torch"

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """Bind the imported names."""
        if node.module is not None and node.module.partition(".")[0] == "torch" and not node.level:
            for alias in node.names:
                self._scopes[-1][alias.asname or alias.name] = f"{node.module}.{alias.name}"

    def visit_Assign(self, node: ast.Assign) -> None:
        """Bind the name that gets a module or a name of torch."""
        self._assign(node.targets, node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Bind the name, likewise."""
        self._assign([node.target], node.value)

    def _assign(self, targets: list[ast.expr], value: ast.expr | None) -> None:
        if value is not None:
            self.visit(value)
        for target in targets:
            for each in ast.walk(target):
                if isinstance(each, ast.Name):
                    is_whole = each is target and value is not None
                    self._scopes[-1][each.id] = self._name_of(value) if is_whole else None

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Visit the function with its parameters, which hide outer names."""
        for outer in (*node.decorator_list, *node.args.defaults):
            self.visit(outer)
        names = [argument.arg for argument in ast.walk(node.args) if isinstance(argument, ast.arg)]
        scope: dict[str, str | None] = dict.fromkeys(names)
        if len(self._scopes) == 1 and names and node.name in self._given:
            scope[names[0]] = self._given[node.name]
        self._scopes.append(scope)
        for each in node.body:
            self.visit(each)
        self._scopes.pop()

    def visit_Call(self, node: ast.Call) -> None:
        """Note the call of a name of torch."""
        name = self._name_of(node.func)
        if name is not None:
            self.uses.append((node, name))
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """Note the attribute, where it is read."""
        name = self._name_of(node)
        if name is None:
            self.generic_visit(node)
        elif isinstance(node.ctx, ast.Load):
            self.uses.append((node, name))

    def _name_of(self, node: ast.expr | None) -> str | None:
        """Return the full name of an expression of torch's, or None."""
        if isinstance(node, ast.Name):
            return next((scope[node.id] for scope in self._scopes[::-1] if node.id in scope), None)
        if isinstance(node, ast.Attribute):
            owner = self._name_of(node.value)
            return None if owner is None else f"{owner}.{node.attr}"
        is_import = (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "import_module"
        )
        if isinstance(node, ast.Call) and is_import:
            text = node.args[0]
        elif isinstance(node, ast.Subscript) and ast.unparse(node.value) == "sys.modules":
            text = node.slice
        else:
            return None
        value = text.value if isinstance(text, ast.Constant) else ""
        return value if isinstance(value, str) and value.partition(".")[0] == "torch" else None


def _problem(
    node: ast.Attribute | ast.Call, name: str, handled: set[str], *, imports: bool
) -> str | None:
    """Return the missing name or keyword of a use as text, or None."""
    owner, _, last = name.rpartition(".")
    if owner.startswith("torch.ops."):  # Of a library of operators.
        return None
    place = _object(owner, imports=imports) if owner else None
    if not isinstance(place, ModuleType | type):  # What an instance has is not known here.
        return f"{owner} does not exist" if place is _ABSENT and last not in handled else None
    value = _object(name, imports=imports)
    if isinstance(node, ast.Attribute):
        is_lacking = value is _ABSENT and last not in handled
        return f"{owner} has no {last}" if is_lacking else None
    unknown = [*_unknown_keywords(node, value)]
    return f"{name} has no parameter {', '.join(unknown)}" if unknown else None


def _unknown_keywords(node: ast.Call, function: Any) -> Iterator[str]:
    if not inspect.isfunction(function):
        return
    parameters = inspect.signature(function).parameters
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()):
        return
    for keyword in node.keywords:
        if keyword.arg is not None and keyword.arg not in parameters:
            yield keyword.arg


@cache
def _object(name: str, *, imports: bool) -> Any:
    """Return torch's object of a full name.

    Returns:
        None if its module is not imported yet, `_ABSENT` if there is none of this name.
    """
    path, *parts = name.split(".")
    value: Any = sys.modules[path]
    for part in parts:
        path = f"{path}.{part}"
        found = getattr(value, part, _ABSENT)
        if found is _ABSENT and isinstance(value, ModuleType) and hasattr(value, "__path__"):
            found = _module(path, imports=imports)
        if found is _ABSENT or found is None:
            return found
        value = found
    return value


def _module(path: str, *, imports: bool) -> Any:
    if path not in sys.modules and find_spec(path) is None:
        return _ABSENT
    return import_module(path) if imports else sys.modules.get(path)
