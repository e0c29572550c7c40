"""`torch.distributed._symmetric_memory` on simulated devices."""

import gc
import shutil
import subprocess
import sys

import pytest
import torch

triton = pytest.importorskip("triton", reason="triton is not installed")
if shutil.which("g++") is None:
    pytest.skip("no compiler for simulated devices", allow_module_level=True)

import torch.distributed as dist  # noqa: E402
import torch.distributed._symmetric_memory as symm  # noqa: E402
import triton.language as tl  # noqa: E402

from simrank.errors import DeadlockError, SpawnException, WaitTimeoutError  # noqa: E402
from simrank.torch import cuda  # noqa: E402
from simrank.torch.devices import activation  # noqa: E402


def start(rank):
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    return dist.group.WORLD.group_name


def test_peers_read_each_other_behind_a_barrier(spawn):
    """Whoever comes first, round after round; the buffers are on the peers' devices."""
    results = {}

    def program(rank):
        group = start(rank)
        buffer = symm.empty(64, device="cuda")
        handle = symm.rendezvous(buffer, group)
        assert (handle.rank, handle.world_size) == (rank, 3)
        seen = []
        for turn in range(3):
            if rank == 1:
                torch.cuda._sleep(10_000_000)
            buffer.fill_(10 * turn + rank)
            handle.barrier(channel=turn % 2)
            peer = handle.get_buffer((rank + 1) % 3, (64,), torch.float32)
            seen.append(float(peer.sum()) / 64)
            handle.barrier(channel=turn % 2)
        results[rank] = seen

    spawn(program, 3)
    assert results == {r: [10.0 * t + (r + 1) % 3 for t in range(3)] for r in range(3)}


def test_memory_may_live_longer_than_its_simulation(spawn):
    """It is freed where its devices were, whatever stands there by then."""
    kept = []

    def program(rank):
        group = start(rank)
        buffer = symm.empty(64, device="cuda")
        kept.append((buffer, symm.rendezvous(buffer, group)))
        assert kept[-1][1].buffer_ptrs_dev

    spawn(program, 2)
    with cuda.standalone(1):
        kept.clear()
        gc.collect()
        assert torch.cuda.memory_reserved() == 0


def test_memory_is_shared_until_the_last_member_frees_it(spawn):
    """Then its addresses are used again, by tensors of one rank alone."""
    seen = {}

    def program(rank):
        group, own = start(rank), activation.devices_in_use()
        buffer = symm.empty(1 << 18, device="cuda")
        address = buffer.data_ptr()
        handle = symm.rendezvous(buffer, group)
        buffer.fill_(1)
        was_shared = bool(own.shared)
        handle.barrier()
        torch.cuda.synchronize()
        del handle, buffer
        dist.all_reduce(torch.ones(1, device="cuda"))
        torch.cuda.synchronize()
        again = torch.empty(1 << 18, device="cuda")
        again.fill_(1)
        seen[rank] = (was_shared, again.data_ptr() == address, bool(own.shared))

    spawn(program, 2)
    assert seen == dict.fromkeys(range(2), (True, True, False))


def test_signals_order_streams(spawn):
    """A rank reads what its peer wrote before it signalled."""
    results = []

    def program(rank):
        group = start(rank)
        buffer = symm.empty(8, device="cuda")
        handle = symm.rendezvous(buffer, group)
        if rank == 0:
            torch.cuda._sleep(10_000_000)
            handle.get_buffer(1, (8,), torch.float32).fill_(7)
            handle.put_signal(1, channel=2)
        else:
            handle.wait_signal(0, channel=2)
            results.append(buffer.tolist())

    spawn(program, 2)
    assert results == [[7.0] * 8]


def test_a_signal_that_never_comes_is_a_deadlock_or_a_timeout(spawn):
    """Named with what is missing."""

    def program(rank, timeout_ms):
        handle = symm.rendezvous(symm.empty(8, device="cuda"), start(rank))
        if rank == 1:
            handle.wait_signal(0, channel=0, timeout_ms=timeout_ms)
            torch.cuda.synchronize()

    with pytest.raises((SpawnException, DeadlockError), match=r"wait_signal.*no signal from 0"):
        spawn(program, 2, 0)
    with pytest.raises(SpawnException) as caught:
        spawn(program, 2, 5)
    assert isinstance(caught.value.errors[1], WaitTimeoutError)


def test_a_rank_that_does_not_meet_the_others_is_named(spawn):
    """A rendezvous is a call of all members."""

    def program(rank):
        group = start(rank)
        if rank:
            symm.rendezvous(symm.empty(8, device="cuda"), group)

    with pytest.raises((SpawnException, DeadlockError), match="rendezvous #1 of symmetric memory"):
        spawn(program, 3)


