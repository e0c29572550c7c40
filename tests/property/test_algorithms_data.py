"""Every algorithm leaves what a float64 reference says, whatever the sizes, dtypes and buffers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simrank.collectives import algorithms_for, build, play_data
from simrank.collectives import data as play_module
from simrank.collectives.problem import (
    COLLECTIVES,
    DTYPES,
    FLOATS,
    GATHERED,
    REDUCE_OPS,
    REDUCING,
    ROOTED,
    Problem,
    admits,
)
from simrank.collectives.reference import count_wrong

FIXED = settings(derandomize=True, deadline=None, database=None, max_examples=5)
WORLD_SIZES = (1, 2, 3, 5, 6, 8, 16)
ALGORITHMS = [
    (coll, name) for coll in (*COLLECTIVES, *GATHERED) for name in algorithms_for(coll, 8)
]
OPTIONS = {"ring": {"num_channels": 3, "num_loops": 4}, "chain": {"num_chunks": 3}}


@st.composite
def problems(draw, collective, algorithm):
    """Draw a problem that an algorithm admits; splits where the collective takes them."""
    sizes = [n for n in WORLD_SIZES if algorithm in algorithms_for(collective, n)]
    world_size = draw(st.sampled_from(sizes))
    root = draw(st.integers(0, world_size - 1)) if collective in ROOTED else 0
    count, splits = draw(st.integers(0, 40)), None
    if collective in ("all_gather", "reduce_scatter", "all_to_all") and draw(st.booleans()):
        length = world_size**2 if collective == "all_to_all" else world_size
        splits = tuple(draw(st.lists(st.integers(0, 5), min_size=length, max_size=length)))
    node_size = draw(st.sampled_from([n for n in (0, 1, 2, 4) if n == 0 or world_size % n == 0]))
    count = 0 if splits else count
    return Problem(collective, world_size, count, root=root, splits=splits, node_size=node_size)


def make_inputs(schedule, dtype, seed):
    """Return random inputs of every rank, with zeros, negative numbers and small fractions."""
    rng = np.random.default_rng(seed)
    shape = (schedule.world_size, schedule.input.num_elements)
    if dtype in FLOATS:
        return rng.normal(size=shape).astype(dtype)
    return rng.integers(0, 200, shape).astype(dtype)


def make_outputs(problem, schedule, inputs):
    """Return inputs and outputs that overlap as torch allows for this collective."""
    num_elements, own = schedule.output.num_elements, schedule.input.num_elements
    if problem.collective == "all_gather":
        starts = np.cumsum((0, *(problem.splits or (problem.count,) * problem.world_size)))
        outputs = [np.zeros(num_elements, inputs.dtype) for _ in inputs]
        views = [out[at : at + own] for out, at in zip(outputs, starts, strict=False)]
        for view, values in zip(views, inputs, strict=True):
            view[:] = values[: len(view)]
        return views, outputs
    arrays = [values.copy() for values in inputs]
    if problem.collective == "reduce_scatter":
        sizes = problem.splits or (problem.count,) * problem.world_size
        starts = np.cumsum((0, *sizes))
        return arrays, [
            array[at : at + size] for array, at, size in zip(arrays, starts, sizes, strict=False)
        ]
    return arrays, arrays


@pytest.mark.parametrize(("collective", "algorithm"), ALGORITHMS)
@pytest.mark.parametrize("stacked", [False, True])
def test_result_equals_the_reference(collective, algorithm, stacked, monkeypatch):
    """Out of place and in place, with options, on both ways of moving data."""
    monkeypatch.setattr(play_module, "MAX_COMPILED_STEPS", -1 if stacked else 1 << 30)

    @FIXED
    @given(data=st.data())
    def check(data):
        problem = data.draw(problems(collective, algorithm))
        dtype = data.draw(st.sampled_from(DTYPES))
        ops = [op for op in REDUCE_OPS if admits(op, dtype)]
        reduce_op = data.draw(st.sampled_from(ops)) if collective in REDUCING else "sum"
        options = OPTIONS.get(algorithm) if data.draw(st.booleans()) else None
        schedule = build(problem, algorithm, options=options)
        inputs = make_inputs(schedule, dtype, data.draw(st.integers(0, 99)))
        uneven = problem.splits is not None and collective != "all_to_all"
        in_place = not (collective == "all_to_all" and problem.splits)
        in_place = in_place and collective not in GATHERED
        kept = inputs.copy()

        outputs = [np.zeros(schedule.output.num_elements, dtype) for _ in inputs]
        play_data(schedule, inputs, outputs=outputs, reduce_op=reduce_op)
        assert count_wrong(problem, kept, outputs, reduce_op=reduce_op) == 0
        assert inputs.tobytes() == kept.tobytes(), "an input was written"
        if in_place and not (uneven and stacked):
            sources, results = _aliased(problem, schedule, inputs)
            play_data(schedule, sources, outputs=results, reduce_op=reduce_op)
            _assert_same(problem, results, outputs)

    check()


def _aliased(problem, schedule, inputs):
    """Return aliased buffers, long enough for the tables of the largest rank."""
    if problem.splits is None:
        return make_outputs(problem, schedule, inputs)
    return inputs.copy(), [np.zeros(schedule.output.num_elements, inputs.dtype) for _ in inputs]


def _assert_same(problem, results, outputs):
    """Check that running in place changed nothing, bit for bit."""
    ranks = [problem.root] if problem.collective == "reduce" else range(problem.world_size)
    for rank in ranks:
        assert results[rank].tobytes() == outputs[rank].tobytes(), f"rank {rank}"


@pytest.mark.parametrize(("collective", "algorithm"), ALGORITHMS)
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_every_contribution_counts_once(collective, algorithm, world_size):
    """Rank r contributes (n + 1) ** r, so each digit of a sum counts rank r's contributions."""
    if collective not in REDUCING or algorithm not in algorithms_for(collective, world_size):
        return
    problem = Problem(collective, world_size, 7, root=world_size // 2)
    schedule = build(problem, algorithm)
    powers = [(world_size + 1) ** rank for rank in range(world_size)]
    inputs = [np.full(schedule.input.num_elements, power, dtype=np.int64) for power in powers]
    outputs = [np.zeros(7, dtype=np.int64) for _ in inputs]

    play_data(schedule, inputs, outputs=outputs)

    for rank in [problem.root] if collective == "reduce" else range(world_size):
        assert set(outputs[rank].tolist()) == {sum(powers)}


@pytest.mark.parametrize(("collective", "algorithm"), dict(ALGORITHMS[::-1]).items())
def test_every_dtype_and_reduce_op(collective, algorithm):
    """All admitted pairs on 6 ranks, uneven chunks; an algorithm of each collective."""
    world_size = 6
    problem = Problem(collective, world_size, 11)
    schedule = build(problem, algorithm)
    for dtype in DTYPES:
        for reduce_op in REDUCE_OPS if collective in REDUCING else ("sum",):
            if not admits(reduce_op, dtype):
                continue
            inputs = make_inputs(schedule, dtype, 5)
            outputs = np.zeros((world_size, schedule.output.num_elements), dtype)
            play_data(schedule, inputs, outputs=outputs, reduce_op=reduce_op)
            assert count_wrong(problem, inputs, outputs, reduce_op=reduce_op) == 0, reduce_op
