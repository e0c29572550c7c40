"""Symmetric memory: torch's names, addresses that lead to the peers' buffers, signals in time."""

import time

import pytest

import simrank
import simrank.distributed as dist
import simrank.distributed.symmetric_memory as symm_mem


def test_a_peers_buffer_is_read_and_written_as_a_tensor(run, met):
    """After a barrier each rank finds what its neighbour has copied into its buffer."""

    def body(rank, ctx):
        buffer, handle = met(ctx, (4, 4))
        right = (rank + 1) % 4
        handle.get_buffer(right, (4,), simrank.float32, 4).copy_(ctx.full((4,), float(rank)))
        handle.barrier()
        assert buffer[1].tolist() == [float((rank - 1) % 4)] * 4
        view = handle.get_remote_tensor(right, (2, 2), simrank.float32)
        assert view.data_ptr() == handle.buffer_ptrs[right]

    run(body, 4)


def test_a_peers_buffer_counts_as_a_tensor_of_ones_own_device(run, met):
    """Its streams work on it, as in torch: a peer whose stream is held does not hold the copy."""

    def body(rank, ctx):
        buffer, handle = met(ctx)
        theirs = handle.get_buffer(1 - rank, (16,), simrank.float32)
        assert theirs.device == buffer.device
        assert theirs[2:4].device == buffer.device
        buffer.fill_(float(rank + 1))
        handle.barrier()
        if rank == 0:
            handle.wait_signal(1)  # Held until rank 1 has read and written what is here.
        else:
            assert (theirs + 1).tolist() == [2.0] * 16
            assert (2 * theirs.clone()).sum().item() == 32
            theirs.copy_(ctx.full((16,), 7.0))
            handle.put_signal(0)
        ctx.synchronize()
        assert buffer.tolist() == [7.0 if rank == 0 else 2.0] * 16

    run(body, 2)


def test_what_is_read_of_a_peer_crosses_the_link(run):
    """A sum over a peer's buffer takes as long as its bytes take over the route."""
    times = {}

    def body(rank, ctx):
        dist.init_process_group("nccl")
        tensor = symm_mem.empty(1 << 24)
        handle = symm_mem.rendezvous(tensor)
        for owner in (rank, 1 - rank):
            part = handle.get_buffer(owner, (1 << 24,), simrank.float32)
            start, end = (ctx.cuda.Event(enable_timing=True) for _ in range(2))
            handle.barrier()
            start.record()
            part.sum()
            end.record()
            end.synchronize()
            times[owner == rank] = start.elapsed_time(end)

    run(body, 2)
    assert 5 < times[False] / times[True] < 10  # HBM3 beside a direction of NVLink 4.


def test_a_multicast_address_needs_a_switch_that_has_it_and_one_node(run, met):
    """0 elsewhere, as in torch."""
    found = {}

    def body(rank, ctx):
        _, handle = met(ctx)
        found[ctx.cluster.name, rank] = handle.multicast_ptr

    run(body, 2, cluster="hgx_a100")
    run(body, 16, cluster="h100_ib")
    run(body, 2, cluster="hgx_b200")
    assert {name: bool(found[name, 0]) for name, _ in found} == {
        "hgx_a100": False, "h100_ib": False, "hgx_b200": True,
    }  # fmt: skip
    assert found["hgx_b200", 0] == found["hgx_b200", 1]


def test_a_view_that_does_not_fit_is_refused_with_both_sizes(run, met):
    """As in torch, but with the numbers."""

    def body(rank, ctx):
        _, handle = met(ctx)
        with pytest.raises(RuntimeError, match=r"68 bytes from the start.*64 bytes"):
            handle.get_buffer(0, (17,), simrank.float32)

    run(body, 2)


def test_signal_pads_are_zero_and_as_large_as_asked_for(run, met):
    """The size holds for what is allocated afterwards, on this rank."""

    def body(rank, ctx):
        assert symm_mem.get_signal_pad_size() == 9216
        symm_mem.set_signal_pad_size(64)
        _, handle = met(ctx)
        assert handle.get_signal_pad(1 - rank).tolist() == [0] * 16
        assert handle.get_signal_pad(rank, (2,), simrank.int64, 1).shape == (2,)

    run(body, 2)


def test_a_tensor_that_is_not_symmetric_is_refused(run):
    """It has no signal pad."""

    def body(rank, ctx):
        dist.init_process_group("nccl")
        with pytest.raises(ValueError, match="not allocated from symmetric memory"):
            symm_mem.rendezvous(ctx.zeros(4), None)

    run(body, 1)


