"""Triton kernels as algorithms of a benchmark: same columns, same checks."""

import pytest

from simrank import bench
from simrank.errors import ConfigError

pytest.importorskip("triton")

SMALL = {
    "cluster": "hgx_h100", "num_ranks": 2, "sizes": ["256 B"], "collectives": ["all_reduce"],
    "iterations": {"warmup": 1, "timed": 1}, "in_place": "both",
}  # fmt: skip


def test_a_kernel_has_the_columns_and_checks_of_a_schedule():
    """An entry overrides the defaults."""
    algorithms = {
        "defaults": {"num_channels": 2, "slot_size": "64 B"},
        "mine": {"kernel": "benches.kernels.ring_all_reduce", "num_channels": 1},
        "ring": None,
    }
    rows = bench.run({**SMALL, "algorithms": algorithms})
    mine = [row for row in rows if row["algorithm"] == "mine"]
    ring = [row for row in rows if row["algorithm"] == "ring"]
    assert [row["in_place"] for row in mine] == [False, True]
    assert mine[0].keys() == ring[0].keys()
    assert {row["num_wrong"] for row in rows} == {0}
    assert (mine[0]["cost_level"], mine[0]["channels"]) == ("programs", 1)
    assert mine[0]["time_us"] > 0


def test_a_kernel_runs_only_as_the_collective_that_it_is():
    """A benchmark of two collectives runs each with its own."""
    config = {
        **SMALL, "collectives": ["all_gather", "all_to_all"],
        "algorithms": {
            "a": {"kernel": "benches.kernels.all_gather", "num_channels": 1},
            "b": {"kernel": "benches.kernels.all_to_all", "num_channels": 1},
        },
    }  # fmt: skip
    rows = bench.run(config)
    assert {(row["collective"], row["algorithm"]) for row in rows} == {
        ("all_gather", "a"), ("all_to_all", "b")
    }  # fmt: skip
    assert {row["num_wrong"] for row in rows} == {0}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"kernel": "benches.kernels.rign"}, "no module benches.kernels.rign"),
        ({"kernel": "benches.kernels.ring_all_reduce", "lanes": 2}, "no option lanes"),
        ({"kernel": "benches.kernels.ring_all_reduce", "slot_size": "100 B"}, "a power of two"),
        ({"kernel": "benches.kernels.ring_all_reduce", "buffer": "shared"}, "only hbm"),
        (
            {"kernel": "benches.kernels.all_gather"},
            "expected a kernel for all_reduce, got benches.kernels.all_gather, which is for "
            "all_gather",
        ),
    ],
)
def test_a_wrong_entry_is_named_with_its_key(options, named):
    """As any other mistake of a benchmark."""
    with pytest.raises(ConfigError) as caught:
        bench.run({**SMALL, "algorithms": {"mine": options}})
    assert "algorithms.mine" in str(caught.value)
    assert named in str(caught.value)


def test_a_module_of_a_kernel_may_import_what_lies_beside_it(tmp_path):
    """As a script may."""
    (tmp_path / "shared_parts.py").write_text(
        "from benches.kernels.one_shot_all_reduce import *\n", encoding="utf-8"
    )
    path = tmp_path / "own.py"
    path.write_text("from shared_parts import *\n", encoding="utf-8")
    rows = bench.run({**SMALL, "algorithms": {"mine": {"kernel": str(path)}}})
    assert {row["num_wrong"] for row in rows} == {0}


def test_what_the_module_of_a_kernel_raises_is_a_mistake_of_the_benchmark(tmp_path):
    """Each time, with its line; not a bug in simrank."""
    path = tmp_path / "broken.py"
    path.write_text("import triton\nimport no_such_module\n", encoding="utf-8")
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"broken.py:2 raised ModuleNotFoundError: No module"):
            bench.run({**SMALL, "algorithms": {"mine": {"kernel": str(path)}}})


@pytest.mark.slow
def test_the_example_benchmark_runs():
    """Kernels beside a schedule, all right; one slot is slower than four."""
    rows = bench.run("benches/kernels/all_reduce.yaml")
    assert {row["num_wrong"] for row in rows} == {0}
    times = {row["algorithm"]: row["time_us"] for row in rows if row["size_bytes"] == 2**18}
    assert times["one_slot"] >= times["my_ring"] > times["ring"] > 0
