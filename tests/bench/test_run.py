"""The benchmark: rows, checks, choices, errors."""

import json

import numpy as np
import pytest

import simrank
from simrank.bench import run
from simrank.bench.program import counts
from simrank.calibration.accuracy import table_series
from simrank.calibration.hold_outs import observed_of, without_its_site
from simrank.collectives import DataPlayer
from simrank.config.locate import configs_dir
from simrank.errors import ConfigError

COLUMNS = [
    "collective", "algorithm", "protocol", "num_ranks", "num_nodes", "in_place", "redop", "root",
    "dtype", "size_bytes", "time_us", "algbw_GBps", "busbw_GBps", "num_wrong", "cost_level",
    "calibration", "interval_us", "channels", "measured_us", "error_pct",
    "left_out", "left_out_us", "left_out_interval_us",
]  # fmt: skip
SMALL = {"cluster": "hgx_h100", "collectives": ["all_reduce"], "sizes": ["1 KiB", "64 KiB"]}
LINKS = {"name": "hgx_h100", "cost_level": "schedule"}
ALL = [
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce",
    "gather", "scatter", "all_to_all_v", "sendrecv",
]  # fmt: skip


def test_rows_have_the_promised_columns():
    """In the order of the file format; null where not applicable."""
    rows = run(SMALL)
    assert [list(row) for row in rows] == [COLUMNS] * 4
    assert rows[0]["measured_us"] is None
    assert (rows[0]["protocol"], rows[0]["cost_level"]) == ("LL", "nccl")
    assert rows[0]["calibration"].startswith(
        "fitted to 119 series of 31 sites (all_reduce on one node"
    )
    low_us, high_us = rows[0]["interval_us"]
    assert low_us < rows[0]["time_us"] < high_us
    assert json.loads(json.dumps(rows))[0] == {**rows[0], "interval_us": [low_us, high_us]}


def test_without_nccls_times_a_row_has_no_interval():
    """What schedules cost on the links is no prediction of NCCL."""
    row = run({**SMALL, "cluster": LINKS})[0]
    assert row["protocol"] is row["calibration"] is row["interval_us"] is None
    assert row["cost_level"] == "schedule"


@pytest.mark.parametrize("collective", ALL)
def test_every_collective_is_checked_and_right(collective):
    """No element is wrong, out of place and in place, whatever the dtype."""
    config = {**SMALL, "collectives": [collective], "dtypes": ["float32", "bfloat16", "int32"],
              "redops": ["sum", "max"], "iterations": {"warmup": 0, "timed": 1}}  # fmt: skip
    rows = run(config)
    reduces = collective in ("all_reduce", "reduce_scatter", "reduce")
    forms = 1 if collective in ("all_to_all", "all_to_all_v", "sendrecv") else 2
    assert len(rows) == 2 * 3 * (2 if reduces else 1) * forms
    assert all(row["num_wrong"] == 0 for row in rows)
    assert all(row["time_us"] > 0 for row in rows)
    assert {row["redop"] for row in rows} == ({"sum", "max"} if reduces else {"none"})


@pytest.mark.parametrize("collective", ALL)
def test_data_that_never_came_is_wrong(collective, monkeypatch):
    """The check of each collective can fail: here nothing is called."""
    monkeypatch.setattr("simrank.bench.program.issue", lambda *_: None)
    config = {**SMALL, "collectives": [collective], "sizes": ["1 KiB"], "num_ranks": 3, "root": 1}
    assert all(row["num_wrong"] > 0 for row in run(config))


def test_sendrecv_loses_nothing_and_names_no_algorithm():
    """Its bus bandwidth is its algorithm bandwidth, as nccl-tests has it."""
    (row,) = run({**SMALL, "collectives": ["sendrecv"], "sizes": ["1 MiB"]})
    assert row["busbw_GBps"] == row["algbw_GBps"] > 10
    assert (row["algorithm"], row["in_place"], row["root"]) == ("p2p", False, -1)


def test_every_algorithm_can_be_named_and_given_options():
    """A mapping name -> options; the row says what ran."""
    config = {**SMALL, "algorithms": {"ring": {"num_channels": 2}, "two_shot": {}}}
    rows = run(config)
    assert [(row["algorithm"], row["channels"]) for row in rows[::4]] == [
        ("ring", 2),
        ("two_shot", 1),
    ]


