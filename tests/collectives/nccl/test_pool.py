"""Constants pooled over many machines: slopes, a fit that finds what was planted, variances."""

import dataclasses

import numpy as np
import pytest

from simrank.calibration.pool_fit import DATA_SIGMAS, Observed, fit_pool, fit_site
from simrank.collectives.nccl import Communicator, GroupShape, laws, pool
from simrank.collectives.nccl.laws import CONSTANTS, UNCALIBRATED
from simrank.collectives.nccl.machine import spec_of
from simrank.collectives.nccl.prediction import predict_times, work_of_choice
from simrank.hardware import load_cluster

SIZES = 1 << np.arange(9, 33, 2)
CASES = [
    ("hgx_h100", 8, "all_reduce"),
    ("hgx_h100", 2, "all_to_all"),
    ("hgx_a100", 4, "reduce_scatter"),
    ("mi300x", 8, "all_gather"),
    ("h100_ib", 16, "all_reduce"),
    ("h100_tcpx", 16, "all_gather"),
    ("l40s_pcie", 4, "sendrecv"),
    ("b200_ib", 16, "all_to_all"),
]


def comm_on(cluster, num_ranks):
    built = load_cluster(cluster)
    shape = GroupShape.packed(num_ranks, built.devices_per_node)
    return Communicator(shape, spec_of(built, shape))


def work_of(collective, sizes, comm):
    return work_of_choice(collective, sizes, comm, predict_times(collective, sizes, comm))


@pytest.mark.parametrize(("cluster", "num_ranks", "collective"), CASES)
def test_slopes_are_those_of_the_times(cluster, num_ranks, collective):
    """By differences, along each constant, also where a constant has no effect."""
    work = work_of(collective, SIZES, comm_on(cluster, num_ranks))
    start = laws.Calibration(3.1, 0.7, 1.3, 0.95, 1.05, 0.8, 1.2, 0.9, 0.85)
    found, nudge = work.slopes(start), 1e-6
    for number, name in enumerate(CONSTANTS):
        more, less = (
            dataclasses.replace(start, **{name: getattr(start, name) * np.exp(sign * nudge)})
            for sign in (1, -1)
        )
        slope = np.log(work.terms(more).total / work.terms(less).total) / (2 * nudge)
        assert found[number] == pytest.approx(slope, abs=1e-6), name


def planted(site, cluster, num_ranks, collective, launch_us):
    """Return times that a machine of known constants would have, without noise."""
    comm = comm_on(cluster, num_ranks)
    calibration = dataclasses.replace(UNCALIBRATED, launch_us=launch_us, hop_intra=1.3)
    times_us = work_of(collective, SIZES, comm).terms(calibration).total
    labels = pool.labels_of(collective, comm)._replace(site=site, series=f"{site} {collective}")
    classes = np.searchsorted((32 << 10, 1 << 20, 64 << 20), SIZES)
    return Observed(collective, SIZES, times_us, classes, comm, labels)


def test_a_fit_finds_what_all_sites_have_in_common():
    """And says of another site that it differs by as much as sites may."""
    observed = [
        planted(f"site {number}", "hgx_h100", 8, collective, 8.0)
        for number in range(6)
        for collective in ("all_reduce", "all_gather")
    ]
    found = fit_pool(observed, "planted")
    comm = comm_on("hgx_h100", 8)
    constants = found.constants(pool.labels_of("all_reduce", comm))
    times_us = work_of("all_reduce", SIZES, comm).terms(constants.calibration).total
    assert times_us == pytest.approx(observed[0].time_us, rel=0.02)
    assert constants.unknown == ()
    parts = constants.variances(work_of("all_reduce", SIZES, comm), observed[0].classes)
    assert set(parts) == {"fit", "site", "series", "noise"}
    assert (parts["fit"] < parts["site"]).all()
    assert found.num_sites["platform hopper"] == 6


