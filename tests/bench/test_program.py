"""What a rank of the benchmark runs: nccl-tests' counts, and data that differs per rank."""

from simrank.bench.program import Case, TestData


def test_cases_count_elements_as_nccl_does():
    """Size = count x blocks x itemsize."""
    case = Case("reduce_scatter", 4, "float16", "sum", -1, 10, in_place=False)
    assert (case.size_bytes, case.num_inputs, case.num_outputs) == (80, 40, 10)


def test_test_data_differs_from_rank_to_rank_and_repeats():
    """Shifted views of one array, from the seed."""
    data = TestData(100, 4, "float32", "sum", seed=1)
    again = TestData(100, 4, "float32", "sum", seed=1)
    assert (data.of(2, 100) == again.of(2, 100)).all()
    assert (data.of(2, 100) != data.of(3, 100)).any()


def test_uneven_splits_add_up():
    """Each rank sends and receives as much as with even ones."""
    case = Case("all_to_all_v", 4, "float32", "none", -1, 100, in_place=False)
    assert case.splits.tolist() == [
        [100, 50, 100, 150],
        [50, 100, 150, 100],
        [100, 150, 100, 50],
        [150, 100, 50, 100],
    ]
    assert set(case.splits.sum(axis=0)) == set(case.splits.sum(axis=1)) == {case.num_inputs}
    alone = Case("all_to_all_v", 1, "float32", "none", -1, 100, in_place=False)
    assert alone.splits.tolist() == [[100]]
