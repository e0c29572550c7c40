"""How far predictions are from published tables."""

from functools import cache

import numpy as np
import pytest

from simrank.calibration.accuracy import (
    AIMED,
    DIRECT,
    HOST_LAUNCH_US,
    SeriesErrors,
    builtin_tables,
    mean_errors,
    measured_series,
    table_series,
)
from simrank.collectives.nccl.evidence import P2P_SPREAD, UNCALIBRATED_SPREAD
from simrank.errors import ConfigError

HEADER = "system,op,nranks,bytes,dtype,time_us,algbw_GBps,busbw_GBps,source\n"
ROW = "here,all_reduce,8,1024,float,10,0.1,0.18,nowhere\n"


def table_errors(table, cluster=None):
    """Return the errors of NCCL's own constants."""
    return [each.errors() for each in table_series(table, cluster)]


@cache
def builtin_errors():
    """Return those of every table."""
    return [each for name in builtin_tables() for each in table_errors(name)]


def series(sizes, measured, predicted):
    arrays = (np.array(sizes), np.array(measured), np.array(predicted))
    chosen = (("ring", "LL"),) * len(sizes)
    parts = np.zeros((5, len(sizes)))
    return SeriesErrors(
        "table", "cluster", "all_reduce", 8, 1, "back_to_back", *arrays, chosen, parts
    )


def test_errors_are_shares_of_what_was_measured_by_class_of_size():
    """The mean without signs, and with them; negative is too fast."""
    found = series([8, 32 << 10, 1 << 20, 1 << 30], [10.0] * 4, [12.0, 8.0, 5.0, 10.0])
    assert found.by_class() == [(pytest.approx(0.2), pytest.approx(0)), (0.5, -0.5), None, (0, 0)]


def test_means_are_over_series_whatever_their_number_of_sizes():
    """A table of many sizes does not outvote the others."""
    many = series([8] * 10, [1.0] * 10, [2.0] * 10)
    assert mean_errors([many, series([8], [1.0], [1.0])])[0] == (0.5, 0.5)


def test_every_shipped_table_is_predicted_within_its_budget():
    """Uncalibrated; what a change of a law or of a constant makes worse fails here."""
    aimed = [e for e in builtin_errors() if e.collective in AIMED and e.mode == "back_to_back"]
    assert len(aimed) >= 26
    means = [100 * absolute for absolute, _ in mean_errors(aimed)]
    assert means == pytest.approx([21, 32, 27, 11], abs=1)
    known = [100 * e[0] for e in mean_errors([e for e in aimed if e.is_rate_known])]
    assert known == pytest.approx([20.5, 32.5, 25, 10], abs=1)


def test_the_parts_of_a_prediction_add_up_to_it():
    """The launch, base, D, W and the ramp of what was chosen."""
    for name in ("h100x16_nebius_ib_allreduce", "b200x16_vultr_alltoall"):
        (found,) = table_errors(name)
        assert found.parts_us.sum(axis=0) == pytest.approx(found.predicted_us)


def test_a_rate_of_cards_is_known_where_the_file_does_not_assume_it():
    """One node has none that could be unknown."""
    names = {
        "h100x16_nebius_ib_allreduce": True,
        "h100x16_aws_p5_efa_allreduce": False,
        "a100x8_stas_allreduce": True,
    }
    for name, is_known in names.items():
        (found,) = table_errors(name)
        assert found.is_rate_known == is_known, name


def test_a_table_with_a_machine_needs_no_cluster_and_another_may_be_asked_for():
    """The file beside the table says where it was measured."""
    (own,) = table_errors("h200x16_dgx_1nic_allreduce")
    assert (own.cluster, own.num_nodes) == ("h200_ib", 2)
    (other,) = table_errors("h200x16_dgx_1nic_allreduce", "h100_ib")
    assert other.cluster == "h100_ib"
    large = own.predicted_us[-1] / other.predicted_us[-1]
    assert large > 3, "one card of each node, not eight"


def test_a_table_of_ones_own_needs_a_cluster(tmp_path):
    """The message says the two ways to name it."""
    path = tmp_path / "mine.csv"
    path.write_text(HEADER + ROW)
    with pytest.raises(ConfigError, match=r"--cluster, or a file mine.yaml beside it"):
        table_errors(str(path))
    (found,) = table_errors(str(path), "hgx_h100")
    assert (found.table, found.num_ranks, found.measured_us.tolist()) == ("mine", 8, [10.0])
    assert found.to_json()["fitted_to"] is None
    (row,) = found.to_json()["rows"]
    assert row["error_pct"] == pytest.approx(100 * (row["predicted_us"] / 10 - 1))


@pytest.mark.parametrize("is_p2p", [False, True])
def test_nine_of_ten_measured_times_are_within_the_uncalibrated_spread(is_p2p):
    """Which is not much wider than it has to be, for each class of sizes."""
    spread = P2P_SPREAD if is_p2p else UNCALIBRATED_SPREAD
    mine = [
        e for e in builtin_errors() if e.mode == DIRECT and (e.collective not in AIMED) == is_p2p
    ]
    for number, within in enumerate(spread):
        ratios = np.concatenate([(1 + each.error)[each.in_class(number)] for each in mine])
        shares = np.maximum(ratios, 1 / ratios) - 1
        assert np.percentile(shares, 90, method="higher") == pytest.approx(within, rel=0.05)


def test_more_ranks_on_a_host_than_the_clusters_nodes_have_are_refused():
    """Sixteen on one host are no two nodes of eight."""
    hosts = "".join(f"#  Rank {rank} Group 0 Pid 1 on a device {rank}\n" for rank in range(16))
    text = (
        f"# all_reduce_perf\n# nThread 1 nGpus 1 minBytes 8\n{hosts} 8 2 float sum -1 40.12 0 0 0\n"
    )
    with pytest.raises(ConfigError, match="8 ranks on a node of h100_ib at most, got 16"):
        measured_series({"pasted": text}, "h100_ib")


def test_no_call_takes_less_than_the_launches_of_its_host_thread():
    """`-g 8`: eight A100 take 39 us a call, 18 us with a process each; large sizes hide it."""
    hosts = "".join(f"#  Rank {rank} Group 0 Pid 1 on a device {rank}\n" for rank in range(8))
    lines = "8 2 float sum -1 40.12 0 0 0\n 1073741824 268435456 float sum -1 8247.6 130 228 0\n"
    small, large = [], []
    for gpus in (1, 8):
        text = f"# all_reduce_perf\n# nThread 1 nGpus {gpus} minBytes 8\n{hosts}{lines}"
        (series,) = measured_series({"pasted": text}, "hgx_a100")
        errors = series.errors()
        small.append(errors.predicted_us[0])
        large.append(errors.predicted_us[1])
        assert errors.parts_us.sum(axis=0) == pytest.approx(errors.predicted_us)
    assert small == [pytest.approx(18.8, abs=8), pytest.approx(8 * HOST_LAUNCH_US, rel=0.02)]
    assert large[0] == pytest.approx(large[1])
