"""The compiler's errors of kernels, raised as Triton's CompilationError."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from triton.compiler.errors import CompilationError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from simrank.kernels.machine.jit import Jit


class CompilationValueError(CompilationError, ValueError):  # type: ignore[misc] # Triton's class.
    """A value that the compiler would reject; also a ValueError."""


class CompilationTypeError(CompilationError, TypeError):  # type: ignore[misc]
    """A type that the compiler would reject; also a TypeError."""


class CompilationNameError(CompilationError, NameError):  # type: ignore[misc]
    """A name that the compiler does not know; also a NameError."""


class CompilationAttributeError(CompilationError, AttributeError):  # type: ignore[misc]
    """An attribute that the compiler does not know; also an AttributeError."""


class CompilationIndexError(CompilationError, IndexError):  # type: ignore[misc]
    """An index out of range at compile time; also an IndexError."""


class CompilationKeyError(CompilationError, KeyError):  # type: ignore[misc]
    """A missing key at compile time; also a KeyError."""


class CompilationAssertionError(CompilationError, AssertionError):  # type: ignore[misc]
    """A failed assertion of the language; also an AssertionError."""


class CompilationNotImplementedError(CompilationError, NotImplementedError):  # type: ignore[misc]
    """A construct that the compiler does not implement; also a NotImplementedError."""


_BY_TYPE: dict[type[Exception], type[CompilationError]] = {
    ValueError: CompilationValueError,
    TypeError: CompilationTypeError,
    NameError: CompilationNameError,
    UnboundLocalError: CompilationNameError,
    AttributeError: CompilationAttributeError,
    IndexError: CompilationIndexError,
    KeyError: CompilationKeyError,
    AssertionError: CompilationAssertionError,
    NotImplementedError: CompilationNotImplementedError,
}


def raising(body: Callable[[], object], jit: Jit, first_line: int) -> Callable[[], object]:
    """Return a kernel's body that raises Triton's errors where Python's own are raised in it.

    Args:
        body: Runs the kernel for the programs that run now.
        jit: The kernel.
        first_line: The line of its file in which its `def` stands.
    """

    def run() -> object:
        try:
            return body()
        except Exception as error:
            kind = _BY_TYPE.get(type(error))
            if kind is None:
                raise
            node = _node_at(error.__traceback__, jit, first_line)
            raise kind(jit.src, node, str(error)) from error

    return run


def _node_at(traceback: TracebackType | None, jit: Jit, first_line: int) -> ast.AST:
    """Return an AST node for the kernel's line that raised an error."""
    node = ast.Pass()
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if code.co_filename == jit.fn.__code__.co_filename and code.co_name == jit.__name__:
            node.lineno, node.col_offset = traceback.tb_lineno - first_line + 1, 4
            break
        traceback = traceback.tb_next
    return node
