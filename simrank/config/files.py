"""Files of users, written whole or not at all, and the folder of built-in configurations."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from simrank.errors import ConfigError, ConfigProblem

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_FILE_BYTES = 1 << 30  # Assumed: no table or trace is larger; a device has no end.


def read_bytes(path: str | Path) -> bytes:
    """Return the content of a file or a pipe.

    Raises:
        OSError: It cannot be read, is a device or a socket, or is larger than 1 GiB.
    """
    with open(path, "rb", buffering=0) as file:
        mode = os.fstat(file.fileno()).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
            raise OSError(errno.EINVAL, "a device or a socket, not a regular file")
        pieces, size = [], 0
        while piece := file.read(1 << 24):
            pieces.append(piece)
            size += len(piece)
            if size > MAX_FILE_BYTES:
                raise OSError(errno.EFBIG, f"more than {MAX_FILE_BYTES >> 30} GiB")
    return b"".join(pieces)


def read_user_file(path: str | Path) -> bytes:
    """Return the content of a file that a user names.

    Raises:
        ConfigError: It cannot be read; see `read_bytes`.
    """
    try:
        return read_bytes(path)
    except (OSError, ValueError) as error:
        got = getattr(error, "strerror", None) or str(error)
        problem = ConfigProblem(str(path), None, "", "a file that can be read", got)
        raise ConfigError(problem) from None


@contextmanager
def written_whole(path: str | Path, mode: str = "w") -> Iterator[IO[Any]]:
    """Yield a file, of text or ("wb") bytes, that takes the place of `path` as the block ends.

    If the block raises, or the process is killed, `path` is as it was. A device or a pipe is
    written directly, as is a file in a folder where no other file can be made. Line ends are kept.

    Raises:
        OSError: It cannot be written; `filename` is `path`.
    """
    given: dict[str, Any] = {} if "b" in mode else {"encoding": "utf-8", "newline": ""}
    target = Path(os.path.realpath(path))  # A link stays a link.
    draft = target.with_name(f".{os.urandom(8).hex()}.part")
    is_replaced = (not target.exists() or target.is_file()) and os.access(target.parent, os.W_OK)
    try:
        if not is_replaced:
            with open(path, mode, **given) as file:
                yield file
            return
        try:
            with open(draft, mode.replace("w", "x"), **given) as file:  # No link is followed.
                yield file
            if target.exists():
                os.chmod(draft, stat.S_IMODE(target.stat().st_mode))
            os.replace(draft, target)
        except BaseException:
            with suppress(OSError):
                draft.unlink()
            raise
    except OSError as error:
        if str(error.filename) in ("None", str(draft)) and error.errno is not None:
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise


def write_text(path: str | Path, text: str) -> None:
    """Write a file whole, with the same bytes on every system; see `written_whole`."""
    with written_whole(path) as file:
        file.write(text)


# ---- folders of the built-in configurations, without imports of their readers ----


@cache
def configs_dir() -> Path:
    """Return the folder of the built-in configurations.

    It is `configs` inside an installed package, else `configs` beside it in a checkout.
    """
    package = Path(__file__).resolve().parent.parent
    inside = package / "configs"
    return inside if inside.is_dir() else package.parent / "configs"
