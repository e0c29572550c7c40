"""The page of left-out machines."""

import numpy as np
import pytest

from simrank.bench.accuracy import table_series
from simrank.bench.hold_outs import hold_outs
from simrank.bench.hold_outs_page import hold_outs_page, platforms_of, rows_of
from simrank.bench.pooling import observed_of
from simrank.collectives.nccl.pool import NUM_KINDS

TABLES = ("h100x8_aws_p5_allreduce", "b200x8_vultr_allreduce", "h100x16_nebius_ib_allreduce")


@pytest.fixture(scope="module")
def left():
    return list(hold_outs([observed_of(each) for name in TABLES for each in table_series(name)]))


def test_rows_name_what_was_left_out_and_platforms_count_a_series_once(left):
    """A network that one site has is left out with it."""
    words = [name for name, _ in rows_of(left)]
    assert any(name.startswith("site: one node") for name in words)
    platforms = dict(platforms_of(left))
    assert set(platforms) == {"blackwell, one node", "hopper, one node", "hopper, over ib"}
    assert all(len(mine) == 1 for mine in platforms.values())


def test_the_page_shows_scores_coverage_and_every_series(left):
    """Equal predictions give equal text."""
    noises = np.full((NUM_KINDS, 4), 0.1)
    page = hold_outs_page(left, noises)
    assert page == hold_outs_page(left, noises)
    assert "Stated and seen coverage" in page
    assert "stated (%)" in page
    for name in TABLES:
        assert name in page
