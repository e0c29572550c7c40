"""Left-out series: who is left out, how a prediction is scored, and what a score rejects."""

import json
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import simrank
from simrank.calibration.accuracy import builtin_tables, table_series
from simrank.calibration.hold_outs import (
    DEVICE,
    GROUP,
    NAMES,
    NETWORK,
    ONE_SIZE,
    OPERATION,
    SITE,
    LeftOut,
    fit_tables,
    hold_outs,
    is_fitted_to,
    known_series,
    observed_of,
    score,
    without_site,
    write_left_out,
)
from simrank.calibration.page import rows_of
from simrank.cli.accuracy import scores_table
from simrank.collectives.nccl.pool import (
    NUM_KINDS,
    ONE_NODE,
    ONE_NODE_UNSEEN,
    SEVERAL_NODES,
    SEVERAL_NODES_UNSEEN,
    pooled_path,
    pooled_tables,
    read_pool,
    write_pool,
)
from simrank.errors import ConfigError

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


# ---- The shipped pooled constants ----

# Mean errors of left-out sites in percent, by class of size, that are reached and stay so.
REACHED_PCT = {
    ONE_NODE: (9, 10, 9, 7),
    ONE_NODE_UNSEEN: (38, 30, 19, 11),
    SEVERAL_NODES: (17, 26, 21, 14),
    SEVERAL_NODES_UNSEEN: (17, 30, 28, 13),
}
LEAST_COVERED = 0.85
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def fitted():
    """What the shipped tables give now."""
    names = [*builtin_tables(), *pooled_tables()]
    return fit_tables([each for name in names for each in table_series(name)])


@pytest.mark.slow
def test_the_shipped_constants_are_what_the_shipped_tables_give(fitted):
    """`simrank calibrate --pool --out configs/calibrations/pooled.json` writes them anew."""
    pool, _ = fitted
    shipped = read_pool()
    assert list(shipped.effects) == list(pool.num_sites)
    assert shipped.source == pool.source
    assert shipped.num_sites == pool.num_sites
    for name, logs in shipped.effects.items():
        assert logs == pytest.approx(pool.effects[name], abs=0.02), name
    assert shipped.noises == pytest.approx(pool.noises, rel=0.15, abs=0.015)


@pytest.mark.slow
@pytest.mark.parametrize("kind", REACHED_PCT)
def test_left_out_sites_are_predicted_as_well_as_before_and_better_than_by_nccl(fitted, kind):
    """Coverage of the 90% interval, and errors, with constants fitted without the site."""
    pool, left = fitted
    for number, aim in enumerate(REACHED_PCT[kind]):
        found = score([each for each in left if each.kind == kind], pool.noises, number)
        assert 100 * found.error <= aim, NAMES[number]
        assert not found.is_worse, NAMES[number]
        assert found.covers, NAMES[number]
        assert found.covered >= LEAST_COVERED, NAMES[number]


@pytest.mark.slow
def test_the_page_on_trust_has_the_errors_of_today(fitted):
    """As `simrank accuracy` prints them, with the cells that are rejected."""
    left = [*fitted[1], *hold_outs(known_series(), (DEVICE, OPERATION, GROUP))]
    console = Console(width=160, highlight=False, file=StringIO())
    console.print(scores_table("left out", rows_of(left), read_pool().noises))
    printed = "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())
    assert printed in (ROOT / "docs" / "trust.md").read_text()


@pytest.mark.slow
def test_the_shipped_constants_without_each_site_are_what_the_shipped_tables_give(tmp_path):
    """`simrank calibrate --pool` writes them too; each comparison with measured times uses them."""
    path = tmp_path / "pooled.json"
    write_left_out(known_series(), path)
    again = [json.loads(line) for line in path.with_suffix(".jsonl").read_text().splitlines()]
    shipped = pooled_path().with_suffix(".jsonl").read_text().splitlines()
    for mine, line in zip(again, shipped, strict=True):
        its = json.loads(line)
        for name in ("labels", "source", "unknown"):
            assert mine[name] == its[name]
        assert mine["factors"] == pytest.approx(its["factors"], rel=0.02)
        assert mine["covariance"] == pytest.approx(its["covariance"], rel=0.1, abs=0.002)


def test_the_constants_without_a_site_are_fitted_to_the_remaining_sites(observed):
    """And say so; a site that no table has is not left out."""
    (labels,) = {each.labels for each in observed if each.labels.site == "aws h100"} - {
        each.labels for each in observed if each.labels.network is not None
    }
    assert is_fitted_to("aws h100")
    assert "fitted to 117 series of 30 sites" in without_site(labels).source
    assert not is_fitted_to("mine")
    assert "119 series of 31 sites" in without_site(labels._replace(site="mine")).source


@pytest.mark.slow
def test_a_series_of_a_site_without_shipped_constants_is_fitted():
    """Of another collective, for example; without the site all the same."""
    observed = next(each for each in known_series() if each.labels.site == "aws h100")
    found = without_site(observed.labels._replace(operation="all_to_all"))
    assert "fitted to 117 series of 30 sites" in found.source
    assert "operation all_to_all" in found.source


def test_a_prediction_by_pooled_constants_has_the_interval_of_another_site():
    """It says what it rests on."""
    sizes = ["8 KiB", "1 MiB", "1 GiB"]
    found = simrank.predict("all_reduce", sizes, 8, "hgx_h100")
    assert "platform hopper" in found.calibration
    assert "sites" in found.calibration
    assert (found.low_us < found.time_us).all()
    widths = found.high_us / found.time_us - 1
    assert (widths > 0.05).all()


def test_pooled_constants_are_read_as_they_were_written(tmp_path):
    """To four digits, and the covariance to those of a float."""
    pool = read_pool()
    write_pool(pool, tmp_path / "again.json")
    again = read_pool(tmp_path / "again.json")
    assert again.covariance == pytest.approx(pool.covariance, rel=1e-6)
    assert np.array_equal(again.noises, pool.noises)
    for name, logs in pool.effects.items():
        assert again.effects[name] == pytest.approx(logs, abs=1e-3)


@pytest.mark.parametrize("is_missing", [True, False])
def test_a_covariance_that_does_not_fit_is_refused(tmp_path, is_missing):
    """With the name of its file."""
    (tmp_path / "mine.json").write_text(pooled_path().read_text())
    if not is_missing:
        np.save(tmp_path / "mine.npy", np.zeros(3))
    with pytest.raises(ConfigError, match=r"mine\.npy"):
        read_pool(tmp_path / "mine.json")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"source": "x", "noises": {}, "effects": 3}'])
def test_a_file_that_is_no_pool_is_refused(tmp_path, text):
    """With its name, and what writes such files."""
    (tmp_path / "mine.json").write_text(text)
    with pytest.raises(ConfigError, match=r"mine\.json(.|\n)*simrank calibrate --pool"):
        read_pool(tmp_path / "mine.json")
