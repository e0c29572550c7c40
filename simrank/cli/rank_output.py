"""Destinations of the lines of a script's ranks: the terminal, with prefixes, and files."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, cast

import typer

from simrank.cli.common import parse_ranks
from simrank.errors import ConfigError, ConfigProblem
from simrank.isolation.output import Output

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


_STREAMS: dict[str, tuple[str, ...]] = {
    "0": (),
    "1": ("stdout",),
    "2": ("stderr",),
    "3": ("stdout", "stderr"),
}
_MAX_OPEN = 200  # assumed: well below the 1,024 files that a process may usually have open


class Logs:
    """The files of ranks: `FOLDER/RANK/stdout.log` and `stderr.log`, written from their start.

    They are made where a rank writes; the ones that were used longest ago are closed meanwhile.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[Path, TextIO] = {}
        self._begun: set[Path] = set()

    def file(self, rank: int, stream: str) -> TextIO:
        """Return the file of a rank's stream."""
        path = self._folder / str(rank) / f"{stream}.log"
        file: TextIO | None = self._open.pop(path, None)
        if file is None:
            if len(self._open) >= _MAX_OPEN:
                self._open.pop(next(iter(self._open))).close()
            path.parent.mkdir(parents=True, exist_ok=True)
            mode = "a" if path in self._begun else "w"
            file = cast("TextIO", path.open(mode, 1, "utf-8", "backslashreplace", ""))
            self._begun.add(path)
        self._open[path] = file
        return file

    def close(self) -> None:
        """Close them all."""
        while self._open:
            self._open.popitem()[1].close()


@dataclass(frozen=True)
class Outputs:
    """Options for the ranks' output.

    Attributes:
        prefix: "rank" or "none".
        tee: Which streams are shown and kept in files, as torchrun writes it: `3`, or `0:1,1:2`.
        redirects: Which are kept in files alone.
        log_dir: Where; None: a new folder, if one is needed. Without the others it is `tee="3"`.
        only: The local ranks whose lines are shown; None for all.
    """

    prefix: str = "rank"
    tee: str = "0"
    redirects: str = "0"
    log_dir: str | None = None
    only: str | None = None

    @contextmanager
    def open(self, num_ranks: int, ranks_per_node: int) -> Iterator[Output]:
        """Yield where lines go while a program runs.

        Raises:
            ConfigError: An option is written wrongly, or the folder cannot be made.
        """
        is_only_named = self.log_dir is not None and (self.tee, self.redirects) == ("0", "0")
        tee = _streams_of("--tee", "3" if is_only_named else self.tee)
        redirects = _streams_of("--redirects", self.redirects)
        only = parse_ranks(self.only, "--local-ranks-filter")

        def is_shown(rank: int, stream: str) -> bool:
            local = rank % ranks_per_node
            return stream not in redirects[local] and (only is None or local in only)

        def log(rank: int, stream: str) -> TextIO | None:
            local = rank % ranks_per_node
            is_kept = stream in tee[local] or stream in redirects[local]
            return logs.file(rank, stream) if logs is not None and is_kept else None

        logs = Logs(self._folder()) if self._needs_folder() else None
        is_prefixed = self.prefix == "rank" and num_ranks > 1
        try:
            yield Output((lambda rank: f"[rank{rank}]: ") if is_prefixed else None, log, is_shown)
        finally:
            if logs is not None:
                logs.close()

    def _needs_folder(self) -> bool:
        return self.log_dir is not None or (self.tee, self.redirects) != ("0", "0")

    def _folder(self) -> Path:
        """Make the folder, and print its path if it is a temporary one."""
        if self.log_dir is None:
            folder = tempfile.mkdtemp(prefix="simrank_")
            typer.echo(f"simrank: logs of ranks are in {folder}", err=True)
            return Path(folder)
        try:
            Path(self.log_dir).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            expected, got = "a folder that can be made", f"{self.log_dir} ({error.strerror})"
            problem = ConfigProblem("command line", None, "--log-dir", expected, got)
            raise ConfigError(problem) from None
        return Path(self.log_dir)


def _streams_of(option: str, text: str) -> Mapping[int, tuple[str, ...]]:
    """Return the streams per local rank: `3` for all, or `0:1,1:2` for some."""
    if text in _STREAMS:
        return defaultdict(lambda: _STREAMS[text])
    streams_by_rank: dict[int, tuple[str, ...]] = defaultdict(tuple)
    for part in text.split(","):
        local, colon, streams = part.partition(":")
        if not (colon and local.isdecimal() and streams in _STREAMS):
            expected = "0 none, 1 stdout, 2 stderr or 3 both, or these by local rank: 0:1,1:2"
            raise ConfigError(ConfigProblem("command line", None, option, expected, text))
        streams_by_rank[int(local)] = _STREAMS[streams]
    return streams_by_rank
