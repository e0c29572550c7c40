"""Rewriting of `if`, `for` and `while` in kernels whose threads may diverge.

A statement asks which threads are active, and runs once for all of them; variables of inactive
threads keep their values. Without divergence nothing changes.
"""

from __future__ import annotations

import ast
from typing import Any

from simrank.kernels.source.loop_types import assigned_in
from simrank.kernels.source.rewrite import Rewriter, method_of, spin_traits

_CAME = "__threads_that_came"


class ThreadRewriter(Rewriter):
    """Rewrites one function; the result also calls `threads.HELPERS`."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:  # noqa: N802 - ast's name
        """Record the threads that enter the function."""
        super().visit_FunctionDef(node)
        came = ast.Assign([ast.Name(_CAME, ast.Store())], _call("__came"))
        node.body.insert(0, ast.copy_location(came, node.body[0]))
        return node

    def visit_Return(self, node: ast.Return) -> ast.AST:  # noqa: N802 - ast's name
        """Return only if all threads that entered the function are active."""
        self.generic_visit(node)
        value = node.value or ast.Constant(value=None)
        node.value = ast.copy_location(
            _call("__returned", value, ast.Name(_CAME, ast.Load())), node
        )
        return node

    def visit_If(self, node: ast.If) -> Any:  # noqa: N802 - ast's name
        """Run each side for the threads that take it."""
        names, leaves = assigned_in(node.body + node.orelse), _leaves(node)
        self.generic_visit(node)
        if leaves:  # All threads must take the same side.
            return node
        name, side = self.fresh(), self.fresh()
        make = _make(name, "__branch", node.test, names)
        node.test = ast.copy_location(ast.Name(side, ast.Load()), node.test)
        loop = ast.For(
            ast.Name(side, ast.Store()),
            ast.Name(name, ast.Load()),
            [_start(name), node, _left(name, names)],
            [],
        )
        return [ast.copy_location(make, node), ast.copy_location(loop, node)]

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:  # noqa: N802 - ast's name
        """Give each thread the value of its side."""
        self.generic_visit(node)
        nothing = ast.arguments([], [], None, [], [], None, [])
        sides: list[ast.expr] = [ast.Lambda(nothing, node.body), ast.Lambda(nothing, node.orelse)]
        call = ast.Call(ast.Name("__choose", ast.Load()), [node.test, *sides], [])
        return ast.copy_location(call, node)

    def visit_For(self, node: ast.For) -> Any:  # noqa: N802 - ast's name
        """Run the iterations that any thread needs."""
        names = assigned_in(node.body)
        self.generic_visit(node)
        name = self.fresh()
        make = _make(name, "__rounds", node.iter, names)
        node.iter = ast.copy_location(ast.Name(name, ast.Load()), node.iter)
        node.body = [_start(name), *node.body, _left(name, names)]
        check = ast.Expr(method_of(name, "check"))
        return [ast.copy_location(part, node) for part in (make, node, check)]

    def visit_While(self, node: ast.While) -> Any:  # noqa: N802 - ast's name
        """Loop while any thread does, with a spin guard if the loop may wait."""
        names = assigned_in(node.body)
        waits, traits = self.is_wait(node), spin_traits(node)
        self.generic_visit(node)
        name = self.fresh()
        make = _make(name, "__looping", None, names)
        node.test = ast.copy_location(method_of(name, "goes", node.test), node.test)
        node.body = [_start(name), *node.body, _left(name, names)]
        loop: list[ast.stmt] = self.spinning(node, traits) if waits else [node]
        whole = ast.Try(loop, [], [], [ast.Expr(method_of(name, "over"))])
        check = ast.Expr(method_of(name, "check"))
        return [ast.copy_location(part, node) for part in (make, whole, check)]


def _make(name: str, helper: str, value: ast.expr | None, names: list[str]) -> ast.Assign:
    kept = ast.Tuple([ast.Constant(n) for n in names], ast.Load())
    arguments: list[ast.expr] = [kept] if value is None else [value, kept]
    call = ast.Call(ast.Name(helper, ast.Load()), arguments, [])
    return ast.Assign([ast.Name(name, ast.Store())], call)


def _call(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), list(arguments), [])


def _locals() -> ast.expr:
    return _call("locals")


def _varies(name: str) -> ast.expr:
    return ast.Attribute(ast.Name(name, ast.Load()), "varies", ast.Load())


def _start(name: str) -> ast.stmt:
    return ast.If(_varies(name), [ast.Expr(method_of(name, "start", _locals()))], [])


def _left(name: str, names: list[str]) -> ast.stmt:
    call = method_of(name, "left", _locals())
    if not names:
        return ast.If(_varies(name), [ast.Expr(call)], [])
    targets = ast.Tuple([ast.Name(n, ast.Store()) for n in names], ast.Store())
    return ast.If(_varies(name), [ast.Assign([targets], call)], [])


def _leaves(node: ast.If) -> bool:
    """Return whether a side may leave the function or the enclosing loop."""
    return any(_leaves_at(part, in_loop=False) for part in node.body + node.orelse)


def _leaves_at(node: ast.stmt, *, in_loop: bool) -> bool:
    if isinstance(node, ast.Return):
        return True
    if isinstance(node, ast.Break | ast.Continue):
        return not in_loop
    inside = in_loop or isinstance(node, ast.For | ast.While)
    parts = [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.stmt)]
    return any(_leaves_at(part, in_loop=inside) for part in parts)
