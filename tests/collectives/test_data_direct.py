"""Slices that stay in the cache give the numbers of whole chunks."""

import numpy as np
import pytest

from simrank.collectives import Problem, build
from simrank.collectives import data_direct as module
from simrank.collectives.data_direct import play_direct
from simrank.collectives.reduction import reduction


@pytest.mark.parametrize("algorithm", ["ring", "one_shot", "two_shot", "halving_doubling"])
def test_block_size_does_not_change_bits(algorithm, monkeypatch):
    """Also where the last slice of a chunk is short, and for scaled inputs."""
    schedule = build(Problem("all_reduce", 6, 1001), algorithm)
    inputs = list(np.random.default_rng(1).normal(size=(6, 1001)).astype(np.float16))
    how = reduction("avg", inputs[0].dtype, 6)
    results = []
    for block_bytes in (1 << 20, 14):
        monkeypatch.setattr(module, "BLOCK_BYTES", block_bytes)
        outputs = [np.zeros(1001, np.float16) for _ in inputs]
        play_direct(schedule, inputs, outputs=outputs, how=how)
        results.append(np.stack(outputs).tobytes())
    assert results[0] == results[1]


def test_one_shot_gives_every_rank_the_same_bits():
    """All ranks reduce in rank order in float32, and round once."""
    inputs = list(np.random.default_rng(2).normal(size=(5, 64)).astype(np.float16))
    outputs = [np.zeros(64, np.float16) for _ in inputs]
    schedule = build(Problem("all_reduce", 5, 64), "one_shot")
    play_direct(schedule, inputs, outputs=outputs, how=reduction("sum", inputs[0].dtype, 5))
    total = np.zeros(64, np.float32)
    for values in inputs:
        total += values.astype(np.float32)
    assert all(output.tobytes() == total.astype(np.float16).tobytes() for output in outputs)
