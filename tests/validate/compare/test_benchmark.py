"""Benchmarks on real processes: what is measured, checked and written."""

from dataclasses import replace
from importlib.util import find_spec

import pytest

from simrank.calibration.accuracy import measured_series as read_series
from simrank.config import bench_config_from_mapping
from simrank.config.measured import parse_measured
from simrank.errors import ConfigError
from simrank.validate.compare import benchmark
from simrank.validate.compare.benchmark import Where

GLOO = Where("gloo", "", "torch 2.13")
H100 = Where("nccl", "NVIDIA H100 80GB HBM3", "torch 2.13")
CONFIG = {
    "cluster": "hgx_h100",
    "collectives": ["all_reduce", "sendrecv"],
    "algorithms": ["auto", "ring"],
    "dtypes": ["float32", "int32"],
    "sizes": {"from": "8 KiB", "to": "32 KiB", "factor": 4},
    "iterations": {"warmup": 0, "timed": 2},
}


def config(**changes):
    return bench_config_from_mapping(CONFIG | changes)


class FakePool:
    """Answers with times in the place of workers.

    Attributes:
        asked: What it was asked for.
    """

    def __init__(self, backend="gloo", num_wrong=0):
        self.backend = backend
        self.num_wrong = num_wrong
        self.asked = []

    def run(self, fn, *args):
        if not args:
            return [("", "torch 2.13")] * 2
        self.asked.append(args[0])
        return [(10.0, self.num_wrong), (30.0, 0)]


def measured(pool, of, num_ranks=2):
    rows = []
    series = benchmark.measured_series(of, num_ranks, pool.backend)
    benchmark.measure(of, pool, series, lambda _, found: rows.extend(found))
    return rows


def test_no_algorithm_is_forced_on_a_real_library():
    """Each collective and type once, on as many ranks as there are processes."""
    series = benchmark.measured_series(config(), 2, "gloo")
    assert [(s.collective, s.dtype, s.num_ranks) for s in series] == [
        ("all_reduce", "float32", 2), ("all_reduce", "int32", 2),
        ("sendrecv", "float32", 2), ("sendrecv", "int32", 2),
    ]  # fmt: skip


def test_every_size_and_form_is_a_row_with_nccl_tests_columns():
    """The mean over ranks, bandwidths by the collective's factor, wrong elements of all ranks."""
    rows = measured(FakePool(num_wrong=3), config(dtypes=["float32"]))
    assert [(r.collective, r.size_bytes, r.in_place) for r in rows] == [
        ("all_reduce", 8192, False), ("all_reduce", 8192, True),
        ("all_reduce", 32768, False), ("all_reduce", 32768, True),
        ("sendrecv", 8192, False), ("sendrecv", 32768, False),
    ]  # fmt: skip
    first = rows[0]
    assert (first.time_us, first.num_wrong, first.algorithm) == (20.0, 3, "gloo")
    assert first.algbw_GBps == pytest.approx(8192 / 20e3)
    assert first.busbw_GBps == first.algbw_GBps  # 2 (n - 1) / n on two ranks.


def test_the_csv_is_read_by_calibrate():
    """One time per size; the source says what ran where."""
    rows = measured(FakePool(), config(dtypes=["float32"]))
    text = benchmark.csv_text(rows, GLOO, "simrank compare --bench b.yaml")
    table = parse_measured(text, "mine.csv")
    assert [(row.collective, row.size_bytes, row.time_us) for row in table] == [
        ("all_reduce", 8192, 20.0), ("all_reduce", 32768, 20.0),
        ("sendrecv", 8192, 20.0), ("sendrecv", 32768, 20.0),
    ]  # fmt: skip
    assert table[0].source == "simrank compare --bench b.yaml, gloo, torch 2.13"
    series = read_series({"mine.csv": text}, "hgx_h100")
    assert [len(each.measured.size_bytes) for each in series] == [2, 2]


def test_simulated_times_stand_beside_where_the_cluster_describes_the_gpu():
    """And nowhere else."""
    of = config(dtypes=["float32"])
    assert benchmark.simulated_times(of, 2, GLOO) == {}
    assert benchmark.simulated_times(of, 2, replace(H100, device="NVIDIA A100-SXM4-80GB")) == {}
    rows = measured(FakePool(), of)
    beside = benchmark.with_simulated(rows, benchmark.simulated_times(of, 2, H100))
    assert all(row.measured_us is not None for row in beside)
    first = beside[0]
    assert first.error_pct == pytest.approx(100 * (first.measured_us / 20.0 - 1))
    assert benchmark.as_measured(first)["simulated_us"] == first.measured_us


@pytest.mark.parametrize(
    ("changes", "backend", "wanted"),
    [
        ({"dtypes": ["float8_e5m2"]}, "gloo", "dtypes: expected types that gloo carries"),
        ({"clusters": ["hgx_h100", "hgx_h200"]}, "gloo", "one cluster: this machine"),
        ({"faults": [{"kill": 1, "at": "1 us"}]}, "gloo", "no faults: machines are real"),
    ],
)
def test_what_a_machine_cannot_be_told_is_refused(changes, backend, wanted):
    """By its key."""
    with pytest.raises(ConfigError, match=wanted):
        keys = {k: v for k, v in CONFIG.items() if k != "cluster" or "clusters" not in changes}
        of = bench_config_from_mapping(keys | changes)
        benchmark.check_config(of)
        benchmark.measured_series(of, 2, backend)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize(
    "collective",
    [
        "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all",
        "all_to_all_v", "gather", "scatter", "sendrecv",
    ],
)  # fmt: skip
def test_gloo_moves_the_right_data(collective, gloo):
    """Each collective, in both forms, on three ranks; and wrong data would be seen."""
    dtypes = ["float32", "bfloat16", "int64"]
    of = config(collectives=[collective], algorithms=["auto"], dtypes=dtypes)
    rows = measured(gloo, of, 3)
    assert rows
    assert {row.num_wrong for row in rows} == {0}
    assert all(row.time_us > 0 for row in rows)


@pytest.fixture(scope="module")
def gloo():
    with benchmark.pool_of(3, "gloo", 60) as pool:
        yield pool
