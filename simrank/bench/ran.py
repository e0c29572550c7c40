"""What ran, and on which ranks: the part of measured rows that all sizes of a run share."""

from __future__ import annotations

from typing import NamedTuple

from simrank.collectives.bounds import busbw_factor
from simrank.config.measured import MeasuredRow
from simrank.config.names import COLLECTIVE_ALIASES, COLLECTIVES
from simrank.config.quantity import choice_text
from simrank.errors import ConfigError, ConfigProblem

MAX_RANKS = 1 << 20
MAX_SIZE_BYTES = 1 << 60
_LEAST_US, _MOST_US = 1e-3, 1e12


class Ran(NamedTuple):
    """A collective on some ranks.

    Attributes:
        collective: For example all_reduce.
        num_ranks: Ranks that took part.
        ranks_per_host: Ranks of each host, where the source says it.
        gpus_per_thread: GPUs that a host thread launches on, one after the other.
    """

    collective: str
    num_ranks: int
    ranks_per_host: tuple[int, ...] = ()
    gpus_per_thread: int = 1

    def row(self, file: str, size_bytes: int, dtype: str, time_us: float) -> MeasuredRow:
        """Return a measured size; its bandwidths follow from its time."""
        algbw = size_bytes / time_us / 1e3
        return MeasuredRow(
            system=file,
            collective=self.collective,
            num_ranks=self.num_ranks,
            size_bytes=size_bytes,
            dtype=dtype,
            time_us=time_us,
            algbw_GBps=algbw,
            busbw_GBps=algbw * busbw_factor(self.collective, self.num_ranks),
            source=file,
            ranks_per_host=self.ranks_per_host,
            gpus_per_thread=self.gpus_per_thread,
        )


def is_time(time_us: float) -> bool:
    """Whether a number can be the time of a collective, in microseconds."""
    return _LEAST_US <= time_us <= _MOST_US


def collective_named(word: str | None, file: str, line: int | None = None) -> str:
    """Return the collective that a word stands for.

    Raises:
        ConfigError: There is none, or it is none.
    """
    name = None if word is None else COLLECTIVE_ALIASES.get(word, word)
    if name not in COLLECTIVES:
        expected, got = f"what ran: {choice_text(COLLECTIVES)}", word or "nothing that says it"
        raise ConfigError(ConfigProblem(file, line, "", expected, got, "--collective all_reduce"))
    return name
