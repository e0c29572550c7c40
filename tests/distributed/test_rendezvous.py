"""The port of a rendezvous: held by rank 0, and nobody else has it meanwhile."""

import os

import pytest

import simrank
from simrank.errors import DistNetworkError


def test_two_programs_that_set_the_same_master_port_are_told():
    """simrank.distributed takes it, as torch does."""
    outcomes = []

    def program(rank):
        os.environ["MASTER_PORT"] = "29777"
        try:
            simrank.distributed.init_process_group("gloo")
        except DistNetworkError as error:
            outcomes.append(f"{error} {error.__notes__[0]}")
        else:
            ctx.engine.sleep(10**6)
            outcomes.append("ran")

    with simrank.Context("hgx_h100") as ctx:
        first = ctx.multiprocessing.spawn(program, nprocs=1, join=False)
        second = ctx.multiprocessing.spawn(program, nprocs=1, join=False)
        first.join()
        second.join()
    assert "port: 29777, useIpv6: false, code: -98, name: EADDRINUSE" in outcomes[0]
    assert "held by the rendezvous of rank 0 at test_rendezvous.py:" in outcomes[0]
    assert outcomes[1:] == ["ran"]


@pytest.mark.parametrize("method", ["tcp://localhost:29800", "env://"])
def test_a_group_that_is_destroyed_gives_its_port_back(method):
    """The next one of the same rank, or of another program, has it."""

    def program(rank):
        os.environ["MASTER_PORT"] = "29800"
        for _ in range(2):
            simrank.distributed.init_process_group("gloo", method)
            simrank.distributed.destroy_process_group()

    with simrank.Context("hgx_h100") as ctx:
        spawned = [ctx.multiprocessing.spawn(program, nprocs=1, join=False) for _ in range(2)]
        for processes in spawned:
            processes.join()
