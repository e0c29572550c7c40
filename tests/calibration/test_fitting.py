"""Fits find the constants that times were made with, and keep what they do not tell apart."""

from dataclasses import replace

import numpy as np
import pytest

from simrank.calibration.fitting import NAMES, Measured, fit
from simrank.collectives.nccl import Calibration, Communicator, GroupShape, predict_times
from simrank.config.calibration import CONSTANTS
from tests.collectives.nccl.conftest import HOPPER

SIZES = 2 ** np.arange(3, 34)


def made_with(spec, calibration, nodes=2, sizes=SIZES, noise=0.0):
    comm = Communicator(GroupShape.packed(8 * nodes, 8), spec)
    times = predict_times("all_reduce", sizes, replace(comm, calibration=calibration)).times_us
    return Measured("all_reduce", sizes, times * np.exp(noise), comm)


def errors(table, calibration):
    comm = replace(table.comm, calibration=calibration)
    return np.abs(predict_times("all_reduce", table.size_bytes, comm).times_us / table.time_us - 1)


@pytest.mark.parametrize(
    "truth",
    [
        Calibration(launch_us=20.0, hop_intra=1.3, bandwidth_intra=0.9),
        Calibration(hop_net=12.0, bandwidth_net=0.8, ramp=1.5),
        Calibration(latency_simple=0.7, latency_ll128=1.4, ramp=0.6, takes_fastest=True),
    ],
)
def test_times_of_known_constants_are_met(truth):
    """Within a few percent everywhere: the prior pulls a little towards NCCL's constants."""
    table = made_with(HOPPER, truth)
    assert errors(table, fit([table]).calibration).mean() < 0.02


def test_what_times_do_not_tell_stays_as_it_is():
    """One node says nothing of the network."""
    found = fit([made_with(HOPPER, Calibration(hop_intra=1.5), nodes=1)]).calibration
    assert (found.hop_net, found.bandwidth_net) == (1.0, 1.0)


def test_an_outlier_counts_little():
    """One time of ten times what it should be."""
    noise = np.zeros(len(SIZES))
    noise[4] = np.log(10)
    table = made_with(HOPPER, Calibration(), noise=noise)
    others = np.delete(errors(table, fit([table]).calibration), 4)
    assert others.mean() < 0.05


def test_a_site_refits_its_launch_alone():
    """One small size moves the launch, and nothing else, whatever else was fitted before."""
    before = Calibration(hop_intra=1.2, takes_fastest=True)
    table = made_with(HOPPER, replace(before, launch_us=30.0), sizes=np.array([1024]))
    table = table._replace(comm=replace(table.comm, calibration=before))
    found = fit([table], ["launch_us"]).calibration
    assert found.launch_us == pytest.approx(30, rel=0.05)
    assert replace(found, launch_us=before.launch_us) == before


def test_nothing_to_fit_to_is_an_error():
    """Not NCCL's constants in silence."""
    with pytest.raises(ValueError, match="no measured times"):
        fit([made_with(HOPPER, Calibration(), sizes=np.array([], dtype=np.int64))])


def test_files_name_the_constants_that_fits_change():
    """In one order."""
    assert NAMES == CONSTANTS