def test_a_workspace_is_made_once_and_grows(run):
    """As torch's."""

    def body(rank, ctx):
        dist.init_process_group("nccl")
        first = symm_mem.get_symm_mem_workspace("default_pg", 64)
        assert symm_mem.get_symm_mem_workspace("default_pg", 32).buffer_ptrs == first.buffer_ptrs
        assert symm_mem.get_symm_mem_workspace("default_pg", 128).buffer_size == 128
        assert not symm_mem.is_nvshmem_available()

    run(body, 2)


def test_a_buffer_is_freed_with_its_tensor_and_handles(run, met):
    """What the members know of each other keeps only the signal pads."""

    def body(rank, ctx):
        memory = ctx.devices[rank].memory
        buffer, handle = met(ctx, 1 << 20)
        ctx.synchronize()
        used = memory.used_bytes
        dist.barrier()
        del buffer, handle
        dist.barrier()
        assert memory.used_bytes <= used - (4 << 20)

    run(body, 2)


def test_words_written_by_a_stream_are_in_order_and_reach_a_peer(run, met):
    """As torch's pipelined operations signal; each rank has a stream of its own for them."""
    seen = []

    def body(rank, ctx):
        _, handle = met(ctx, (4,))
        stream = symm_mem._get_backend_stream()
        assert stream is symm_mem._get_backend_stream()
        assert stream is not symm_mem._get_backend_stream(priority=-1)
        seen.append(stream)
        pad = handle.get_signal_pad(1 - rank)
        assert pad.dtype is simrank.uint32
        with stream:
            symm_mem._SymmetricMemory.memset32(pad, 4, 2**32 - 1, 2)
            symm_mem._SymmetricMemory.stream_write_value32(pad, 5, rank)
        ctx.synchronize()
        handle.barrier(channel=8)
        assert handle.get_signal_pad(rank)[3:7].tolist() == [0, 2**32 - 1, 1 - rank, 0]

    run(body, 2)
    assert seen[0] is not seen[1]


def test_words_that_are_none_are_refused(run, met):
    """Another type, another shape, or places outside of the tensor."""

    def body(_rank, ctx):
        _, handle = met(ctx, (4,))
        write, pad = handle.stream_write_value32, handle.get_signal_pad(0)
        for words, offset, value, text in (
            (pad.view(simrank.int32), 0, 1, "of uint32"),
            (pad.view(2, -1), 0, 1, "flat"),
            (pad, len(pad), 1, "within the tensor"),
            (pad, 0, -1, "32 bits"),
        ):
            with pytest.raises(RuntimeError, match=text):
                write(words, offset, value)

    run(body, 2)


def nothing(rank, handle):
    """Order nothing."""


def signal(rank, handle):
    """Let rank 0's stream wait for rank 1's."""
    if rank == 1:
        handle.put_signal(0)
    else:
        handle.wait_signal(1)


def barrier(rank, handle):
    """Let the streams meet."""
    handle.barrier()


def hosts(rank, handle):
    """Let the hosts meet behind the writer's stream."""
    if rank == 1:
        simrank.cuda.synchronize()
    dist.barrier()


READS = {
    "numpy": lambda theirs: theirs.numpy().tolist(),
    "item": lambda theirs: [theirs[1].item()] * 4,
    "copy": lambda theirs: theirs.cpu().tolist(),
}


def read_of_a_peer(run, order, read):
    """Let rank 1 write its buffer late and rank 0's host read it; return races and values."""
    seen = []

    def body(rank, ctx):
        dist.init_process_group("nccl")
        x = symm_mem.empty(4)
        handle = symm_mem.rendezvous(x)
        theirs = handle.get_buffer(1 - rank, (4,), simrank.float32)
        if rank == 1:
            time.sleep(1e-3)
            x.fill_(5.0)
        order(rank, handle)
        if rank == 0:
            seen.append(READS[read](theirs))

    return run(body, 2, races="report").races, seen


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("order", [signal, barrier, hosts])
def test_a_host_read_of_a_peers_buffer_comes_behind_its_stream(run, order, read):
    """As a copy of the current stream, which a barrier or a signal holds."""
    races, seen = read_of_a_peer(run, order, read)
    assert ([str(race) for race in races], seen) == ([], [[5.0] * 4])


@pytest.mark.parametrize("read", READS)
def test_a_host_read_of_a_peers_buffer_that_nothing_orders_is_a_race(run, read):
    """It names the read and the write."""
    ((race,), _) = read_of_a_peer(run, nothing, read)
    assert {(race.first.verb, race.second.verb)} <= {("reads", "writes"), ("writes", "reads")}
    assert "fill_ of rank 1 writes" in str(race)
