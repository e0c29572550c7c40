"""Constants that were fitted to some measured times, tried on others."""

from dataclasses import replace

import numpy as np
import pytest

from simrank.calibration.accuracy import builtin_tables, mean_errors, table_series
from simrank.calibration.cross_validation import FITS, FittedSeries, cross_validation_errors
from simrank.calibration.targets import groups
from simrank.collectives.nccl import Calibration, predict_times

NEBIUS, DELL = "h100x16_nebius_ib_allreduce", "h200x16_dell_roce_allreduce"


def series(*names):
    return [each for name in names for each in table_series(name)]


def pairs(fit, *names):
    """Return which constants are tried on which table."""
    found = FITS[fit].errors(FittedSeries(series(*names), series(*names)))
    return sorted((each.fitted_to, each.table) for each in found)


def made(name, calibration, noise=0.0):
    """Return a table whose times are a calibration's."""
    (each,) = table_series(name)
    of = each.measured
    comm = replace(of.comm, calibration=calibration)
    times = predict_times(of.collective, of.size_bytes, comm).times_us
    return replace(each, measured=of._replace(time_us=times * (1 + noise)))


def test_the_law_itself_is_found_again_in_sizes_that_were_held_out():
    """Times that follow the law leave no error, whatever the constants."""
    found = cross_validation_errors(made(NEBIUS, Calibration(launch_us=6.0, hop_net=1.5, ramp=1.3)))
    assert np.abs(found.error).mean() < 0.02
    assert (np.diff(found.size_bytes) > 0).all()
    assert found.parts_us.sum(axis=0) == pytest.approx(found.predicted_us)


def test_a_site_that_launches_slower_needs_one_measured_size():
    """That is what moves between sites; the size itself is not among those that are judged."""
    tables = [made(NEBIUS, Calibration()), made(DELL, Calibration(launch_us=30.0))]
    bench = FittedSeries(tables, tables)
    for fit, most in (("site", 1.0), ("site-one", 0.03)):
        errors = {each.table: each for each in FITS[fit].errors(bench)}
        assert np.abs(errors[DELL].error).mean() < most
    assert np.abs(FITS["site"].errors(bench)[0].error).mean() > 0.2
    assert len(errors[DELL].size_bytes) == len(tables[1].measured.size_bytes) - 1


@pytest.mark.parametrize(
    ("fit", "tables", "expected"),
    [
        ("site", (NEBIUS, DELL), [(NEBIUS, DELL), (DELL, NEBIUS)]),
        ("site", (NEBIUS, "h100x16_aws_p5_efa_allreduce"), []),  # Another network.
        ("site", (NEBIUS, "h200x16_dgx_1nic_allreduce"), []),  # Fewer cards.
        (
            "nodes",
            (NEBIUS, "h100x8_aws_p5_allreduce", "h100x96_coreweave_sharp_allreduce"),
            [(NEBIUS, "h100x8_aws_p5_allreduce")],  # The other network reduces by itself.
        ),
        (
            "collective",
            ("b200x8_vultr_allreduce", "b200x8_vultr_allgather", "b200x16_vultr_allgather"),
            [("b200x8_vultr_allreduce", "b200x8_vultr_allgather")],
        ),
        ("table", ("gb200x72_coreweave_allreduce",), []),  # Five sizes.
    ],
)
def test_constants_are_tried_where_they_should_hold(fit, tables, expected):
    """The same platform; who measured one node knows no network."""
    assert pairs(fit, *tables) == sorted(expected)


def test_who_brings_a_table_gets_the_constants_of_others():
    """And not theirs tried on others."""
    found = FITS["site"].errors(FittedSeries(series(DELL), series(NEBIUS, DELL)))
    assert [(each.fitted_to, each.table) for each in found] == [(NEBIUS, DELL)]


@pytest.mark.slow
def test_what_fits_reach_stays_reached():
    """Mean errors in percent of all built-in tables; a change of a law that costs some fails."""
    every = series(*builtin_tables())
    bench = FittedSeries(every, every)
    reached = {
        "table": (7, 11, 6, 4),
        "halves": (8, 15, 8, 4),
        "site": (29, 27, 24, 12),
        "site-one": (9, 25, 30, 15),
        "nodes": (34, 42, 30, 11),
        "collective": (9, 15, 21, 13),
    }
    for fit, means in reached.items():
        first = groups(fit, FITS[fit].errors(bench))[0]
        found = [100 * mean[0] for mean in mean_errors(first.series)]
        assert found == pytest.approx(means, abs=1.5), fit
