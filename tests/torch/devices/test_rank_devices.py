"""torch's operations wait for what is in flight on simulated streams."""

import shutil

import pytest
import torch
import torch.distributed as dist

from simrank.torch import cuda
from simrank.torch.devices import buffers, rank_devices
from simrank.torch.devices.rank_devices import note_storages

if shutil.which("g++") is None:
    pytest.skip("no compiler for simulated devices", allow_module_level=True)


def test_an_operation_waits_for_what_it_touches_and_for_nothing_else(spawn):
    """A collective's tensor; a copy of another one goes ahead."""
    open_then = {}

    def program(rank):
        dist.init_process_group("nccl")
        torch.cuda.set_device(rank)
        x, other = torch.ones(1 << 20, device="cuda"), torch.ones(4, device="cuda")
        work = dist.all_reduce(x, async_op=True)
        other.add_(1)
        open_then[rank, "other"] = not work.is_completed()
        x.add_(1)
        open_then[rank, "same"] = not work.is_completed()

    spawn(program, 2, races="off")
    assert open_then == {(r, k): k == "other" for r in range(2) for k in ("other", "same")}


def test_only_its_own_rank_waits_for_a_kernel(spawn):
    """Another rank may have to write there before the kernel can end."""
    waited = {}

    def program(rank):
        from simrank.device.stream import KernelOperation
        from simrank.ranks import require_rank
        from simrank.torch.devices import activation

        program = require_rank("a test")
        torch.cuda.set_device(rank)
        if rank == 0:
            shared.append(torch.zeros(8, device="cuda"))
            stream = activation.devices_in_use().current_stream()
            operation = KernelOperation(stream, "k", duration_ps=10**9, demands=())
            stream.submit(operation)
            storage = buffers.storage_of(shared[0])
            note_storages(operation, [], [storage], program)
            program.engine.sleep(10**6)
        else:
            program.engine.sleep(5 * 10**8)
        cuda.touch(shared[0].data_ptr(), 4, writes=False)
        waited[rank] = program.engine.now_ps >= 10**9

    shared = []
    spawn(program, 2)
    assert waited == {0: True, 1: False}


@pytest.fixture
def marked(monkeypatch):
    """The addresses of memory that is marked as in flight, each time that it is."""
    found, add = [], cuda.pending_add

    def count(address, size_bytes, **facts):
        found.append(address)
        add(address, size_bytes, **facts)

    monkeypatch.setattr(cuda, "pending_add", count)
    return found


@pytest.mark.parametrize(("num_streams", "num_marks"), [(1, 1), (2, 6)])
def test_what_a_stream_does_to_a_tensor_again_is_marked_once(spawn, marked, num_streams, num_marks):
    """The last one ends last; where streams take turns, each call keeps its own mark."""
    values = {}

    def program(rank):
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
        x = torch.ones(1 << 16, device="cuda")
        streams = [torch.cuda.current_stream(), torch.cuda.Stream()][:num_streams]
        for call in range(6):
            stream = streams[call % num_streams]
            stream.wait_stream(streams[call % num_streams - 1])
            with torch.cuda.stream(stream):
                dist.all_reduce(x)
        values[rank] = x.amax().item(), x.amin().item()

    spawn(program, 2, races="off")
    assert values == {0: (64, 64), 1: (64, 64)}
    assert len(marked) == 2 * num_marks


def test_a_kernel_of_one_rank_between_two_calls_keeps_the_order_of_marks(spawn, marked):
    """What is waited for first is what was issued last: the call behind it has its own mark."""
    of_x = []

    def program(rank):
        from simrank.device.stream import KernelOperation
        from simrank.ranks import require_rank
        from simrank.torch.devices import activation

        torch.cuda.set_device(rank)
        dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
        x = torch.ones(8, device="cuda")
        dist.all_reduce(x)
        stream = activation.devices_in_use().current_stream()
        operation = KernelOperation(stream, "k", duration_ps=10**9, demands=())
        stream.submit(operation)
        note_storages(operation, [], [], require_rank("a test"))
        dist.all_reduce(x)
        dist.all_reduce(x)
        of_x.append(x.data_ptr())

    spawn(program, 2, races="off")
    assert [marked.count(address) for address in of_x] == [2, 2]


# ---- who arranges what ranks share ----


def test_who_registers_last_arranges_what_is_shared(monkeypatch):
    """And before anybody has, nothing is."""
    monkeypatch.setattr(rank_devices, "_registered", [rank_devices._NoOwner()])
    assert rank_devices.shared_memory_owner().find(5) is None
    assert rank_devices.shared_memory_owner().rendezvous is None
    owner = object()
    rank_devices.register_shared_memory(owner)
    assert rank_devices.shared_memory_owner() is owner
