"""What is behind what as things happen: clocks of streams, hosts and flags."""

import time

import pytest

import simrank
import simrank.distributed as dist
import simrank.distributed.symmetric_memory as symm_mem
import simrank.multiprocessing as mp
from simrank.device.clocks import Agent
from simrank.device.races import RunOrder


def test_a_flag_carries_what_was_handed_to_it():
    """Of all that gave; who takes it comes behind them."""
    order = RunOrder()
    with simrank.Context() as ctx:
        pad, clock = ctx.zeros(4, dtype=ctx.int32).storage, {7: 1}
        order.give(pad, 4, {1: 2, 2: 1})
        order.give(pad, 4, {1: 1, 3: 5})
        order.take(pad, 4, clock)
        order.take(pad, 8, clock)
    assert clock == {7: 1, 1: 2, 2: 1, 3: 5}


def test_streams_are_named_apart_from_programs_of_kernels():
    """The names of those are above zero."""
    assert Agent(3).key == -3


def test_a_host_that_goes_on_before_its_stream_is_not_taken_for_late(run):
    """It read something that was there; on hardware it waited for its stream as well."""

    def body(rank, ctx):
        dist.init_process_group("nccl")
        buffer, ready, side = symm_mem.empty(8), ctx.zeros(1), ctx.Stream()
        handle = symm_mem.rendezvous(buffer)
        if rank == 0:
            buffer.fill_(1.0)
        handle.barrier()
        assert ready.item() == 0
        with ctx.stream(side):
            if rank == 1:
                handle.get_buffer(0, (8,), simrank.float32).clone()
        ctx.synchronize()

    assert run(body, 2, races="report").races == []


@pytest.mark.parametrize("shared", ["value", "array", "dict", "list"])
@pytest.mark.parametrize("is_told", [True, False])
def test_ranks_that_poll_what_they_share_are_ordered_by_it(run, shared, is_told):
    """Who reads what another wrote comes behind that; without it the peer's read races."""
    manager = mp.Manager()
    made = {
        "value": mp.Value("i", 0), "array": mp.Array("i", [0]), "dict": manager.dict({0: 0}),
        "list": manager.list([0]),
    }[shared]  # fmt: skip

    def read():
        return made.value if shared == "value" else made[0]

    def write(number):
        if shared == "value":
            made.value = number
        else:
            made[0] = number

    def body(rank, ctx):
        dist.init_process_group("nccl")
        buffer = symm_mem.empty(8)
        handle = symm_mem.rendezvous(buffer)
        if rank == 0:
            buffer.fill_(1.0)
            ctx.synchronize()
            if is_told:
                write(1)
        else:
            while is_told and read() == 0:
                pass
            time.sleep(1e-3)
            handle.get_buffer(0, (8,), simrank.float32).clone()
            ctx.synchronize()

    assert bool(run(body, 2, races="report").races) != is_told
