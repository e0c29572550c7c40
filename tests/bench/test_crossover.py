"""Which algorithm and protocol takes over from which, over size."""

import pytest

import simrank
from simrank.bench.crossover import SIZES_BYTES, crossover


@pytest.mark.parametrize("cluster", ["hgx_h100", "h100_ib", "h100_efa", "l40s_pcie"])
@pytest.mark.parametrize("collective", ["all_reduce", "all_to_all"])
def test_what_is_chosen_is_what_is_predicted(cluster, collective):
    """Each size takes a candidate whose time is the prediction."""
    found = crossover(collective, cluster=cluster)
    predicted = simrank.predict(collective, list(SIZES_BYTES), cluster=cluster)
    for column, index in enumerate(found.chosen):
        assert found.choices[index] == (predicted.algorithm[column], predicted.protocol[column])
        assert found.times_us[index, column] == pytest.approx(predicted.time_us[column])
    assert predicted.time_us * (1 + found.spread) == pytest.approx(predicted.high_us)


def test_a_table_of_the_same_call_stands_beside_it():
    """The same cluster, collective, ranks and nodes; of loops there is none."""
    (found,) = crossover("all_reduce", cluster="h100_ib").measured
    assert found.table == "h100x16_nebius_ib_allreduce"
    assert found.size_bytes.min() >= SIZES_BYTES[0]
    assert [each.table for each in crossover("all_reduce").measured] == ["h100x8_aws_p5_allreduce"]
    for collective, num_ranks, nodes in (
        ("all_gather", None, None),
        ("all_reduce", 8, None),
        ("all_reduce", None, 4),
    ):
        assert not crossover(collective, num_ranks, "h100_ib", nodes=nodes).measured