def test_auto_is_the_fastest_of_the_algorithms():
    """For each size, no named algorithm beats it, where NCCL does not choose."""
    names = ["auto", "ring", "one_shot", "two_shot", "halving_doubling"]
    rows = run(
        {
            **SMALL,
            "cluster": LINKS,
            "algorithms": names,
            "in_place": False,
            "sizes": ["8 B", "1 MiB", "256 MiB"],
        }
    )
    times = [[row["time_us"] for row in rows[3 * i : 3 * i + 3]] for i in range(len(names))]
    assert times[0] == [min(column) for column in zip(*times[1:], strict=True)]


def test_busbw_is_algbw_times_nccl_tests_factor():
    """2 (n - 1) / n for all_reduce, (n - 1) / n for all_gather, 1 for broadcast."""
    rows = run({**SMALL, "collectives": ["all_reduce", "all_gather", "broadcast"]})
    factors = {"all_reduce": 1.75, "all_gather": 0.875, "broadcast": 1}
    for row in rows:
        assert row["algbw_GBps"] == pytest.approx(row["size_bytes"] / row["time_us"] / 1e3)
        assert row["busbw_GBps"] == pytest.approx(row["algbw_GBps"] * factors[row["collective"]])


def test_large_sizes_are_timed_and_not_checked():
    """Above 64 MiB num_wrong is null and no memory is touched."""
    (row,) = run({**SMALL, "cluster": LINKS, "sizes": ["16 GiB"], "in_place": False})
    assert row["num_wrong"] is None
    assert row["busbw_GBps"] == pytest.approx(376, rel=0.02)


def test_check_false_checks_nothing():
    """As nccl-tests' -c 0."""
    assert {row["num_wrong"] for row in run({**SMALL, "check": False})} == {None}


def test_a_wrong_result_is_counted(monkeypatch):
    """The check can fail: a reduction that loses a rank is found in every row."""
    real = DataPlayer.play

    def lossy(player, inputs, *, outputs, reduce_op):
        real(player, inputs, outputs=outputs, reduce_op=reduce_op)
        outputs[1][0] += 1

    monkeypatch.setattr(DataPlayer, "play", lossy)
    assert [row["num_wrong"] for row in run({**SMALL, "in_place": False})] == [1, 1]


def test_measured_times_stand_beside_the_simulated_ones():
    """By collective, ranks and bytes; the error is that of constants without the site."""
    rows = run({**SMALL, "measured": "h100x8_aws_p5_allreduce", "sizes": ["1 GiB", "3 GiB"],
                "in_place": False})  # fmt: skip
    assert rows[0]["measured_us"] == 4253
    assert rows[0]["left_out"] == "aws h100"
    expected = 100 * (rows[0]["left_out_us"] - 4253) / 4253
    assert rows[0]["error_pct"] == pytest.approx(expected)
    assert rows[0]["left_out_us"] != pytest.approx(rows[0]["time_us"], rel=1e-4)
    assert rows[1]["measured_us"] is None


def test_an_error_is_the_one_of_simrank_accuracy():
    """Whatever has the measured site left out has the same numbers, size by size."""
    table = "h100x8_aws_p5_allreduce"
    rows = run({"cluster": "hgx_h100", "collectives": ["all_reduce"], "algorithms": ["nccl"],
                "sizes": {"from": "8 B", "to": "16 GiB", "factor": 2}, "measured": table,
                "in_place": False})  # fmt: skip
    (series,) = table_series(table)
    left = without_its_site(observed_of(series))
    assert [row["size_bytes"] for row in rows] == left.observed.size_bytes.tolist()
    errors = [row["error_pct"] / 100 for row in rows]
    assert errors == pytest.approx(np.expm1(left.errors).tolist())


def test_a_site_that_the_constants_have_not_seen_is_not_left_out(tmp_path):
    """Nor is one whose cluster has NCCL's own constants: the error is that of the time."""
    mine = tmp_path / "mine.csv"
    mine.write_text((configs_dir() / "measured" / "h100x8_aws_p5_allreduce.csv").read_text())
    seen = str(configs_dir() / "measured" / "h100x8_aws_p5_allreduce.csv")
    text = (configs_dir() / "clusters" / "hgx_h100.yaml").read_text()
    (tmp_path / "plain.yaml").write_text(text + "calibration: none\n")
    plain = str(tmp_path / "plain.yaml")
    for changes in ({"measured": str(mine)}, {"measured": seen, "cluster": plain}):
        (row,) = run({**SMALL, "sizes": ["1 GiB"], "in_place": False, **changes})
        assert (row["left_out"], row["left_out_us"]) == (None, None)
        assert row["error_pct"] == pytest.approx(100 * (row["time_us"] / 4253 - 1))


