"""Constants on a cluster: pooled, NCCL's own, or of a file; programs use those of predictions."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import yaml

import simrank
from simrank.calibration.accuracy import measured_series
from simrank.calibration.calibrate import calibrate
from simrank.collectives.nccl import Communicator, GroupShape
from simrank.collectives.nccl.evidence import constants_on, shipped_pool
from simrank.collectives.nccl.laws import UNCALIBRATED
from simrank.collectives.nccl.machine import spec_of
from simrank.config.locate import builtin_names, locate
from simrank.errors import ConfigError
from simrank.hardware import load_cluster

PLATFORMS = [name for name in builtin_names("clusters") if load_cluster(name).nccl is not None]


def comm_on(cluster, num_ranks):
    shape = GroupShape.packed(num_ranks, cluster.devices_per_node)
    return Communicator(shape, spec_of(cluster, shape))


def known(cluster, collective="all_reduce", num_ranks=8, word="auto"):
    cluster = load_cluster(cluster) if isinstance(cluster, str) else cluster
    return constants_on(cluster, collective, comm_on(cluster, num_ranks), word)


@pytest.fixture
def copy(tmp_path):
    """Write a copy of h100_ib with a calibration, and load it."""

    def load(key):
        own = tmp_path / "own.yaml"
        own.write_text(locate("clusters", "h100_ib").read_text() + key)
        return load_cluster(own)

    return load


@pytest.mark.parametrize("cluster", PLATFORMS)
def test_a_built_in_cluster_takes_pooled_constants(cluster):
    """Those of its platform, which measured tables tell."""
    num_ranks = min(4, load_cluster(cluster).num_devices)
    found = known(cluster, num_ranks=num_ranks)
    assert found.calibration != UNCALIBRATED
    assert found.source.startswith("fitted to ")
    assert all(not name.startswith("platform") for name in found.unknown), found.unknown


@pytest.mark.parametrize(("key", "word"), [("", "pooled"), ("calibration: pooled\n", "pooled"),
                                           ("calibration: none\n", "none")])  # fmt: skip
def test_a_copy_of_a_cluster_takes_what_its_file_says(copy, key, word):
    """A copy without the key has the times of the original."""
    found, asked = known(copy(key)), known("h100_ib", word=word)
    assert found.calibration == asked.calibration
    assert np.array_equal(found.noises, asked.noises)


def test_a_misspelt_word_is_refused_with_the_right_one():
    """Also where a file could stand."""
    with pytest.raises(ConfigError, match=r"`poled`(.|\n)*pooled"):
        known("hgx_h100", word="poled")


def table(cluster, sizes, factor, collective="all_reduce"):
    """Return times of a machine whose launches and rates differ from pooled ones by a factor."""
    at = simrank.predict(collective, sizes, 8, cluster).time_us * factor
    head = "system,op,nranks,bytes,dtype,time_us,algbw_GBps,busbw_GBps,source\n"
    rows = [
        f"x,{collective},8,{size},float,{us},{size / us / 1e3},{size / us / 1e3},x\n"
        for size, us in zip(sizes, at, strict=True)
    ]
    return head + "".join(rows)


@pytest.fixture
def fitted(tmp_path):
    """Write the calibration of an hgx_h100 that is slower by a factor at some sizes."""

    def write(sizes, factor):

        path = tmp_path / "mine.yaml"
        text = table("hgx_h100", sizes, factor)
        path.write_text(calibrate(measured_series({"x.csv": text}, "hgx_h100")).text())
        return str(path)

    return write


SMALL, LARGE = [1 << 12], [1 << 30]


def test_one_small_size_moves_small_sizes_and_narrows_their_interval(fitted):
    """Large ones stay nearly as they are, and about as uncertain as before."""
    path = fitted(SMALL, 1.15)
    for sizes, is_moved in ((SMALL, True), (LARGE, False)):
        before = simrank.predict("all_reduce", sizes, 8, "hgx_h100")
        after = simrank.predict("all_reduce", sizes, 8, "hgx_h100", calibration=path)
        ratio = (after.time_us / before.time_us)[0]
        width = ((after.high_us / after.time_us - 1) / (before.high_us / before.time_us - 1))[0]
        assert ratio == pytest.approx(1.13 if is_moved else 1.0, abs=0.05)
        assert width < 0.8 if is_moved else 0.85 < width < 1.6


def test_a_measured_collective_moves_the_others_and_leaves_them_less_certain(fitted):
    """A machine that is slow at all_reduce is slow at all_gather."""
    sizes = [1 << power for power in range(12, 31, 3)]
    path = fitted(sizes, 1.3)
    widths = {}
    for collective in ("all_reduce", "all_gather"):
        before = simrank.predict(collective, sizes, 8, "hgx_h100")
        after = simrank.predict(collective, sizes, 8, "hgx_h100", calibration=path)
        assert np.median(after.time_us / before.time_us) == pytest.approx(1.28, abs=0.1)
        widths[collective] = after.high_us / after.time_us
    assert (widths["all_gather"] > widths["all_reduce"]).all()


def test_a_file_without_covariance_is_taken_as_exact(fitted, tmp_path):
    """Its residuals are the interval."""
    data = yaml.safe_load(Path(fitted(SMALL, 1.4)).read_text())
    del data["covariance"]
    (tmp_path / "exact.yaml").write_text(yaml.safe_dump(data))
    found = known("hgx_h100", word=str(tmp_path / "exact.yaml"))
    assert not found.covariances["fit"].any()
    assert found.calibration.launch_us == data["constants"]["launch_us"]


def test_a_network_that_no_table_knows_has_the_range_of_all_networks():
    """And says so."""
    cluster = load_cluster("h100_ib")
    spec = dataclasses.replace(cluster.nccl, network="")
    odd = dataclasses.replace(cluster, nccl=spec)
    found, usual = known(odd, num_ranks=16), known(cluster, num_ranks=16)
    assert found.unknown == ("network unknown",)
    assert "no table of network unknown" in found.source
    assert found.noises[1] > 1.2 * usual.noises[1]


def test_the_shipped_pool_is_read_once():
    """Every rank of every program asks for it."""
    assert shipped_pool() is shipped_pool()
