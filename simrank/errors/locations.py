"""Lines of programs as reports show them: `train.py:41`, or `In [3], line 4` in a notebook."""

from __future__ import annotations

import re
import sys
from typing import Any

_CELL_OF_IPYTHON = re.compile(r"<ipython-input-(\d+)-")
_CELL_OF_KERNEL = re.compile(r"[/\\]ipykernel_\d+[/\\]\d+\.py$")


def place_text(file: str, line: int) -> str:
    """Return `train.py:41`; `In [3], line 4` where the file is a cell of a notebook."""
    cell = cell_text(file)
    return f"{file.rpartition('/')[2]}:{line}" if cell is None else f"{cell}, line {line}"


def cell_text(file: str) -> str | None:
    """Return `In [3]` for the file of a notebook's cell; None for any other file.

    Source: `IPython.core.compilerop.CachingCompiler`, IPython 7.21 to 9: it numbers cells by file.
    """
    in_terminal = _CELL_OF_IPYTHON.match(file)
    if in_terminal is None and _CELL_OF_KERNEL.search(file) is None:
        return None
    in_name = "?" if in_terminal is None else in_terminal[1]
    return f"In [{_numbers_of_cells().get(file, in_name)}]"


def _numbers_of_cells() -> dict[str, int]:
    """Return IPython's number of each file of a cell; empty outside of IPython."""
    running: Any = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell = None if running is None else running()
    found: dict[str, int] = getattr(getattr(shell, "compile", None), "_filename_map", {})
    return found