@triton.jit
def push_and_wait(buffers, pads, rank, world_size: tl.constexpr, BLOCK: tl.constexpr):
    """Write to the next rank, tell it, and wait for the one before."""
    peer = (rank + 1) % world_size
    offsets = tl.arange(0, BLOCK)
    target = tl.load(buffers + peer).to(tl.pointer_type(tl.float32))
    tl.store(target + offsets, tl.zeros([BLOCK], tl.float32) + rank)
    tl.debug_barrier()
    flag = tl.load(pads + peer).to(tl.pointer_type(tl.int32))
    tl.atomic_xchg(flag, 1, sem="release", scope="sys")
    own = tl.load(pads + rank).to(tl.pointer_type(tl.int32))
    while tl.atomic_cas(own, 1, 0, sem="acquire", scope="sys") != 1:
        pass


def test_kernels_of_several_ranks_meet_in_signal_pads(spawn):
    """Addresses come in tensors; a torch operation behind the kernel sees what came."""
    results = {}

    def program(rank):
        group = start(rank)
        buffer = symm.empty(16, device="cuda")
        handle = symm.rendezvous(buffer, group)
        buffers = torch.tensor(handle.buffer_ptrs, device="cuda")
        pads = torch.tensor(handle.signal_pad_ptrs, device="cuda")
        if rank == 0:
            torch.cuda._sleep(10_000_000)
        push_and_wait[(1,)](buffers, pads, rank, world_size=3, BLOCK=16)
        results[rank] = (buffer * 2).tolist()

    spawn(program, 3)
    assert results == {rank: [2.0 * ((rank - 1) % 3)] * 16 for rank in range(3)}


@triton.jit
def wait_for_flag(flag, out):
    while tl.atomic_add(flag, 0, sem="acquire", scope="sys") != 3:
        pass
    tl.store(out, 1.0)


@pytest.mark.parametrize("how", ["torch", "memset32", "stream_write_value32"])
def test_a_kernel_is_woken_by_what_torch_writes(spawn, how):
    """A peer's operation on the mapped buffer, and words written by a stream."""
    results = []

    def program(rank):
        group = start(rank)
        buffer = symm.empty(4, dtype=torch.int32, device="cuda").fill_(0)
        handle = symm.rendezvous(buffer, group)
        if rank == 0:
            out = torch.zeros(1, device="cuda")
            wait_for_flag[(1,)](buffer[2:], out)
            results.append(float(out))
        else:
            torch.cuda._sleep(10_000_000)
            peer = handle.get_buffer(0, (4,), torch.int32)
            if how == "torch":
                torch.cuda.synchronize()
                peer.fill_(3)
            else:
                words = peer.view(torch.uint32)
                arguments = {"memset32": (2, 3, 1), "stream_write_value32": (2, 3)}[how]
                getattr(symm._SymmetricMemory, how)(words, *arguments)

    spawn(program, 2)
    assert results == [1.0]


def test_the_backends_stream_is_each_ranks_own_and_a_block(spawn):
    """As torch's pipelined operations use it: made once, current within `with`."""
    found = []

    def program(rank):
        start(rank)
        torch.cuda.set_device(rank)
        default, stream = torch.cuda.current_stream(), symm._get_backend_stream()
        assert stream is symm._get_backend_stream()
        with stream:
            assert torch.cuda.current_stream().stream_id == stream.stream_id
            with torch.cuda.Stream(device=1 - rank) as other:
                assert torch.cuda.current_stream() == other
                assert torch.cuda.current_device() == 1 - rank
            assert torch.cuda.current_stream().stream_id == stream.stream_id
        assert torch.cuda.current_stream() == default
        assert stream.stream_id != default.stream_id == 0
        found.append(stream.device.index)

    spawn(program, 2)
    assert sorted(found) == [0, 1]


def test_torchs_module_is_as_before_afterwards(spawn):
    """What it keeps per process is each rank's own meanwhile."""
    before = symm._group_name_to_workspace_tensor
    kinds = []

    def program(rank):
        with pytest.warns(FutureWarning):
            symm.enable_symm_mem_for_group(start(rank))
        torch.cuda.synchronize()
        symm.get_symm_mem_workspace(dist.group.WORLD.group_name, 100)
        kinds.append(len(symm._group_name_to_workspace_tensor))

    spawn(program, 2)
    assert kinds == [1, 1]
    assert symm._group_name_to_workspace_tensor is before
    assert not before


@pytest.mark.slow
def test_nccl_s_allocator_can_be_selected():
    """In a process of its own: torch selects one for the process, before the first use."""
    program = """
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm

import simrank


def work(rank):
    dist.init_process_group("nccl")
    torch.cuda.set_device(rank)
    symm.set_backend("NCCL")
    own = symm.empty(4, device="cuda").fill_(rank)
    handle = symm.rendezvous(own, dist.group.WORLD)
    handle.barrier()
    assert handle.get_buffer(1 - rank, (4,), torch.float32).tolist() == [1.0 - rank] * 4
    assert symm.get_backend("cuda") == "NCCL"
    handle.barrier()


with simrank.Context("hgx_h100") as ctx:
    ctx.multiprocessing.spawn(work, nprocs=2)
"""
    subprocess.run([sys.executable, "-c", program], check=True)
