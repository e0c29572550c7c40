"""Facts of a run that all of its measured rows share."""

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
_ROUNDED, _OF_TIME = 1e-9, 5e-4  # Times are printed with four digits.


class Bandwidths(NamedTuple):
    """The bandwidths of a line, in GB/s.

    Attributes:
        time_us: The time that they follow from, in microseconds.
        algbw: Bytes over time.
        busbw: That times nccl-tests' factor of the collective.
        resolution: The unit of the last digit printed.
    """

    time_us: float
    algbw: float
    busbw: float
    resolution: float = 0.0


class Place(NamedTuple):
    """The position of a row in its file.

    Attributes:
        file: Name for messages.
        line: Line, or None where there is none.
    """

    file: str
    line: int | None = None


class Ran(NamedTuple):
    """A collective on some ranks.

    Attributes:
        collective: For example all_reduce.
        num_ranks: Ranks that took part.
        ranks_per_host: Ranks of each host, where the source says it.
        gpus_per_thread: GPUs that a host thread launches on, one after the other.
        algorithms: What NCCL had to choose from (NCCL_ALGO); empty: everything.
        protocols: Likewise (NCCL_PROTO).
        is_graph: Whether calls were launched as a CUDA graph.
    """

    collective: str
    num_ranks: int
    ranks_per_host: tuple[int, ...] = ()
    gpus_per_thread: int = 1
    algorithms: tuple[str, ...] = ()
    protocols: tuple[str, ...] = ()
    is_graph: bool = False

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
            algorithms=self.algorithms,
            protocols=self.protocols,
            is_graph=self.is_graph,
        )

    def check_bandwidth(self, size_bytes: int, printed: Bandwidths, place: Place) -> None:
        """Hold the bus bandwidth of a line against the ranks and the collective of the run.

        A log lists fewer ranks than ran where lines were cut off, and the times of 1,024 ranks
        are no times of 100.

        Raises:
            ConfigError: It is that of another number of ranks, or of another collective.
        """
        if not printed.busbw > 0 or self._explains(printed, size_bytes, self.num_ranks):
            return
        factor = busbw_factor(self.collective, self.num_ranks)
        expected = f"{factor:.4g} times algbw, as {self.collective} has on {self.num_ranks} ranks"
        got = f"{printed.busbw / max(printed.algbw, printed.resolution):.4g} times"
        fits = [n for n in _SOME_RANKS if self._explains(printed, size_bytes, n)]
        if fits:
            got += f", as on {' to '.join(dict.fromkeys([f'{fits[0]:,}', f'{fits[-1]:,}']))} ranks"
        to_fix = "set --num-ranks and --collective"
        raise ConfigError(ConfigProblem(place.file, place.line, "busbw", expected, got, to_fix))

    def _explains(self, printed: Bandwidths, size_bytes: int, num_ranks: int) -> bool:
        """Return whether the bus bandwidth is that of so many ranks, but for the digits left out.

        Releases before 2.10 printed as algbw of some collectives what is busbw: then the time
        says it.
        """
        factor, unsure = busbw_factor(self.collective, num_ranks), printed.resolution / 2
        of_time = size_bytes / printed.time_us / 1e3
        if abs(printed.busbw - printed.algbw * factor) <= unsure * (1 + factor) + _ROUNDED:
            return True
        return abs(printed.busbw - of_time * factor) <= unsure + _OF_TIME * printed.busbw


# To name: all that are small, then powers of two.
_SOME_RANKS = (*range(2, 129), *(1 << power for power in range(8, 13)))


def is_time(time_us: float) -> bool:
    """Return whether a number can be the time of a collective, in microseconds."""
    return _LEAST_US <= time_us <= _MOST_US


def collective_named(word: str | None, file: str, line: int | None = None) -> str:
    """Return the collective of a word.

    Raises:
        ConfigError: Missing or unknown collective.
    """
    name = None if word is None else COLLECTIVE_ALIASES.get(word, word)
    if name not in COLLECTIVES:
        expected, got = f"a collective: {choice_text(COLLECTIVES)}", word or "none"
        raise ConfigError(ConfigProblem(file, line, "", expected, got, "--collective all_reduce"))
    return name
