"""Calibrations: fitted, written, read again and used."""

from dataclasses import replace

import numpy as np
import pytest

import simrank
from simrank.calibration.accuracy import measured_series, table_series
from simrank.calibration.calibrate import calibrate
from simrank.collectives.nccl.laws import CONSTANTS
from simrank.config.calibration import load_calibration
from simrank.errors import ConfigError


def test_what_is_written_is_what_was_fitted(tmp_path):
    """And predictions by the file have the errors that the fit left."""
    (series,) = table_series("h100x16_aws_p5_efa_allreduce")
    found = calibrate([series], library="NCCL 2.28")
    path = tmp_path / "mine.yaml"
    path.write_text(found.text())
    config = load_calibration(str(path))
    assert config.constants == {name: getattr(found.calibration, name) for name in CONSTANTS}
    assert len(config.covariance) == 45
    assert config.cluster == "h100_efa"
    assert "library: NCCL 2.28\n" in path.read_text()
    sizes = series.measured.size_bytes
    predicted = simrank.predict("all_reduce", sizes, cluster="h100_efa", calibration=str(path))
    assert predicted.time_us == pytest.approx(found.errors[0].predicted_us)
    assert predicted.calibration == "fitted to h100x16_aws_p5_efa_allreduce"


@pytest.mark.parametrize("name", ["h100x16_aws_p5_efa_allreduce", "b200x16_vultr_allreduce"])
def test_intervals_hold_nine_of_ten_measured_times(name, tmp_path):
    """Of what was fitted; they are narrower than those of an unknown site."""
    (series,) = table_series(name)
    of, path = series.measured, tmp_path / "mine.yaml"
    path.write_text(calibrate([series]).text())
    known, other = (
        simrank.predict(of.collective, of.size_bytes, cluster=series.cluster, calibration=word)
        for word in (str(path), "auto")
    )
    inside = (known.low_us <= of.time_us) & (of.time_us <= known.high_us)
    assert inside.mean() >= 0.85
    assert np.median(known.high_us / known.time_us) < np.median(other.high_us / other.time_us)


def test_sizes_that_were_not_measured_are_less_certain(tmp_path):
    """A rack that was measured from 512 MiB on says little of small sizes."""
    path = tmp_path / "mine.yaml"
    path.write_text(calibrate(table_series("gb200x72_coreweave_allreduce")).text())
    found = simrank.predict(
        "all_reduce", ["1 KiB", "8 GiB"], 72, "gb200_nvl72", calibration=str(path)
    )
    widths = found.high_us / found.time_us - 1
    assert widths[0] > 2 * widths[1]


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
    pooled, plain = (
        simrank.predict("all_reduce", 8, 16, cluster="h100_efa", calibration=word)
        for word in ("auto", None)
    )
    assert plain.calibration is None
    assert pooled.time_us != plain.time_us
    assert pooled.calibration
    with pytest.raises(ConfigError, match="a file or one of auto, none, pooled"):
        simrank.predict("all_reduce", 8, calibration="nobody")


def test_a_calibration_of_another_machine_is_refused(tmp_path):
    """Other devices, another network; a further number of nodes is moved as the pool says."""
    path = tmp_path / "mine.yaml"
    path.write_text(calibrate(table_series("h100x8_aws_p5_allreduce")).text())
    assert simrank.predict(
        "all_reduce", 1 << 20, cluster="h100_ib", nodes=2, calibration=str(path)
    ).calibration.startswith("fitted to h100x8_aws_p5_allreduce, for all_reduce moved")
    with pytest.raises(ConfigError, match=r"those of ampere, got constants .* platform hopper"):
        simrank.predict("all_reduce", 1 << 20, cluster="hgx_a100", calibration=str(path))
    path.write_text(calibrate(table_series("h100x16_aws_p5_efa_allreduce")).text())
    with pytest.raises(ConfigError, match=r"those of ib, got constants .* network efa"):
        simrank.predict("all_reduce", 1 << 20, cluster="h100_ib", calibration=str(path))


def _times(text, cluster="hgx_h100"):
    lines = "".join(
        f"  {size}  {size // 4}  float  sum  -1  {us}  1  1  0  {us}  1  1  0\n"
        for size, us in text
    )
    return measured_series(
        {"pasted": "# all_reduce_perf\n" + lines}, cluster, num_ranks=8, collective="all_reduce"
    )


def test_times_in_another_unit_and_single_wrong_rows_are_doubted():
    """By the interval of such machines; shipped tables are not."""
    good = [(1 << power, 19.0) for power in range(10, 16)]
    assert calibrate(_times(good)).doubts == (None,)
    (doubt,) = calibrate(_times([(size, 1000 * us) for size, us in good])).doubts
    assert "took 19000 us; predicted for hgx_h100 are 19" in doubt
    (doubt,) = calibrate(_times([*good[1:], (1 << 10, 19000.0)])).doubts
    assert "1 KiB took 19000 us" in doubt


def test_one_size_leaves_nccls_rule_as_it_is_pooled():
    """And the same row ten times is one measurement."""
    one = calibrate(_times([(1024, 28.6)]))
    assert one.calibration.takes_fastest
    assert calibrate(_times([(1024, 28.6)] * 10)).data == one.data


def test_the_interval_of_each_class_of_size_is_that_of_a_prediction(tmp_path):
    """Also where no size was measured, which is marked."""
    (series,) = table_series("h100x8_aws_p5_allreduce")
    small = series.measured.size_bytes <= 64
    part = series.measured._replace(
        size_bytes=series.measured.size_bytes[small], time_us=series.measured.time_us[small]
    )
    found = calibrate([replace(series, measured=part)])
    path = tmp_path / "mine.yaml"
    path.write_text(found.text())
    assert found.measured.tolist() == [[True, False, False, False]]
    sizes = [1 << 12, 1 << 18, 1 << 23, 1 << 29]
    predicted = simrank.predict("all_reduce", sizes, 8, "hgx_h100", calibration=str(path))
    widths = predicted.high_us / predicted.time_us - 1
    assert found.intervals[0] == pytest.approx(widths, rel=0.01)
