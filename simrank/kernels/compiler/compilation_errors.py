"""Conversion of Python errors in kernels to Triton's CompilationError."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from triton.compiler.errors import CompilationError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from simrank.kernels.machine.protocols import Jit


class CompilationValueError(CompilationError, ValueError):  # type: ignore[misc] # Triton's class.
    """The compiler would reject a value; caught as either type."""


class CompilationTypeError(CompilationError, TypeError):  # type: ignore[misc]
    """The compiler would reject a type; caught as either type."""


class CompilationNameError(CompilationError, NameError):  # type: ignore[misc]
    """A name is unknown to the compiler; caught as either type."""


class CompilationAttributeError(CompilationError, AttributeError):  # type: ignore[misc]
    """An attribute is unknown to the compiler; caught as either type."""


class CompilationIndexError(CompilationError, IndexError):  # type: ignore[misc]
    """An index is out of range at compile time; caught as either type."""


class CompilationKeyError(CompilationError, KeyError):  # type: ignore[misc]
    """A key is missing at compile time; caught as either type."""


class CompilationAssertionError(CompilationError, AssertionError):  # type: ignore[misc]
    """An assertion of the language fails; caught as either type."""


class CompilationNotImplementedError(CompilationError, NotImplementedError):  # type: ignore[misc]
    """The compiler does not implement a construct; caught as either type."""


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
    """Wrap a kernel's body so that Python errors become Triton's errors.

    Args:
        body: Runs the kernel for the running programs.
        jit: The kernel.
        first_line: Line number of the kernel's `def`.
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
    """Return a syntax tree node with the kernel's line of an error."""
    node = ast.Pass()
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if code.co_filename == jit.fn.__code__.co_filename and code.co_name == jit.__name__:
            node.lineno, node.col_offset = traceback.tb_lineno - first_line + 1, 4
            break
        traceback = traceback.tb_next
    return node
