"""Which series have errors against a measured table."""

from dataclasses import replace

import pytest

from simrank.bench.comparison import comparison_of
from simrank.bench.run import run
from simrank.bench.series import series_of
from simrank.config import bench_config_from_mapping

CONFIG = {"cluster": "hgx_h100", "collectives": ["all_reduce"], "sizes": ["1 KiB"]}


def comparison(**keys):
    config = bench_config_from_mapping(CONFIG | keys)
    (series,) = series_of(config)
    return comparison_of(series, config)


@pytest.mark.parametrize("algorithm", ["auto", "nccl"])
def test_nccls_choice_is_comparable(algorithm):
    """Run or predicted, back to back as measured."""
    found = comparison(algorithms=[algorithm], measured="h100x8_aws_p5_allreduce")
    assert (found.difference, found.floor_us) == (None, 0.0)
    assert list(found.notes()) == []


@pytest.mark.parametrize(
    ("keys", "difference"),
    [
        ({"algorithms": ["ring"]}, "ring is forced, NCCL's own choice was measured"),
        (
            {"iterations": {"blocking": True}},
            "iterations wait for each other, back to back was measured",
        ),
        ({"measured": "xla_h100x8"}, "calls run back to back, loops of xla were measured"),
    ],
)
def test_another_algorithm_or_launch_mode_is_not_comparable(keys, difference):
    """The reason is in the comment line."""
    found = comparison(**keys)
    assert found.difference == difference
    assert list(found.notes()) == [f"# No 90% interval and no error: {difference}"]


def test_times_of_one_thread_with_several_gpus_have_no_error_below_its_launches():
    """Large sizes have errors as usual."""
    found = comparison(cluster="hgx_a100", measured="a100x8_stas_allreduce")
    assert found.floor_us > 0
    (row, *_) = run_rows()
    small = replace(row, time_us=found.floor_us - 1, measured_us=100.0, error_pct=1.0)
    large = replace(small, time_us=found.floor_us + 1)
    assert [each.error_pct for each in found.shown([small, large])] == [None, 1.0]
    assert found.shown([small])[0].interval_us == row.interval_us
    assert "one host thread launched on several GPUs" in "".join(found.notes())


def run_rows():
    """Return rows of a run."""
    from simrank.bench.run import Watcher

    class Found(Watcher):
        rows = ()

        def on_rows(self, series, rows):
            del series
            self.rows = rows

    found = Found()
    run(CONFIG, watcher=found)
    return found.rows
