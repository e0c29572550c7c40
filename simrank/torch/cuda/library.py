"""Find, build and load the C++ library of simulated CUDA devices.

It is tied to one exact version of torch. A library that came with the package is used if there
is one for the installed version; otherwise g++ builds it once, in a cache.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import logging
import os
import shutil
import subprocess
import sysconfig
import tempfile
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from simrank.errors import UnsupportedError
from simrank.ranks.current import for_real

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TRIED_VERSIONS = ("2.13.0",)
_UNITS = ("all.cpp", "c10d.cpp")
_SOURCES = Path(__file__).parent / "csrc"
_PREBUILT = Path(__file__).parent / "lib"
_NAME = "libsimrank_cuda.so"
_log = logging.getLogger("simrank.torch.cuda")


def load(progress: Callable[[str], None] = _log.info) -> ctypes.PyDLL:
    """Load the library for the installed torch; build it if it is missing.

    Args:
        progress: Told in one line what takes long.

    Raises:
        UnsupportedError: There is neither a library nor a compiler, or building it failed, or it
            is for another version of torch.
    """
    _warn_if_untried()
    path = prebuilt_path()
    if not path.is_file():
        path = _built_path(progress)
    return _open(path)


def check_available() -> None:
    """Raise unless the library, or a compiler to build it, is available.

    Raises:
        UnsupportedError: There is neither.
    """
    if not prebuilt_path().is_file() and not _cached_path().is_file():
        _compiler()


def _cached_path() -> Path:
    """Return the path of the cached library for the installed torch."""
    return cache_folder() / f"cuda-{torch.__version__}-{_fingerprint()}" / _NAME


def installed_path() -> Path:
    """Return the path of the library for the installed torch."""
    return prebuilt_path() if prebuilt_path().is_file() else _cached_path()


def prebuilt_path() -> Path:
    """Return the path of the package's prebuilt library for the installed torch."""
    return _PREBUILT / torch.__version__ / _NAME


def cache_folder() -> Path:
    """Return the folder of built libraries: `$SIMRANK_CACHE`, or `~/.cache/simrank`."""
    given = os.environ.get("SIMRANK_CACHE")
    return Path(given) if given else Path.home() / ".cache" / "simrank"


def _warn_if_untried() -> None:
    version = torch.__version__.partition("+")[0]
    if version not in TRIED_VERSIONS:
        warnings.warn(
            f"simulated CUDA devices were never tried with torch {version}, "
            f"only with {', '.join(TRIED_VERSIONS)}",
            stacklevel=3,
        )


def _open(path: Path) -> ctypes.PyDLL:
    """Open a library of this torch version as PyDLL: calls are short and may run Python."""
    try:
        library = ctypes.PyDLL(str(path))
    except OSError as error:
        raise UnsupportedError(f"{path} cannot be loaded: {error}") from error
    library.simrank_built_for.restype = ctypes.c_char_p
    built_for = library.simrank_built_for().decode()
    if built_for != torch.__version__:
        raise UnsupportedError(
            f"{path} was built for torch {built_for}, but torch {torch.__version__} is installed"
        )
    return library


def _built_path(progress: Callable[[str], None]) -> Path:
    """Return the cached library; build it if it is missing."""
    path = _cached_path()
    if path.is_file():
        return path
    folder = path.parent
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder / "lock"):
        if not path.is_file():  # Another process may have built it meanwhile.
            progress(f"building simulated CUDA devices for torch {torch.__version__} (a minute)")
            _build(path)
            progress(f"built {path}")
    return path


def _fingerprint() -> str:
    """Return a hash of the library's sources and compiler."""
    digest = hashlib.sha256()
    for source in sorted(_SOURCES.glob("*.[chi]*")):
        digest.update(source.name.encode() + source.read_bytes())
    digest.update(Path(__file__).with_name("op_table.py").read_bytes())
    digest.update(f"{torch.__version__} {_abi()} {sysconfig.get_platform()}".encode())
    return digest.hexdigest()[:16]


def _abi() -> int:
    return int(torch.compiled_with_cxx11_abi())


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        with for_real():  # Another process builds it: no rank could let it go on.
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _compiler() -> str:
    """Return the C++ compiler's path."""
    wanted = os.environ.get("CXX", "g++")
    found = shutil.which(wanted)
    if found is None:
        raise UnsupportedError(
            f"device='cuda' needs a C++ compiler once, and '{wanted}' is not installed\n"
            "  to fix: apt-get install g++   (or point CXX to one)"
        )
    return found


def _build(path: Path) -> None:
    """Compile all units side by side and put the library in place at once."""
    from simrank.torch.cuda.op_table import write_tables  # noqa: PLC0415 - a second to import.

    compiler = _compiler()
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        work = Path(folder)
        write_tables(work)
        objects = [work / f"{unit}.o" for unit in _UNITS]
        compiling = [
            subprocess.Popen(
                [compiler, *_flags(work), "-c", str(_SOURCES / unit), "-o", str(target)],
                stderr=subprocess.PIPE,
                text=True,
            )
            for unit, target in zip(_UNITS, objects, strict=True)
        ]
        outputs = [process.communicate()[1] for process in compiling]
        for process, text in zip(compiling, outputs, strict=True):
            _check(process.returncode, text)
        linking = [compiler, "-shared", *map(str, objects), "-o", str(work / _NAME)]
        linker = [*linking, f"-L{_torch_folder() / 'lib'}", "-ltorch_cpu", "-lc10"]
        linked = subprocess.run(linker, stderr=subprocess.PIPE, text=True, check=False)
        _check(linked.returncode, linked.stderr)
        (work / _NAME).replace(path)


def _flags(work: Path) -> list[str]:
    include = _torch_folder() / "include"
    folders = [include, include / "torch" / "csrc" / "api" / "include", _SOURCES, work]
    return [
        "-std=c++20",
        "-O2",
        "-g0",
        "-fPIC",
        "-fvisibility=default",
        "-w",  # torch's headers warn.
        f"-D_GLIBCXX_USE_CXX11_ABI={_abi()}",
        f'-DSIMRANK_TORCH_VERSION="{torch.__version__}"',
        *(f"-I{folder}" for folder in folders),
    ]


def _torch_folder() -> Path:
    return Path(torch.__file__).parent


def _check(status: int, text: str) -> None:
    if status:
        errors = [line for line in text.splitlines() if "error" in line] or text.splitlines()
        raise UnsupportedError(
            f"building simulated CUDA devices for torch {torch.__version__} failed:\n  "
            + "\n  ".join(errors[:10])
        )
