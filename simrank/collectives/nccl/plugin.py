"""Choices of NCCL's example tuner plugin, from the rows of its file.

Rules: the first row that matches and that NCCL offers is taken; a row that asks for what NCCL does
not offer is passed over, and so are algorithms that are not modelled (CollNet). A collective
is one call that NCCL has not fused with others, on buffers that are not registered. The number of
channels in a row changes nothing here. Source: NVIDIA/nccl plugins/tuner/example/plugin.cc,
src/enqueue.cc.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simrank.config.project import ANY

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

    from simrank.collectives.nccl.laws import Floats
    from simrank.collectives.nccl.machine import GroupShape
    from simrank.config.tuner import TunerRow

_ONE_CALL, _NOT_REGISTERED = 1, 0


def matching(rows: Sequence[TunerRow], collective: str, shape: GroupShape) -> list[TunerRow]:
    """Return the rows that match a collective on some ranks, for any size."""
    return [
        row
        for row in rows
        if row.collective == collective
        and row.num_nodes in (ANY, shape.num_nodes)
        and row.num_ranks in (ANY, shape.num_ranks)
        and row.num_ops in (ANY, _ONE_CALL)
        and row.registered in (ANY, _NOT_REGISTERED)
    ]


def asked_for(row: TunerRow, choices: Sequence[tuple[str, str]]) -> int | None:
    """Return the index of a row's choice; None if NCCL does not offer it."""
    for number, (algorithm, protocol) in enumerate(choices):
        if (algorithm, protocol.lower()) == (row.algorithm, row.protocol):
            return number
    return None


def overridden(
    chosen: npt.NDArray[np.int64],
    sizes: Floats,
    choices: Sequence[tuple[str, str]],
    rows: Sequence[TunerRow],
) -> npt.NDArray[np.int64]:
    """Return the choice for each size, with the rows' overrides.

    Args:
        chosen: [m] The number of NCCL's own choice for each size.
        sizes: [m] The sizes S of nccl-tests.
        choices: Pairs of an algorithm and a protocol that NCCL offers.
        rows: Those that match the collective and its ranks, in the order of the file.
    """
    taken = chosen.copy()
    for row in reversed(rows):  # So that the first has the last word.
        number = asked_for(row, choices)
        if number is not None:
            taken[(sizes >= row.min_bytes) & (sizes <= row.max_bytes)] = number
    return taken


def deciding(
    size: float, choices: Sequence[tuple[str, str]], rows: Sequence[TunerRow]
) -> tuple[TunerRow | None, list[TunerRow]]:
    """Return the deciding row of a size, if any, and the ignored rows before it."""
    ignored: list[TunerRow] = []
    for row in rows:
        if row.min_bytes <= size <= row.max_bytes:
            if asked_for(row, choices) is not None:
                return row, ignored
            ignored.append(row)
    return None, ignored
