"""Memory works beside units, and dots and vector operations mostly not beside each other."""

import pytest

overlap = pytest.importorskip("simrank.kernels.cost.overlap")


def test_the_longer_of_memory_and_units_counts():
    """Loads for what comes next are on their way meanwhile."""
    work = overlap.Work()
    work.memory_ps, work.tensor_ps = 100, 40
    assert work.taken_ps() == 100
    work.tensor_ps = 140
    assert work.taken_ps() == 140


@pytest.mark.parametrize(("tensor_ps", "vector_ps"), [(100, 50), (50, 100), (100, 0), (0, 0)])
def test_most_of_the_shorter_of_dots_and_vectors_is_not_hidden(tensor_ps, vector_ps):
    """Between the two dots of attention each step waits for the one before it."""
    found = overlap.together_ps(tensor_ps, vector_ps)
    assert max(tensor_ps, vector_ps) <= found <= tensor_ps + vector_ps
    assert found == max(tensor_ps, vector_ps) + 0.8 * min(tensor_ps, vector_ps)
