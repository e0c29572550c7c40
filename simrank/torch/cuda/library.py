"""Find, build and load the C++ library of simulated CUDA devices.

It is tied to one minor release of torch, whichever build. A library that came with the package is
used if there is one for the installed release; otherwise g++ builds it once, in a cache.
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
from _thread import allocate_lock, get_ident
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from simrank.engine.interrupts import start_thread
from simrank.errors import UnsupportedError
from simrank.ranks.current import for_real
from simrank.torch.releases import release_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_UNITS = ("all.cpp", "c10d.cpp")
_SOURCES = Path(__file__).parent / "csrc"
_PREBUILT = Path(__file__).parent / "lib"
_NAME = "libsimrank_cuda.so"
_log = logging.getLogger("simrank.torch.cuda")


def load(progress: Callable[[str], None] = _log.warning) -> ctypes.PyDLL:
    """Load the library for the installed torch; build it if it is missing.

    Args:
        progress: Called with a line at the begin and the end of a build; by default a warning of
            the logger `simrank.torch.cuda`, which Python prints.

    Raises:
        UnsupportedError: There is neither a library nor a compiler, or building it failed, or it
            is for another version of torch.
    """
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
    return cache_folder() / f"cuda-{_release()}-{_fingerprint()}" / _NAME


def installed_path() -> Path:
    """Return the path of the library for the installed torch."""
    return prebuilt_path() if prebuilt_path().is_file() else _cached_path()


def prebuilt_path() -> Path:
    """Return the path of the package's prebuilt library for the installed torch."""
    return _PREBUILT / _release() / _NAME


def _release() -> str:
    """Return the minor release of the installed torch, such as 2.13."""
    return ".".join(map(str, release_of(torch.__version__)))


def cache_folder() -> Path:
    """Return the folder of built libraries: `$SIMRANK_CACHE`, or `~/.cache/simrank`."""
    given = os.environ.get("SIMRANK_CACHE")
    return Path(given) if given else Path.home() / ".cache" / "simrank"


def _open(path: Path) -> ctypes.PyDLL:
    """Open a library of this release of torch as PyDLL: calls are short and may run Python."""
    try:
        library = ctypes.PyDLL(str(path))
    except OSError as error:
        raise UnsupportedError(f"{path} cannot be loaded: {error}") from error
    library.simrank_built_for.restype = ctypes.c_char_p
    built_for = library.simrank_built_for().decode()
    if built_for != _release():
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
            progress(f"building simulated CUDA devices for torch {_release()}, once (a minute)")
            _build(path)
            progress(f"built {path}")
    return path


def _fingerprint() -> str:
    """Return a hash of the library's sources and compiler."""
    digest = hashlib.sha256()
    for source in sorted(_SOURCES.glob("*.[chi]*")):
        digest.update(source.name.encode() + source.read_bytes())
    digest.update(Path(__file__).with_name("op_table.py").read_bytes())
    digest.update(f"{_release()} {_abi()} {sysconfig.get_platform()}".encode())
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
        linking = [compiler, "-shared", "-s", *map(str, objects), "-o", str(work / _NAME)]
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
        f'-DSIMRANK_TORCH_RELEASE="{_release()}"',
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


# ---- the C functions of the library, with their types and errors ----

NOT_COMPILED = "Torch not compiled with CUDA enabled"  # What a CPU build of torch says.
_ERROR_ROOM = 4096

