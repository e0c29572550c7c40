"""Ports of simulated hosts, and the port that torchrun would give."""

import os

import simrank
from simrank.ranks.ports import FIRST_MASTER_PORT, ports_of


def test_spawns_that_run_at_the_same_time_have_different_master_ports():
    """As runs of torchrun must; one after the other they have the same."""
    seen = []

    def program(rank):
        seen.append((rank, int(os.environ["MASTER_PORT"])))
        simrank.distributed.init_process_group("gloo")
        simrank.distributed.barrier()

    with simrank.Context("hgx_h100") as ctx:
        first = ctx.multiprocessing.spawn(program, nprocs=2, join=False)
        second = ctx.multiprocessing.spawn(program, nprocs=2, join=False)
        first.join()
        second.join()
        ctx.multiprocessing.spawn(program, nprocs=1)
    first_port, other = FIRST_MASTER_PORT, FIRST_MASTER_PORT + 1
    assert sorted(seen) == [(0, first_port), (0, first_port), (0, other), (1, first_port),
                            (1, other)]  # fmt: skip


def test_every_port_given_is_free_and_none_is_given_before_it_must():
    """Numbers go round the ephemeral range; those that are held are left out."""

    def program(rank, ctx):
        me = simrank.ranks.require_rank("it")
        ports = ports_of(me)
        held, holder = ports.take(me, 0, "a test")
        seen = []
        for _ in range(65536 - 49152):
            port, own = ports.take(me, 0, "a test")
            ports.release(0, port, own)
            seen.append(port)
        assert held not in seen
        assert len(set(seen)) == len(seen) - 1
        ports.release(0, held, holder)

    with simrank.Context("hgx_h100") as ctx:
        ctx.multiprocessing.spawn(program, (ctx,), nprocs=1)