def test_lists_of_clusters_and_ranks_give_every_combination():
    """Nodes that ranks span are counted."""
    config = {"clusters": ["hgx_h100", {"name": "h100_ib", "nodes": 2}], "num_ranks": [4, 8],
              "collectives": ["all_reduce"], "sizes": ["1 KiB"], "in_place": False}  # fmt: skip
    assert [(row["num_ranks"], row["num_nodes"]) for row in run(config)] == [(4, 1), (8, 1)] * 2


def test_a_root_other_than_zero_is_used():
    """Row and data agree."""
    rows = run({**SMALL, "collectives": ["broadcast", "reduce"], "root": 5})
    assert {row["root"] for row in rows} == {5}
    assert all(row["num_wrong"] == 0 for row in rows)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"algorithms": ["rign"]}, r"algorithms\.rign: expected one of auto, nccl, ring"),
        ({"algorithms": ["rign"]}, "to fix: write `ring`"),
        (
            {"algorithms": {"ring": {"lanes": 2}}},
            r"algorithms\.ring: expected options of ring, got lanes: 2 \(.* choices: num_channels",
        ),
        ({"algorithms": {"auto": {"lanes": 2}}}, "no options, as auto chooses them, got lanes: 2"),
        (
            {"collectives": ["sendrecv"], "algorithms": ["ring"]},
            r"expected one of auto, nccl, got ring",
        ),
        ({"root": "first"}, "root: expected a rank, or all, got first"),
        ({"average": "median"}, "average: expected one of avg, rank0, min, max, got median"),
        ({"dtypes": ["float33"]}, "dtypes"),
        ({"sizes": ["1"]}, "unit"),
        ({"num_ranks": 9}, "num_ranks: expected at most 8"),
        ({"colour": "red"}, "colour"),
        ({"sizes": ["0 B"]}, "sizes: expected a size above 0 B, got 0 B only"),
        ({"dtypes": ["uint32"]}, "dtypes"),
    ],
)
def test_bad_configurations_name_the_key_and_the_choices(change, message):
    """Never a traceback: a ConfigError with the key's path."""
    with pytest.raises(ConfigError, match=message):
        run({**SMALL, **change})


def test_sizes_below_one_element_per_block_are_left_out():
    """all_gather of 8 bytes on 8 ranks has no element to send."""
    assert counts("all_gather", 8, "float32", (8, 16, 32, 33, 64)) == [1, 2]
    assert counts("all_reduce", 8, "float16", (1, 2, 3)) == [1]


def test_the_module_is_reachable_from_the_package():
    """simrank.bench.run(config), as the README says."""
    assert simrank.bench.run is run


def test_measured_times_are_of_one_cluster_and_of_the_dtype_that_was_reduced():
    """A float32 table says nothing of bfloat16 sums, nor of another machine."""
    config = {**SMALL, "measured": "h100x8_aws_p5_allreduce", "in_place": False}
    rows = run({**config, "dtypes": ["float32", "bfloat16"]})
    assert [row["measured_us"] is None for row in rows] == [False, False, True, True]
    del config["cluster"]
    with pytest.raises(ConfigError, match="measured: expected a single cluster"):
        run({**config, "clusters": ["hgx_h100", "hgx_a100"]})


def test_sizes_near_a_devices_memory_are_timed_one_after_the_other():
    """32 GiB and 64 GiB fit in 80 GB, not both at once."""
    rows = run({**SMALL, "sizes": ["32 GiB", "64 GiB"], "in_place": False,
                "iterations": {"timed": 1}})  # fmt: skip
    assert len(rows) == 2


def test_every_dtype_of_the_configuration_is_one_that_devices_have():
    """The lists cannot drift apart."""
    from simrank.config.quantity import DTYPES as CONFIGURED
    from simrank.device import DTYPES

    assert set(CONFIGURED) <= set(DTYPES)
    rows = run({**SMALL, "sizes": ["1 KiB"], "dtypes": list(CONFIGURED), "in_place": False})
    assert {row["num_wrong"] for row in rows} == {0}


def test_sizes_that_hold_no_element_are_refused():
    """A table without a row would say that nothing is wrong."""
    config = {"cluster": "hgx_h100", "collectives": ["all_reduce"], "sizes": ["3 B"]}
    with pytest.raises(ConfigError, match="an element of float32 for each rank, got at most 3 B"):
        run(config)
