"""The series of a benchmark: every combination of its lists but size and form."""

from simrank.bench.series import series_of
from simrank.config import bench_config_from_mapping

SMALL = {"cluster": "hgx_h100", "collectives": ["all_reduce"], "sizes": ["1 KiB"]}


def series(**change):
    """Return the series of a small benchmark."""
    return list(series_of(bench_config_from_mapping({**SMALL, **change})))


def test_roots_and_reduce_operations_count_only_where_they_are_used():
    """An all_gather is one series, whatever the roots and operations."""
    options = {"num_ranks": 3, "root": "all", "redops": "all"}
    assert len(series(collectives=["all_gather"], **options)) == 1
    assert len(series(collectives=["all_reduce"], **options)) == 5
    assert len(series(collectives=["reduce"], **options)) == 15
    assert [each.root for each in series(collectives=["gather"], **options)] == [0, 1, 2]


def test_a_root_is_named_where_it_is_not_the_first():
    """So that series of one collective differ."""
    titles = [each.title for each in series(collectives=["broadcast"], num_ranks=2, root="all")]
    assert titles == [
        "broadcast auto float32 on 2 ranks of hgx_h100",
        "broadcast auto float32 root 1 on 2 ranks of hgx_h100",
    ]


def test_an_uneven_exchange_runs_the_algorithms_of_the_even_one():
    """all_to_all_v has no table of its own; sendrecv has nothing to choose."""
    (named,) = series(collectives=["all_to_all_v"], algorithms=["pairwise"])
    assert named.call_name == "all_to_all"
    assert [each.algorithm for each in series(collectives=["sendrecv"])] == ["auto"]
