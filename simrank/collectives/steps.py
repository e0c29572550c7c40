"""Steps of several chunks as steps of one."""

import numpy as np

from simrank.collectives.schedule import IntArray, Round


def one_chunk_steps(steps: Round) -> Round:
    """Return the round with each step of several chunks as several steps of one."""
    if bool((steps.count == 1).all()):
        return steps
    offset = spread(np.zeros_like(steps.count), steps.count)
    repeated = Round(
        *(None if column is None else np.repeat(column, steps.count) for column in steps)  # type: ignore[arg-type]
    )
    operand = repeated.operand_chunk
    return repeated._replace(
        src_chunk=repeated.src_chunk + offset,
        dst_chunk=repeated.dst_chunk + offset,
        count=np.ones_like(offset),
        operand_chunk=None if operand is None else operand + offset,
    )


def spread(first: IntArray, sizes: IntArray) -> IntArray:
    """Return the numbers `first[i], ..., first[i] + sizes[i] - 1` for each i, one after another."""
    if len(sizes) and bool(np.all(sizes == sizes[0])):
        return (first[:, None] + np.arange(sizes[0])).ravel()
    before = np.cumsum(sizes) - sizes
    return np.repeat(first - before, sizes) + np.arange(int(sizes.sum()))
