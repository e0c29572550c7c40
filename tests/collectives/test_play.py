"""The front of data and time: argument checks, and both ways of moving data."""

import numpy as np
import pytest

from simrank.collectives import Problem, build, play_data, play_time
from simrank.hardware import load_cluster


def test_arrays_may_be_rows_of_one_array_or_separate():
    """Both forms give the same numbers, also for more ranks than are played step by step."""
    schedule = build(Problem("all_reduce", 40, 6), "ring")
    inputs = np.arange(240, dtype=np.float32).reshape(40, 6)
    together, apart = np.zeros_like(inputs), [np.zeros(6, np.float32) for _ in range(40)]

    play_data(schedule, inputs, outputs=together)
    play_data(schedule, list(inputs), outputs=apart)

    assert np.array_equal(together, np.stack(apart))
    assert together[3].tolist() == inputs.sum(axis=0).tolist()


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([np.zeros(4)], "1 inputs for 2 ranks"),
        ([np.zeros(4), np.zeros(3)], r"inputs\[1\] must be 1-D float64 with at least 4"),
        ([np.zeros(4), np.zeros(4, np.float32)], "got float32"),
    ],
)
def test_wrong_arrays_are_refused(inputs, message):
    """Before anything is written."""
    schedule = build(Problem("all_reduce", 2, 4), "ring")
    with pytest.raises(ValueError, match=message):
        play_data(schedule, inputs, outputs=[np.zeros(4), np.zeros(4)])


def test_reduce_leaves_other_ranks_alone():
    """Only the root's output is written."""
    for num_ranks in (4, 40):
        schedule = build(Problem("reduce", num_ranks, 3, root=1), "binomial")
        outputs = [np.full(3, -1.0) for _ in range(num_ranks)]
        play_data(schedule, [np.ones(3)] * num_ranks, outputs=outputs)
        assert outputs[1].tolist() == [num_ranks] * 3
        assert all(outputs[rank].tolist() == [-1] * 3 for rank in range(num_ranks) if rank != 1)


def test_ring_all_reduce_on_one_node_takes_its_known_time():
    """Launch 6.6 us and 14 steps of 0.6 us plus 1 MiB / 8 at 376 GB/s."""
    cluster = load_cluster("hgx_h100")
    schedule = build(Problem("all_reduce", 8, 1 << 18), "ring")
    done = play_time(
        schedule, np.zeros(8, np.int64), network=cluster, devices=np.arange(8), itemsize=4
    )
    step_ps = 600_000 + -(-(1 << 17) * 10**12 // (376 * 10**9))
    assert set(done.tolist()) == {6_600_000 + 14 * step_ps}
