"""`simrank tune`: choices for NCCL's tuner plugin by the laws; start with `tune`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from simrank.collectives.nccl import predict_times
from simrank.collectives.nccl.evidence import communicator_on
from simrank.collectives.nccl.machine import spec_of
from simrank.config.project import AUTO
from simrank.config.quantity import choice_text
from simrank.config.tuner import COLLECTIVES, MAX_BYTES, TunerRow
from simrank.hardware import load_cluster
from simrank.planning.predict import collective_of, shape_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from simrank.collectives.nccl import Communicator, GroupShape
    from simrank.config.load import ClusterRef
    from simrank.hardware import Cluster

_LARGEST_BYTES = 1 << 40  # What is larger takes as long per byte.
_PER_OCTAVE = 8  # Assumed: a choice that is the fastest for less than an eighth of one is none.


class _Range(NamedTuple):
    first_bytes: int
    last_bytes: int
    algorithm: str
    protocol: str


def tune(
    collectives: Sequence[str],
    num_ranks: int | None = None,
    cluster: ClusterRef = "hgx_h100",
    *,
    nodes: int | None = None,
    calibration: str | None = AUTO,
) -> list[TunerRow]:
    """Return the fastest algorithm and protocol for each range of sizes.

    Args:
        collectives: For example all_reduce; those that the plugin knows.
        num_ranks: As for `simrank.predict`.
        cluster: Likewise.
        nodes: Likewise.
        calibration: Likewise.

    Returns:
        A row per range, which holds for this number of ranks and nodes, and for buffers that are
        not registered: the laws know of no others.

    Raises:
        ValueError: An argument is none of what it may be.
        UnsupportedError: The cluster says nothing of NCCL, or nothing of a network.
        ConfigError: The cluster is wrong.
    """
    names = [collective_of(name) for name in collectives]
    for name in names:
        if name not in COLLECTIVES.values():
            known = choice_text(tuple(COLLECTIVES.values()))
            raise ValueError(f"collective={name!r}: expected {known}")
    built = load_cluster(cluster, nodes)
    shape = shape_of(built, num_ranks)
    return [
        TunerRow(
            built.name,
            0,
            name,
            each.first_bytes,
            each.last_bytes,
            each.algorithm,
            each.protocol.lower(),
            num_nodes=shape.num_nodes,
            num_ranks=shape.num_ranks,
            registered=0,
        )
        for name in names
        for each in _ranges(name, _fastest_on(built, name, shape, calibration))
    ]


def _fastest_on(
    cluster: Cluster, collective: str, shape: GroupShape, calibration: str | None
) -> Communicator:
    """Return ranks whose fastest algorithm is chosen."""
    comm, _ = communicator_on(cluster, collective, shape, spec_of(cluster, shape), calibration)
    return replace(comm, calibration=replace(comm.calibration, takes_fastest=True))


def _ranges(collective: str, comm: Communicator) -> Iterator[_Range]:
    """Yield the ranges of sizes for which one choice is the fastest, from 0 on without a gap."""
    num_octaves = _LARGEST_BYTES.bit_length() - 1
    sizes = np.unique(np.exp2(np.arange(num_octaves * _PER_OCTAVE + 1) / _PER_OCTAVE).astype(int))
    found = predict_times(collective, sizes, comm)
    first = 0
    for index in np.flatnonzero(np.diff(found.chosen)):
        last = _last_before(collective, comm, int(sizes[index]), int(sizes[index + 1]))
        yield _Range(first, last, *found.choices[found.chosen[index]])
        first = last + 1
    yield _Range(first, MAX_BYTES, *found.choices[found.chosen[-1]])


def _last_before(collective: str, comm: Communicator, low: int, high: int) -> int:
    """Return the last size for which the choice is that of the lower of two sizes."""

    def choice(size: int) -> int:
        return int(predict_times(collective, [size], comm).chosen[0])

    own = choice(low)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if choice(middle) == own else (low, middle)
    return low
