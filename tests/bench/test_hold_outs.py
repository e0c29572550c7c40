"""Left-out series: who is left out, how a prediction is scored, and what a score rejects."""

import numpy as np
import pytest

from simrank.bench.accuracy import table_series
from simrank.bench.hold_outs import (
    DEVICE,
    GROUP,
    NETWORK,
    ONE_SIZE,
    OPERATION,
    SITE,
    LeftOut,
    hold_outs,
    score,
)
from simrank.bench.pooling import observed_of
from simrank.collectives.nccl.pool import NUM_KINDS, ONE_NODE, SEVERAL_NODES_UNSEEN

NOISES = np.full((NUM_KINDS, 4), 0.1)
TABLES = (
    "h100x8_aws_p5_allreduce",
    "b200x8_vultr_allreduce",
    "b200x16_vultr_allreduce",
    "h100x16_nebius_ib_allreduce",
    "h100x16_aws_p5_efa_allreduce",
)


@pytest.fixture(scope="module")
def observed():
    return [observed_of(each) for table in TABLES for each in table_series(table)]


def test_every_kind_leaves_out_what_it_names(observed):
    """A site with all its tables; networks only between nodes; blocks only on one node."""
    units = {}
    for each in hold_outs(observed, (SITE, NETWORK, DEVICE, OPERATION, GROUP)):
        units.setdefault(each.hold_out, set()).add(each.unit)
    assert units[SITE] <= {each.labels.site for each in observed}
    assert units[NETWORK] == {each.labels.network for each in observed} - {None}
    assert units[DEVICE] == {"hgx_h100", "hgx_b200"}
    assert units[OPERATION] == {"hgx_h100 all_reduce", "hgx_b200 all_reduce"}
    assert units[GROUP] == {"hgx_h100 8", "hgx_b200 8"}


def test_an_unseen_network_is_told_apart(observed):
    """And counted once, with its network."""
    found = [each for each in hold_outs(observed) if each.observed.labels.network == "efa"]
    assert [(each.kind, each.hold_out) for each in found] == [(SEVERAL_NODES_UNSEEN, NETWORK)]


def test_a_known_small_size_is_not_predicted(observed):
    """The others are, of series whose platform and network other sites have."""
    found = [each for each in hold_outs(observed) if each.hold_out == ONE_SIZE]
    whole = {each.labels.series: len(each.time_us) for each in observed}
    for each in found:
        assert len(each.errors) == whole[each.observed.labels.series] - 1


def made(observed, error, unit="here", plain=0.5):
    """Return a prediction that is off by a factor everywhere."""
    num = len(observed.time_us)
    errors = np.full(num, np.log1p(error))
    return LeftOut(observed, errors, np.zeros(num), np.full(num, np.log1p(plain)), ONE_NODE, unit)


def test_a_score_has_errors_widths_and_coverage(observed):
    """Of a noise of 0.1 the interval is 18 %; wide intervals cost as much as times outside."""
    found = score([made(observed[0], 0.1)], NOISES, 0)
    assert found.error == pytest.approx(0.1)
    assert found.plain == pytest.approx(0.5)
    assert found.half_width == pytest.approx(np.expm1(0.1645))
    assert found.covered == 1.0
    assert found.winkler == pytest.approx(2 * 0.1645)
    outside = score([made(observed[0], 0.3)], NOISES, 0)
    assert outside.covered == 0.0
    assert outside.winkler == pytest.approx(2 * 0.1645 + 20 * (np.log(1.3) - 0.1645))
    assert score([made(observed[0], 0.3)], 4 * NOISES, 0).winkler == pytest.approx(8 * 0.1645)


def test_units_count_and_not_times(observed):
    """Two of ten sites outside are no proof against 85 %, five are."""
    for num_outside, covers in ((2, True), (5, False)):
        left = [
            made(observed[0], 0.3 if number < num_outside else 0.0, f"site {number}")
            for number in range(10)
        ]
        assert score(left, NOISES, 0).covers == covers


def test_worse_than_nccls_own_constants_is_worse_beyond_noise(observed):
    """At each of ten sites, not at one of them."""
    for num_worse, is_worse in ((10, True), (1, False)):
        left = [
            made(observed[0], 0.2 if number < num_worse else 0.0, f"site {number}", plain=0.1)
            for number in range(10)
        ]
        assert score(left, NOISES, 0).is_worse == is_worse


def test_a_class_without_times_has_no_score():
    """As of tables that begin at large sizes."""
    assert score([], NOISES, 0) is None
