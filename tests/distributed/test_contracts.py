"""Contracts of collectives: a rank with itself, order of parts, in-place slots, barriers."""

from datetime import timedelta

import pytest

import simrank
import simrank.distributed as dist
from simrank.distributed.contracts import CONTRACTS
from simrank.distributed.request import Signature
from simrank.errors import CollectiveMismatchError, SpawnException


def error_of(run, program, nprocs=2):
    """Return the error of the lowest failed rank of a wrong program."""
    with pytest.raises(SpawnException) as failure:
        run(program, nprocs)
    return failure.value.errors[min(failure.value.errors)]


def test_the_columns_of_contracts_are_fields_of_signatures():
    """So that a mismatch can show them."""
    columns = {column for contract in CONTRACTS.values() for column in contract.columns}
    assert columns <= set(Signature._fields)


@pytest.mark.parametrize("nprocs", [1, 2])
def test_a_rank_sends_itself_what_it_expects_of_itself(run, nprocs):
    """Its own split sizes are compared, in a group of one as well."""

    def program(rank, ctx):
        dist.init_process_group("gloo")
        world = dist.get_world_size()
        sends = [1] * world
        sends[rank] = 0
        x, y = simrank.ones(world - 1, device="cpu"), simrank.ones(world, device="cpu")
        dist.all_to_all_single(y, x, [1] * world, sends)

    error = error_of(run, program, nprocs)
    assert isinstance(error, CollectiveMismatchError)
    assert "sends 0 elements to rank 0" in str(error)
    assert "expects 1 elements from rank 0" in str(error)


def test_tensors_of_a_coalesced_call_are_matched_in_their_order(run):
    """Equal totals do not match; the report shows both orders."""

    def program(rank, ctx):
        dist.init_process_group()
        sizes = (4, 8) if rank else (8, 4)
        dist.all_reduce_coalesced([simrank.ones(n, device=f"cuda:{rank}") for n in sizes])

    error = error_of(run, program)
    assert error.differing == ("sizes",)
    assert "sizes=(8, 4)" in str(error)
    assert "sizes=(4, 8)" in str(error)


def test_tensors_of_a_manager_are_matched_in_their_order(run):
    """As those of a coalesced call."""

    def program(rank, ctx):
        dist.init_process_group()
        with dist._coalescing_manager():
            for n in (4, 8) if rank else (8, 4):
                dist.all_reduce(simrank.ones(n, device=f"cuda:{rank}"))

    assert error_of(run, program).differing == ("sizes",)


@pytest.mark.parametrize("slot", [0, 1])
def test_an_in_place_all_gather_takes_the_ranks_own_slot(run, slot):
    """Another one is refused: NCCL would overwrite it before it is read."""

    def program(rank, ctx):
        dist.init_process_group()
        whole = simrank.ones(8, device=f"cuda:{rank}")
        place = (rank + slot) % 2
        dist.all_gather_into_tensor(whole, whole[place * 4 : place * 4 + 4])

    if slot == 0:
        run(program, 2)
    else:
        error = error_of(run, program)
        assert "the input lies in the output of 8 elements at element 4" in str(error)
        assert "pass output[0:4] as the input" in str(error)


def test_an_in_place_reduce_scatter_takes_the_ranks_own_slot(run):
    """As an all_gather, with the output in the input."""

    def program(rank, ctx):
        dist.init_process_group()
        whole = simrank.ones(8, device=f"cuda:{rank}")
        place = 1 - rank
        dist.reduce_scatter_tensor(whole[place * 4 : place * 4 + 4], whole)

    assert "the output lies in the input" in str(error_of(run, program))


def test_an_exchange_within_one_tensor_is_refused(run):
    """NCCL has no in-place all_to_all."""

    def program(rank, ctx):
        dist.init_process_group()
        x = simrank.ones(4, device=f"cuda:{rank}")
        dist.all_to_all_single(x[:], x)

    assert "input and output share memory" in str(error_of(run, program))


def test_a_monitored_barrier_is_met_in_the_order_of_the_groups_calls(run):
    """As on gloo it fails at its limit, and rank 0 learns of the other call."""

    def program(rank, ctx):
        dist.init_process_group("gloo")
        x, limit = simrank.ones(4, device="cpu"), timedelta(seconds=8)
        work = dist.all_reduce(x, async_op=True) if rank == 0 else None
        dist.monitored_barrier(timeout=limit)
        if work is None:
            dist.all_reduce(x)

    with pytest.raises(SpawnException) as failure:
        run(program, 2)
    texts = [str(error) for error in failure.value.errors.values()]
    assert any("monitoredBarrier" in text for text in texts)
