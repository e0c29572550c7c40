"""Calibrations: fitted, written, read again and used."""

import pytest

import simrank
from simrank.bench.accuracy import measured_series, table_series
from simrank.bench.calibrate import calibrate
from simrank.bench.predict import UNCALIBRATED_SPREAD
from simrank.collectives.nccl.machine import constants_of
from simrank.config.calibration import load_calibration
from simrank.config.locate import builtin_names
from simrank.errors import ConfigError


def test_what_is_written_is_what_was_fitted(tmp_path):
    """And predictions by the file have the errors that the fit left."""
    (series,) = table_series("h100x16_aws_p5_efa_allreduce")
    found = calibrate([series], library="NCCL 2.28")
    path = tmp_path / "mine.yaml"
    path.write_text(found.text())
    config = load_calibration(str(path))
    assert constants_of(config) == found.calibration
    assert config.cluster == "h100_efa"
    assert "library: NCCL 2.28\n" in path.read_text()
    sizes = series.measured.size_bytes
    predicted = simrank.predict("all_reduce", sizes, cluster="h100_efa", calibration=str(path))
    assert predicted.time_us == pytest.approx(found.errors[0].predicted_us)
    assert predicted.calibration == "fitted to h100x16_aws_p5_efa_allreduce"


@pytest.mark.parametrize("name", ["h100x16_aws_p5_efa_allreduce", "b200x16_vultr_alltoall"])
def test_intervals_hold_nine_of_ten_measured_times(name):
    """Of what was fitted, and of another collective, whose interval is wider."""
    (series,) = table_series(name)
    of = series.measured
    found = simrank.predict(of.collective, of.size_bytes, cluster=series.cluster)
    inside = (found.low_us <= of.time_us) & (of.time_us <= found.high_us)
    assert inside.mean() >= 0.85
    assert (found.high_us / found.time_us < 3).all()


def test_what_was_not_fitted_is_as_uncertain_as_without_a_fit():
    """Other ranks and nodes."""
    own, more = (
        simrank.predict("all_reduce", 1 << 20, cluster="h100_ib", nodes=nodes) for nodes in (2, 4)
    )
    assert own.high_us / own.time_us < 1.5
    assert more.high_us / more.time_us == pytest.approx(1 + UNCALIBRATED_SPREAD[1])


def test_sizes_that_were_not_measured_are_as_uncertain_as_without_a_fit():
    """A rack that was measured from 512 MiB on says nothing of small sizes."""
    found = simrank.predict("all_reduce", ["1 KiB", "8 GiB"], cluster="gb200_nvl72")
    width = found.high_us / found.time_us
    assert width[0] == pytest.approx(1 + UNCALIBRATED_SPREAD[0])
    assert width[1] < 1.3


@pytest.mark.parametrize("name", builtin_names("calibrations"))
def test_every_shipped_calibration_is_of_a_built_in_cluster_and_better_than_none(name):
    """On the tables that it says it was fitted to."""
    config = load_calibration(name)
    assert config.cluster == name
    assert name in builtin_names("clusters")
    for table in config.source.removeprefix("fitted to ").split(", "):
        for series in table_series(table):
            fitted = abs(series.errors(constants_of(config)).error).mean()
            assert fitted < abs(series.errors().error).mean()


def test_several_clusters_and_loops_of_frameworks_are_refused():
    """They have no constants in common."""
    h100, a100 = table_series("h100x8_aws_p5_allreduce"), table_series("a100x8_stas_allreduce")
    with pytest.raises(ValueError, match="of one cluster"):
        calibrate([*h100, *a100])
    with pytest.raises(ValueError, match="loops of xla"):
        calibrate(table_series("xla_h100x8"))


def test_a_pasted_output_of_more_ranks_than_a_node_has_takes_more_nodes():
    """As many as its ranks fill."""
    lines = "".join(f"#  Rank {rank} Group 0\n" for rank in range(32))
    text = f"# all_reduce_perf\n{lines}  1024 256 float sum -1 40.0 0 0 0 40.0 0 0 0\n"
    (series,) = measured_series({"pasted": text}, "h100_ib")
    assert series.measured.comm.shape.num_nodes == 4


def test_predictions_may_do_without_a_calibration():
    """None is NCCL's own constants; a name that there is not lists those that there are."""
    fitted = simrank.predict("all_reduce", 8, cluster="h200_roce")
    plain = simrank.predict("all_reduce", 8, cluster="h200_roce", calibration=None)
    assert plain.calibration is None
    assert fitted.time_us > 1.5 * plain.time_us
    fitted, plain = (
        simrank.predict("all_reduce", 8, 16, cluster="h100_efa", calibration=word)
        for word in ("auto", None)
    )
    assert plain.high_us / plain.time_us > fitted.high_us / fitted.time_us
    with pytest.raises(ConfigError, match="one of a100_efa"):
        simrank.predict("all_reduce", 8, calibration="nobody")
