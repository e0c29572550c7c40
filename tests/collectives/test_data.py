"""Slices that stay in the cache give the numbers of whole chunks."""

import ml_dtypes
import numpy as np
import pytest

from simrank.collectives import Problem, build
from simrank.collectives import data as module
from simrank.collectives.data import FoldPlayer
from simrank.collectives.problem import reduction


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
        FoldPlayer(schedule).play(inputs, outputs=outputs, how=how)
        results.append(np.stack(outputs).tobytes())
    assert results[0] == results[1]


def test_blocks_shorter_than_a_slice_are_written_once(monkeypatch):
    """They lie beside a long one, with whose further slices they have nothing to do."""
    monkeypatch.setattr(module, "BLOCK_BYTES", 16)
    sizes = (2, 30, 4)
    inputs = [np.arange(36, dtype=np.float32) * 3, *np.zeros((2, 36), np.float32)]
    schedule = build(Problem("reduce_scatter", 3, 0, splits=sizes), "direct")
    outputs = [np.zeros(size, np.float32) for size in sizes]
    FoldPlayer(schedule).play(inputs, outputs=outputs, how=reduction("avg", inputs[0].dtype, 3))
    assert np.allclose(np.concatenate(outputs), np.arange(36))


def test_one_shot_gives_every_rank_the_same_bits():
    """All ranks reduce in rank order in float32, and round once."""
    inputs = list(np.random.default_rng(2).normal(size=(5, 64)).astype(np.float16))
    outputs = [np.zeros(64, np.float16) for _ in inputs]
    schedule = build(Problem("all_reduce", 5, 64), "one_shot")
    FoldPlayer(schedule).play(inputs, outputs=outputs, how=reduction("sum", inputs[0].dtype, 5))
    total = np.zeros(64, np.float32)
    for values in inputs:
        total += values.astype(np.float32)
    assert all(output.tobytes() == total.astype(np.float16).tobytes() for output in outputs)


@pytest.mark.parametrize(
    ("collective", "algorithm"), [("all_reduce", "one_shot"), ("all_to_all", "pairwise")]
)
@pytest.mark.parametrize("shift", [0, 3])
def test_input_under_output_is_read_before_it_is_written(collective, algorithm, shift, monkeypatch):
    """In the same place, slice by slice; elsewhere in the same memory, as a whole."""
    monkeypatch.setattr(module, "BLOCK_BYTES", 8)
    schedule = build(Problem(collective, 3, 7), algorithm)
    size = schedule.input.num_elements
    memory = np.random.default_rng(3).normal(size=(3, size + shift)).astype(np.float32)
    how = reduction("sum", memory.dtype, 3)
    expected = [np.zeros(size, np.float32) for _ in range(3)]
    FoldPlayer(schedule).play([row[:size].copy() for row in memory], outputs=expected, how=how)

    outputs = [row[shift:] for row in memory]
    FoldPlayer(schedule).play([row[:size] for row in memory], outputs=outputs, how=how)

    assert np.array_equal(outputs, expected)


@pytest.mark.parametrize("name", ["float32", "float64", "float16", "bfloat16", "float8_e5m2"])
@pytest.mark.parametrize("reduce_op", ["sum", "avg"])
@pytest.mark.parametrize("algorithm", ["one_shot", "two_shot", "ring"])
def test_negative_zeros_add_up_to_a_negative_zero(algorithm, reduce_op, name):
    """No zero of another sign joins the operands."""
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    inputs = [np.full(6, -0.0).astype(dtype) for _ in range(3)]
    outputs = [np.ones(6).astype(dtype) for _ in inputs]
    schedule = build(Problem("all_reduce", 3, 6), algorithm)
    FoldPlayer(schedule).play(inputs, outputs=outputs, how=reduction(reduce_op, dtype, 3))
    assert all(np.signbit(output.astype(np.float64)).all() for output in outputs)
