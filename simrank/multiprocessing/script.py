"""Run a script once per rank, as torchrun does: own globals, own `sys.argv`, shared code."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simrank.errors import SimrankError
from simrank.multiprocessing.spawn import spawn_in
from simrank.ranks import require_program, stdlib

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import CodeType

    from simrank.ranks import Program


def run_script(parent: Program, path: str | Path, args: Sequence[str], nprocs: int) -> None:
    """Run the program in a file on `nprocs` ranks of the parent's Context.

    Each rank executes the file as `__main__` in a namespace of its own; what it imports is shared.

    Args:
        parent: Who starts it.
        path: A Python file.
        args: Its command line arguments.
        nprocs: Number of ranks.

    Raises:
        SimrankError: The file cannot be read.
        SyntaxError: It is no Python.
        SpawnException: A rank raised; see `spawn` for the others.
    """
    file = Path(path)
    try:
        source = file.read_bytes()
    except OSError as error:
        raise SimrankError(f"{path}: the program cannot be read ({error.strerror})") from None
    code = compile(source, str(file), "exec")
    folder = str(file.absolute().parent)
    sys.path.insert(0, folder)  # As Python does for a script.
    try:
        spawn_in(parent, _run_once, (code, [str(path), *args]), nprocs, share_args=True)
    finally:
        sys.path.remove(folder)


@contextmanager
def fresh_imports() -> Iterator[None]:
    """Forget the program's own modules that are imported within the block, and what they hold."""
    before = set(sys.modules)
    try:
        yield
    finally:
        for name, module in list(sys.modules.items()):
            if name not in before and stdlib.is_programs_own(module):
                del sys.modules[name]


def _run_once(_: int, code: CodeType, argv: list[str]) -> None:
    require_program("a script").local["argv"] = list(argv)
    names: dict[str, Any] = {
        "__name__": "__main__",
        "__file__": argv[0],
        "__builtins__": __builtins__,
    }
    exec(code, names)  # noqa: S102 - that is what running a script means
