"""What the tuner plugin should choose."""

from itertools import pairwise

import numpy as np
import pytest

import simrank
from simrank.config.tuner import COLLECTIVES, MAX_BYTES, tuner_text
from simrank.errors import ConfigError
from simrank.planning.tune import tune

SIZES = 2 ** np.arange(0, 40)


def fastest(collective, **where):
    """Return the least time of each size, of everything that NCCL offers."""
    times = []
    for algorithm in ("Tree", "Ring", "NVLS", "NVLSTree"):
        for protocol in ("LL", "LL128", "Simple"):
            try:
                found = simrank.predict(
                    collective, SIZES, nccl_algo=algorithm, nccl_proto=protocol, **where
                )
            except ConfigError:
                continue  # NCCL does not offer it.
            times.append(found.time_us)
    return np.min(times, axis=0)


@pytest.mark.parametrize("cluster", ["hgx_h100", "h100_ib", "h100_efa"])
@pytest.mark.parametrize("calibration", ["auto", None])
def test_a_prediction_with_what_was_written_is_the_fastest(cluster, calibration, tmp_path):
    """Of every collective, at every size: written, read again, and predicted."""
    where = {"cluster": cluster, "calibration": calibration}
    path = tmp_path / "tuner.csv"
    path.write_text(tuner_text(tune(list(COLLECTIVES.values()), **where)))
    for collective in COLLECTIVES.values():
        found = simrank.predict(collective, SIZES, nccl_tuner=path, **where)
        assert found.time_us == pytest.approx(fastest(collective, **where))


def test_it_is_faster_than_what_nccl_chooses_where_that_is_wrong(tmp_path):
    """On two nodes of EFA it takes nvls_tree from 4 MiB on, where LL128 is faster by a fifth."""
    path = tmp_path / "tuner.csv"
    path.write_text(tuner_text(tune(["all_reduce"], cluster="h100_efa")))
    own = simrank.predict("all_reduce", SIZES, cluster="h100_efa")
    tuned = simrank.predict("all_reduce", SIZES, cluster="h100_efa", nccl_tuner=path)
    assert (tuned.time_us <= own.time_us * (1 + 1e-12)).all()
    assert (tuned.time_us < 0.9 * own.time_us).any()


def test_ranges_meet_and_differ():
    """From 0 to the largest number, without a gap; two in a row are not alike."""
    rows = tune(["all_reduce"], 16, "h100_ib")
    assert rows[0].min_bytes == 0
    assert rows[-1].max_bytes == MAX_BYTES
    for low, high in pairwise(rows):
        assert high.min_bytes == low.max_bytes + 1
        assert (low.algorithm, low.protocol) != (high.algorithm, high.protocol)


def test_rows_hold_for_the_ranks_that_were_asked_for():
    """And for buffers that are not registered, of which alone the laws know."""
    (row, *_) = tune(["reduce"], 12, "h100_ib")
    assert (row.num_ranks, row.num_nodes, row.registered, row.channels) == (12, 2, 0, 0)


def test_a_change_is_at_the_byte_at_which_the_other_is_faster():
    """One byte less, and the choice before it is at least as fast."""
    low, high = tune(["all_reduce"], cluster="hgx_h100")[:2]
    sizes = [low.max_bytes, high.min_bytes]
    names = {"tree": "Tree", "ring": "Ring", "nvls": "NVLS"}
    one, two = (
        simrank.predict(
            "all_reduce", sizes, nccl_algo=names[row.algorithm], nccl_proto=row.protocol
        ).time_us
        for row in (low, high)
    )
    assert one[0] <= two[0]
    assert two[1] < one[1]


def test_what_the_plugin_does_not_choose_for_is_refused():
    """With the collectives that it knows."""
    with pytest.raises(ValueError, match=r"all_to_all.*expected one of all_reduce"):
        tune(["all_to_all"])
