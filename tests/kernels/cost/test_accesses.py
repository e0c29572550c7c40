"""What one access costs a program."""

import pytest

import simrank
from simrank.device.memory import Storage
from simrank.kernels.cost import accesses


@pytest.fixture
def devices(ctx):
    return ctx.devices


def test_a_cost_is_rounded_up(devices):
    """A program's part of the bandwidth is 44 GB/s: a byte takes 22.8 ps, and costs 23 (E1)."""
    own = Storage(devices[0], 64)
    costs = accesses.AccessCosts(devices[0], 1)
    assert costs.moved_ps(own, 0, 0) == 0
    assert costs.moved_ps(own, 1, 1) == 23


def test_programs_that_run_together_share_the_bandwidth(devices):
    """Few leave some of it unused; as many as saturate it, and more, get it and no more."""
    size = 1 << 20
    network = devices[0].network
    for peer, rate in (
        (0, devices[0].spec.memory_bandwidth_bytes_per_s),
        (1, network.route_bandwidth_bytes_per_s(0, 1)),
    ):
        storage = Storage(devices[peer], 64)

        def together_bytes_per_s(num_resident, storage=storage):
            costs = accesses.AccessCosts(devices[0], num_resident)
            return num_resident * size / costs.moved_ps(storage, size, size) * 1e12

        assert together_bytes_per_s(2) == pytest.approx(2 * together_bytes_per_s(1), rel=1e-6)
        for num_resident in (66, 132, 1056, 20_000):
            assert together_bytes_per_s(num_resident) == pytest.approx(rate, rel=1e-4)
            assert together_bytes_per_s(num_resident) <= rate


def test_what_is_in_l2_comes_faster_and_what_is_on_a_peer_does_not(devices):
    """More than twice as fast; a link carries all of it."""
    own, peer = (Storage(device, 64) for device in (devices[0], devices[1]))
    costs = accesses.AccessCosts(devices[0], 132)
    size = 10_000
    new_ps, old_ps = costs.moved_ps(own, size, size), costs.moved_ps(own, size, 0)
    assert new_ps == pytest.approx(2.1 * old_ps, rel=1e-4)
    assert costs.moved_ps(own, size, size // 2) == pytest.approx(new_ps / 2, rel=1e-4)
    assert costs.moved_ps(peer, size, 0) == costs.moved_ps(peer, size, size)


def test_a_load_from_a_peer_travels_there_and_back_and_a_store_one_way(devices):
    """A store is issued and on its way; what waits for it waits for the latency."""
    peer = Storage(devices[1], 64)
    costs = accesses.AccessCosts(devices[0], 1)
    latency_ps = costs.latency_ps(peer)
    assert latency_ps > 0
    assert costs.first_ps(peer, writes=False) == accesses.LOAD_PS + 2 * latency_ps
    assert costs.first_ps(peer, writes=True) == accesses.STORE_PS


def test_an_atomic_on_several_devices_takes_as_long_as_the_farthest(devices):
    """There and back are half each."""
    own, peer = (Storage(device, 64) for device in (devices[0], devices[1]))
    costs = accesses.AccessCosts(devices[0], 1)
    half_ps = accesses.ATOMIC_PS // 2
    assert costs.atomic_ps([own]) == half_ps
    assert costs.atomic_ps([own, peer]) == half_ps + costs.latency_ps(peer)


def test_memory_of_the_host_is_reached_over_its_link():
    """It takes longer than the device's own memory, in latency and in bandwidth."""
    with simrank.Context("hgx_h100") as ctx:
        costs, own = accesses.AccessCosts(ctx.devices[0], 1), ctx.zeros(1024).storage
        host = Storage(None, 4096)
        assert costs.latency_ps(own) == 0 < costs.latency_ps(host)
        assert costs.moved_ps(own, 4096, 4096) < costs.moved_ps(host, 4096, 4096)