def test_what_no_table_tells_is_named_and_widens_the_interval():
    """A platform that was not fitted; a network of unknown kind by a multiple at small sizes."""
    found = fit_pool([planted("here", "hgx_h100", 8, "all_reduce", 8.0)], "planted")
    found = dataclasses.replace(found, noises=np.full((pool.NUM_KINDS, len(DATA_SIGMAS)), 0.05))
    widths = {}
    for cluster, num_ranks in (("hgx_h100", 8), ("hgx_a100", 8), ("h100_ib", 16)):
        comm = comm_on(cluster, num_ranks)
        constants = found.constants(pool.labels_of("all_reduce", comm))
        widths[cluster] = constants.half_widths(work_of("all_reduce", [1024], comm), [0])[0]
        if cluster == "hgx_a100":
            assert constants.unknown == (
                "platform ampere",
                "group ampere 8",
                "platform ampere on one node",
            )
        if cluster == "h100_ib":
            assert constants.unknown == (
                "network ib",
                "span collectives over several nodes",
                "all_reduce on several nodes",
                "platform hopper on several nodes",
            )
    assert widths["hgx_h100"] < min(widths["h100_ib"], widths["hgx_a100"])


def test_evidence_is_counted_by_operation_span_and_network():
    """Tables of one node say nothing of several; one site widens; racks are a span of their own."""
    shipped = pool.read_pool()

    def found(operation, cluster, num_ranks):
        return shipped.constants(pool.labels_of(operation, comm_on(cluster, num_ranks)))

    exchange, message = (found(each, "b200_ib", 16) for each in ("all_to_all", "sendrecv"))
    assert "all_to_all on several nodes: 5 sites" in exchange.source
    assert "all_to_all on several nodes over ib: 1 site)" in exchange.source
    assert "sendrecv on several nodes: 1 site" in message.source
    row = shipped.noises[pool.MESSAGES_BETWEEN_NODES]
    assert exchange.noises == pytest.approx(row)
    assert message.noises == pytest.approx(1.5 * row)
    racks = found("all_reduce", "gb200_roce", 128)
    assert "all_reduce on racks: 2 sites" in racks.source
    gather = found("all_gather", "gb200_roce", 128)
    assert "no table of all_gather on racks" in gather.source
    assert gather.noises == pytest.approx(shipped.noises[pool.SEVERAL_NODES_UNSEEN])


def test_a_cluster_that_names_no_network_has_an_unknown_one():
    """Its label is no kind that a table could have."""
    comm = comm_on("h100_ib", 16)
    comm = dataclasses.replace(comm, spec=dataclasses.replace(comm.spec, network=""))
    assert pool.labels_of("all_reduce", comm).effects[-2] == "network unknown"


def test_a_site_is_found_from_its_times_and_known_better_by_more_of_them():
    """The planted launch; one time leaves more open than all."""
    known = fit_pool([planted("here", "hgx_h100", 8, "all_reduce", 8.0)], "planted")
    known = dataclasses.replace(known, noises=np.full((pool.NUM_KINDS, len(DATA_SIGMAS)), 0.05))
    there = planted("there", "hgx_h100", 8, "all_reduce", 16.0)
    one = there.part(np.arange(len(SIZES)) == 0)
    found, few = fit_site(known, [there]), fit_site(known, [one])
    comm = comm_on("hgx_h100", 8)
    times_us = work_of("all_reduce", SIZES, comm).terms(found.calibration).total
    assert times_us == pytest.approx(there.time_us, rel=0.03)
    assert (np.diag(found.covariance) <= np.diag(few.covariance) + 1e-12).all()
    assert found.covariance[0, 0] < 0.7 * few.covariance[0, 0]
    assert found.noises[0] < few.noises[1]


def test_nothing_to_fit_to_is_refused():
    """As for a single machine."""
    with pytest.raises(ValueError, match="no measured times"):
        fit_pool([], "nothing")