_INT, _INT64, _UINT64 = ctypes.c_int, ctypes.c_int64, ctypes.c_uint64
_POINTER, _TEXT, _WORDS = ctypes.c_void_p, ctypes.c_char_p, ctypes.POINTER(ctypes.c_int64)
_COUNT = ctypes.POINTER(ctypes.c_int64)
_ADDRESS = ctypes.POINTER(ctypes.c_uint64)
# By name without its prefix: the result, and the arguments.
_SIGNATURES: dict[str, tuple[object, tuple[object, ...]]] = {
    "register": (_INT, (_TEXT, _INT64)),
    "register_c10d": (None, ()),
    "enable": (_INT, (_INT, _INT, _UINT64, _UINT64, _UINT64, _INT, _TEXT, _INT64)),
    "disable": (None, ()),
    "processors": (None, (_INT, _INT)),
    "callbacks": (None, (_POINTER,)),
    "rank_new": (_POINTER, (_INT64, _INT, _INT, _INT64)),
    "rank_free": (None, (_POINTER,)),
    "bind": (None, (_POINTER,)),
    "bind_other_threads": (None, (_POINTER,)),
    "num_devices": (_INT, ()),
    "is_initialized": (_INT, ()),
    "set_initialized": (None, (_INT,)),
    "rank_tag": (_INT64, ()),
    "first_device": (_INT, ()),
    "current_device": (_INT, ()),
    "current_stream": (_INT64, (_INT,)),
    "set_stream": (None, (_INT, _INT64)),
    "memory_stats": (_WORDS, (_INT,)),
    "memory_snapshot": (_WORDS, (_INT, _COUNT)),
    "memory_trace": (_WORDS, (_INT, _COUNT)),
    "trace_memory": (None, (_INT,)),
    "set_memory_limit": (None, (_INT, _UINT64)),
    "find_block": (_INT, (_UINT64, _ADDRESS, _ADDRESS)),
    "find_pinned": (_INT, (_UINT64, _ADDRESS, _ADDRESS)),
    "device_of": (_INT, (_UINT64,)),
    "values": (None, (_INT, _UINT64, _UINT64)),
    "are_known": (_INT, (_UINT64, _UINT64)),
    "unknown_flags": (None, (_UINT64, _UINT64, _UINT64, _POINTER)),
    "lose": (None, (_UINT64, _UINT64, _TEXT, _INT64)),
    "regain": (None, (_UINT64, _UINT64)),
    "free_base": (_UINT64, (_UINT64, _UINT64)),
    "num_live_blocks": (_INT64, ()),
    "pending_add": (None, (_UINT64, _UINT64, _INT, _INT64)),
    "pending_remove": (None, (_INT64,)),
    "pending_clear": (None, ()),
    "touch": (_INT, (_UINT64, _UINT64, _INT)),
    "record": (None, (_INT,)),
    "recorded": (_WORDS, (_COUNT,)),
    "forget_recorded": (None, ()),
    "launched": (_POINTER, (_COUNT,)),  # Not as words: each call of a collective asks.
    "phase": (_INT, ()),
    "step": (None, (_INT,)),
    "forget_launched": (None, ()),
    "form": (_WORDS, (_INT64, _COUNT)),
    "op_name": (_TEXT, (ctypes.c_int32,)),
    "graph_new": (_POINTER, ()),
    "graph_free": (None, (_POINTER,)),
    "graph_begin": (_INT, (_POINTER, _INT64)),
    "graph_end": (None, ()),
    "graph_restore": (None, (_POINTER,)),
    "graph_reset": (None, (_POINTER,)),
    "graph_size": (_INT64, (_POINTER,)),
    "is_capturing": (_INT, ()),
    "signal_pad": (_UINT64, (_UINT64,)),
    "multicast": (None, (_INT,)),
    "hold": (None, (_ADDRESS, _INT)),
    "forget_held": (None, ()),
    "pool_begin": (None, (_INT, _INT64, _INT, _INT)),
    "pool_end": (None, (_INT, _INT64)),
    "pool_drop": (None, (_INT64,)),
    "watch_scopes": (None, (_INT,)),
}


