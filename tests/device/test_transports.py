"""Transports and kinds of memory: what is not reached is an error at the call, no endless wait."""

import pytest

import simrank
import simrank.distributed as dist
import simrank.distributed.symmetric_memory as symm_mem
from simrank.device.memory import Storage
from simrank.device.transports import DEVICE, FABRIC, HOST, REACHES, check_transport, kind_of
from simrank.errors import IllegalTransportError, UnsupportedError


def spawned(program, nprocs=2):
    """Run a program on ranks."""
    with simrank.Context("hgx_h100") as ctx:
        ctx.multiprocessing.spawn(program, (ctx,), nprocs=nprocs)


@pytest.mark.parametrize("call", ["all_reduce", "broadcast", "send", "recv"])
def test_a_host_buffer_is_no_target_of_nccl(call):
    """Mooncake, 3: buffer, kind, transport and the line that allocated it, at once."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        x = ctx.ones(64, device="cpu")  # The line that is named.
        with pytest.raises(IllegalTransportError) as caught:
            getattr(dist, call)(x, *(() if call == "all_reduce" else (1 - rank,)))
        error = caught.value
        assert (error.size_bytes, error.kind, error.transport) == (256, HOST, "nccl")
        assert error.allocated_at == f"test_transports.py:{program.__code__.co_firstlineno + 2}"
        assert "nccl does not reach a buffer of 256 bytes in host memory, allocated at" in str(
            error
        )

    spawned(program)


@pytest.mark.parametrize(("device", "kind"), [("cuda", DEVICE), ("cpu", HOST)])
def test_memory_that_peers_cannot_map_is_no_symmetric_memory(device, kind):
    """Device memory that was not made for it, and host memory, before anybody waits."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        x = ctx.ones(16, device=device)
        with pytest.raises(IllegalTransportError, match=f"64 bytes in {kind} memory") as caught:
            symm_mem.rendezvous(x)
        assert caught.value.transport == "peer access"
        assert caught.value.allocated_at.startswith("test_transports.py:")
        with pytest.raises(UnsupportedError, match="symmetric memory on the host"):
            symm_mem.empty(4, device="cpu")

    spawned(program)


def test_every_transport_takes_what_it_reaches_and_nothing_else():
    """Host, device and fabric memory against the table."""

    def program(rank, ctx):
        device = ctx.devices[0]
        storages = {HOST: Storage(None, 8), DEVICE: Storage(device, 8), FABRIC: Storage(device, 8)}
        for transport, reached in REACHES.items():
            for kind, storage in storages.items():
                assert kind_of(storage, is_symmetric=kind == FABRIC) == kind
                if kind in reached:
                    check_transport("it", transport, storage, is_symmetric=kind == FABRIC)
                else:
                    with pytest.raises(IllegalTransportError, match=f"in {kind} memory"):
                        check_transport("it", transport, storage)

    spawned(program, 1)
