"""Theory bounds, against figures worked out by hand."""

import pytest

from simrank.collectives.bounds import (
    bandwidth_bound_ps,
    best_chunk_bytes,
    busbw_factor,
    chain_ps,
    latency_bound_ps,
    ring_ps,
    two_level_all_reduce_bound_ps,
)

RATE = {"bandwidth_bytes_per_s": 100e9}


def test_busbw_factors_are_those_of_nccl_tests():
    """2 (n - 1) / n, (n - 1) / n (so 0 for one rank), and 1 for rooted collectives."""
    factors = [busbw_factor(name, 8) for name in ("all_reduce", "all_gather", "broadcast")]
    assert factors == [1.75, 0.875, 1.0]
    assert busbw_factor("all_reduce", 1) == 0.0


@pytest.mark.parametrize(("ranks", "ports", "rounds"), [(1, 1, 0), (8, 1, 3), (9, 1, 4), (9, 8, 1)])
def test_latency_bound_doubles_per_round(ranks, ports, rounds):
    """With more ports, what is known multiplies by ports + 1."""
    assert latency_bound_ps("reduce", ranks, alpha_ps=5, num_ports=ports) == 5 * rounds


def test_bandwidth_bounds():
    """A million bytes at 100 GB/s are 10 us, times the share that must move."""
    for collective, factor in (("all_reduce", 1.5), ("all_to_all", 0.75), ("reduce", 1.0)):
        bound = bandwidth_bound_ps(collective, 4, size_bytes=1e6, **RATE)
        assert bound == pytest.approx(factor * 1e7)
    assert bandwidth_bound_ps("broadcast", 1, size_bytes=1e6, **RATE) == 0


def test_textbook_times():
    """Ring and chain of four ranks."""
    ring = ring_ps("all_reduce", 4, size_bytes=4e5, alpha_ps=1e6, **RATE)
    assert ring == pytest.approx(6 * 2e6)
    chain = chain_ps(4, 5, size_bytes=5e5, alpha_ps=1e6, **RATE)
    assert chain == pytest.approx(7 * 2e6)
    assert chain_ps(1, 5, size_bytes=5e5, alpha_ps=1e6, **RATE) == 0


def test_best_chunk_is_a_minimum_of_the_chain():
    """No other number of chunks near it is faster."""
    size, hops = 1e8, 7
    chunk = best_chunk_bytes(hops, size_bytes=size, alpha_ps=1e6, **RATE)
    best = round(size / chunk)
    times = [
        chain_ps(hops + 1, best + off, size_bytes=size, alpha_ps=1e6, **RATE) for off in (-9, 0, 9)
    ]
    assert times[1] == min(times)


def test_two_levels_are_bound_by_the_slower_one():
    """Eight GPUs per node share the data of the NICs."""
    bound = two_level_all_reduce_bound_ps(
        8, 4, size_bytes=8e6, node_bytes_per_s=400e9, nic_bytes_per_s=50e9
    )
    assert bound == pytest.approx(max(1.75 * 8e6 / 400e9, 1.5 * 1e6 / 50e9) * 1e12)