class _Operators:
    """simrank's operators, which no function mode of the program sees: CUDA has none of them."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        operator = getattr(torch.ops.simrank_cuda, name)
        has_modes: Any = torch._C._len_torch_function_stack  # noqa: SLF001 - torch's question
        disabled = torch._C.DisableTorchFunction  # noqa: SLF001 - the documented way out of modes

        def call(*args: Any) -> Any:
            if not has_modes():
                return operator(*args)
            with disabled():
                return operator(*args)

        setattr(self, name, call)
        return call


operators = _Operators()


@cache
def native() -> ctypes.PyDLL:
    """Return the library; load it and register it with torch at the first call."""
    _start_autograd_without_devices()
    library = load()
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, f"simrank_{name}")
        function.restype, function.argtypes = result, arguments
    _KERNELS.impl("raise_kept", _raise_kept, "CPU")  # type: ignore[no-untyped-call]
    error = ctypes.create_string_buffer(_ERROR_ROOM)
    if library.simrank_register(error, _ERROR_ROOM):
        raise RuntimeError(error.value.decode())
    if torch.distributed.is_available():
        library.simrank_register_c10d()
    return library


def require_device() -> None:
    """Raise the error of CPU builds if this thread sees no device."""
    if not native().simrank_num_devices():
        raise AssertionError(NOT_COMPILED)


def use_device() -> None:
    """Initialise CUDA for this thread's rank.

    Raises:
        AssertionError: No device is visible to this thread.
    """
    library = native()
    if not library.simrank_is_initialized():
        require_device()
        library.simrank_set_initialized(1)


class Initialized:
    """The flag `torch.cuda._initialized`, of the rank that reads it."""

    def __bool__(self) -> bool:
        """Return whether this thread's rank has used a device."""
        return bool(native().simrank_is_initialized())


def call_before_use(call: Callable[[], object]) -> None:
    """Call a function that torch defers until CUDA is initialised, without initialising it.

    A seed may be set early: nothing draws before the first use.
    """
    library = native()
    before = library.simrank_is_initialized()
    try:
        call()
    finally:
        library.simrank_set_initialized(before)


def enable_devices(
    layout: tuple[int, int, int, int, int],
    *,
    fill_fresh: bool,
    value_limits: tuple[int, int] | None,
) -> None:
    """Open devices (number, number of spans, first address, span and memory of each in bytes).

    Args:
        layout: Those.
        fill_fresh: Fill fresh memory with 0xFF.
        value_limits: Bytes up to which memory has values, of any type and of integers; None: all.
    """
    native().simrank_values(value_limits is None, *(value_limits or (0, 0)))
    error = ctypes.create_string_buffer(_ERROR_ROOM)
    if native().simrank_enable(*layout, int(fill_fresh), error, _ERROR_ROOM):
        raise RuntimeError(error.value.decode().splitlines()[0])


def _start_autograd_without_devices() -> None:
    """Start autograd before devices exist: it makes a thread per device at its first backward.

    On a thread for which torch keeps nothing: the rank may be in the midst of a backward of its
    own, in inference or under a mode, or in `torch.tensor`, for which autograd is switched off.
    """
    is_running = allocate_lock()

    def run_backward() -> None:
        try:
            torch.ones((), requires_grad=True).mul(1).backward()  # type: ignore[no-untyped-call]
        finally:
            is_running.release()

    is_running.acquire()
    start_thread(run_backward, ())
    is_running.acquire()


_KERNELS = torch.library.Library("simrank_cuda", "FRAGMENT")  # type: ignore[no-untyped-call]
_kept: dict[int, BaseException] = {}


def keep(error: BaseException) -> int:
    """Keep a callback's exception for this thread; the result makes C++ return early."""
    _kept[get_ident()] = error
    return -1


def raise_kept() -> None:
    """Raise the exception that a callback raised within a call from Python."""
    raise _kept.pop(get_ident())


_when_missing: list[Callable[[], bool]] = []


def when_missing(provide: Callable[[], bool]) -> None:
    """Set the function that binds a rank to a thread that uses a device without one.

    torch itself asks for devices once in a process, at their first use.
    """
    _when_missing[:] = [provide]


def _raise_kept(reason: int) -> None:
    """Raise inside torch's C++: the exception passes through its frames."""
    if not reason and any(provide() for provide in _when_missing):
        return
    error = _kept.pop(get_ident(), None) if reason else None
    raise error or AssertionError(NOT_COMPILED)
