"""The shipped pooled constants: refitted, they are the same; left-out sites are within them."""

from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import simrank
from simrank.bench.accuracy import builtin_tables, table_series
from simrank.bench.hold_outs import DEVICE, GROUP, OPERATION, hold_outs, score
from simrank.bench.hold_outs_page import rows_of
from simrank.bench.pooling import NAMES, fit_tables
from simrank.cli.accuracy_pooled import known_series, scores_table
from simrank.collectives.nccl.pool import (
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
