"""A buffer of another library passes through the same matcher, planner, races and timeline."""

import json

import numpy as np
import pytest

import simrank
import simrank.distributed as dist
from simrank.device import Buffer, as_dtype
from simrank.device.host_reads import wait_values
from simrank.device.memory import Storage
from simrank.errors import CollectiveMismatchError, DeadlockError, RaceError
from simrank.trace.timeline import Timeline


class NumpyBuffer:
    """A numpy array as simrank sees a tensor: what another library's adapter has to bring."""

    def __init__(self, values, device=None, storage=None):
        self.storage = Storage.adopt(values, device) if storage is None else storage
        self.dtype = as_dtype(values.dtype)
        self.cuda_device = device
        self.array = values
        self.shape = values.shape
        self.nbytes = values.nbytes

    def numel(self):
        return self.array.size

    def stride(self):
        return tuple(step // self.array.itemsize for step in self.array.strides)

    def is_contiguous(self):
        return self.array.flags.c_contiguous

    def values(self):
        wait_values(self)
        return self.array.tolist()


def filled(ctx, rank, count=8):
    return NumpyBuffer(np.full(count, float(rank), np.float32), ctx.devices[rank])


def test_the_protocol_is_what_an_adapter_must_have(ctx):
    """A class of its own is a Buffer; so is a Tensor; an array alone is none."""
    assert isinstance(NumpyBuffer(np.zeros(4)), Buffer)
    assert isinstance(ctx.zeros(2), Buffer)
    assert not isinstance(np.zeros(4), Buffer)


def test_every_collective_and_messages_run_on_adopted_memory(run):
    """In stream order, into the array that its owner holds."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        x = filled(ctx, rank)
        own = x.array
        dist.all_reduce(x)
        assert x.values() == [6.0] * 8
        assert own is x.array
        whole = NumpyBuffer(np.zeros(32, np.float32), ctx.devices[rank])
        dist.all_gather_into_tensor(whole, filled(ctx, rank))
        assert whole.values() == [float(peer) for peer in range(4) for _ in range(8)]
        part = NumpyBuffer(np.zeros(8, np.float32), ctx.devices[rank])
        dist.reduce_scatter_tensor(part, whole)
        assert part.values() == [4.0 * rank] * 8
        dist.broadcast(x, 0)
        if rank % 2:
            dist.recv(part, rank - 1)
            assert part.values() == [rank - 1.0] * 8
        else:
            dist.send(filled(ctx, rank), rank + 1)
        parts = [NumpyBuffer(np.zeros(8, np.float32), ctx.devices[rank]) for _ in range(4)]
        dist.all_gather(parts, filled(ctx, rank))
        assert [buffer.values()[0] for buffer in parts] == [0, 1, 2, 3]
        work = dist.all_reduce(filled(ctx, rank), async_op=True)
        work.wait()
        assert isinstance(work.result()[0], NumpyBuffer)

    run(program, 4)


def test_a_buffer_and_a_tensor_meet_in_one_call(run):
    """The matcher compares operations, types and counts, not classes."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        x = ctx.full((8,), float(rank)) if rank else filled(ctx, rank)
        dist.all_reduce(x)
        assert (x.tolist() if rank else x.values()) == [1.0] * 8

    run(program, 2)


def test_wrong_calls_with_buffers_are_reported_as_with_tensors(run):
    """A count that differs, and a rank that does not come."""

    def differs(rank, ctx):
        dist.init_process_group("nccl")
        dist.all_reduce(filled(ctx, rank, 8 + rank))

    with pytest.raises(simrank.multiprocessing.SpawnException) as caught:
        run(differs, 2)
    assert isinstance(next(iter(caught.value.errors.values())), CollectiveMismatchError)

    def absent(rank, ctx):
        dist.init_process_group("nccl")
        if rank:
            x = filled(ctx, rank)
            dist.all_reduce(x)
            x.values()

    with pytest.raises(DeadlockError, match="all_reduce #1"):
        run(absent, 2)


def test_a_read_before_the_wait_is_a_race_on_a_buffer_too(run):
    """Both accesses are named."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        x = filled(ctx, rank)
        dist.all_reduce(x, async_op=True)
        x.values()

    with pytest.raises(simrank.multiprocessing.SpawnException) as caught:
        run(program, 2, races="error")
    error = next(iter(caught.value.errors.values()))
    assert isinstance(error, RaceError)
    assert "host read" in str(error)


def test_calls_on_buffers_are_in_the_timeline(tmp_path):
    """With their names, as those on tensors."""
    timeline = Timeline()

    def program(rank, ctx):
        dist.init_process_group("nccl")
        dist.all_reduce(filled(ctx, rank))

    with simrank.Context("hgx_h100") as ctx:
        ctx.observe(timeline)
        ctx.multiprocessing.spawn(program, (ctx,), nprocs=2)
    timeline.write(tmp_path / "trace.json")
    text = json.dumps(json.loads((tmp_path / "trace.json").read_text()))
    assert '"name": "all_reduce"' in text


def test_adopted_memory_counts_on_its_device():
    """It has an address of its own, and is given back with its storage."""
    with simrank.Context("hgx_h100") as ctx:
        device = ctx.devices[0]
        values = np.zeros(1 << 20, np.uint8)
        storage = Storage.adopt(values, device)
        assert device.memory.used_bytes == 1 << 20
        assert device.memory.space.find(storage.address + 5) is storage
        del storage
        assert device.memory.used_bytes == 0
        frozen = np.zeros(4)
        frozen.flags.writeable = False
        with pytest.raises(ValueError, match="must be writable"):
            Storage.adopt(frozen, device)
        huge = np.broadcast_to(np.uint8(0), (1 << 40,))
        with pytest.raises(ValueError, match="must be contiguous, got strides"):
            Storage.adopt(huge, device)


def test_adopted_memory_has_values_in_a_shape_only_run():
    """Its bytes are real, whatever their number."""
    with simrank.Context("hgx_h100", data=False) as ctx:
        values = np.ones(1 << 18, np.float32)
        assert Storage.adopt(values, ctx.devices[0]).has_values
        assert not ctx.zeros(1 << 18).storage.has_values
