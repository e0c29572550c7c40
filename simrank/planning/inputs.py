"""Inputs of a run: the files that it reads, what is installed, variables of libraries.

A row of a plan that was kept holds as long as all of them are as they were.
"""

from __future__ import annotations

import hashlib
import os
import sys
import sysconfig
from importlib.util import source_from_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simrank.config.files import configs_dir

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_WRITES = os.O_WRONLY | os.O_RDWR
_LARGE_BYTES = 2**24  # Assumed: larger files are data, and known by their size and time.
_LIBRARIES = ("NCCL_", "TORCH", "PYTORCH_", "CUDA_", "TRITON_", "SIMRANK_")
_OF_SYSTEM = ("/proc", "/sys", "/dev", "/etc")


_files: tuple[set[str], set[str]] | None = None  # Read and written, where they are noted.


def note_files() -> None:
    """Note from now on the files that this process opens.

    Python tells each of them: code that is imported, also by a rank, and data.
    """
    global _files  # noqa: PLW0603 - of the process, as a hook that Python never removes
    if _files is None:
        _files = set(), set()
        sys.addaudithook(_note)


def _note(event: str, args: tuple[Any, ...]) -> None:
    if event != "open" or isinstance(args[0], int) or _files is None:
        return
    path, mode, flags = args
    writes = flags & _WRITES or (mode is not None and set(mode) & set("wax+"))
    _files[bool(writes)].add(str(Path(os.fsdecode(path)).absolute()))


def facts() -> dict[str, list[str]]:
    """Return the files and optimizers of this process; none if they are not noted.

    Returns:
        `files_read`: the files that were read and not written, without those of installed
        packages, of simrank and of the system; `optimizers`: torch's classes that were used.
    """
    if _files is None:
        return {}
    read, written = _files
    names = sysconfig.get_paths()
    installed = {names[each] for each in ("stdlib", "platstdlib", "purelib", "platlib")}
    ours = map(str, (Path(__file__).parents[1], configs_dir()))
    left_out = tuple(f"{each}{os.sep}" for each in (*installed, *ours, *_OF_SYSTEM))
    found = sorted({_source_of(path) for path in read - written})
    files = [path for path in found if not path.startswith(left_out) and Path(path).is_file()]
    return {"files_read": files, "optimizers": sorted(cls.__name__ for cls in _optimizers())}


def _optimizers() -> set[type]:
    """Return torch's classes of optimizers that have been made: it marks their `step`."""
    torch_optim: Any = sys.modules.get("torch.optim")
    found: set[type] = set()
    left = [] if torch_optim is None else [torch_optim.Optimizer]
    while left:
        cls = left.pop()
        left += cls.__subclasses__()
        if getattr(cls.step, "hooked", False):
            found.add(cls)
    return found


def _source_of(path: str) -> str:
    """Return the source of a file of bytecode, and any other file as it is."""
    if not path.endswith(".pyc"):
        return path
    try:
        return source_from_cache(path)
    except ValueError:  # Bytecode without a source beside it.
        return path


def digests_of(paths: Iterable[str], folder: Path, begin_ns: int) -> dict[str, str] | None:
    """Return a digest of each file by its path, from the folder where it lies there.

    Args:
        paths: The files.
        folder: That of the plan.
        begin_ns: When the run began; None is returned where a file is younger.
    """
    found = {}
    for path in map(Path, paths):
        if path.stat().st_mtime_ns >= begin_ns:
            return None
        name = path.relative_to(folder) if path.is_relative_to(folder) else path
        found[str(name)] = _digest(path)
    return found


def is_unchanged(path: str, digest: str, folder: Path) -> bool:
    """Return whether a file has the digest that `digests_of` gave."""
    try:
        return _digest(folder / path) == digest
    except OSError:
        return False


def _digest(path: Path) -> str:
    found = path.stat()
    if found.st_size > _LARGE_BYTES:
        return f"{found.st_size} bytes at {found.st_mtime_ns}"
    return hashlib.sha256(path.read_bytes()).hexdigest()


def surroundings() -> tuple[object, ...]:
    """Return the version of Python, installed packages and libraries' variables."""
    variables = sorted(each for each in os.environ.items() if each[0].startswith(_LIBRARIES))
    return sys.version, sorted(_installed()), variables


def _installed() -> Iterator[str]:
    """Yield the names of installed packages with their versions."""
    for path in sys.path:
        if Path(path).is_dir():
            yield from (
                each for each in os.listdir(path) if each.endswith((".dist-info", ".egg-info"))
            )
