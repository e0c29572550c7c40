"""One address space, allocation, fresh garbage, shape-only storages."""

import gc

import numpy as np
import pytest

import simrank
from simrank.device.memory import DEVICE_SPAN_BYTES, GRANULE_BYTES
from simrank.errors import OutOfMemoryError, UninitializedValueError


def test_an_address_tells_its_device_and_storage(ctx):
    """The segment table finds a tensor's storage from any address inside it, and only there."""
    first = ctx.empty(100, device=0)
    other = ctx.empty(100, device=3)
    space = first.storage.device.memory.space
    assert space.find(other.data_ptr() + 17) is other.storage
    assert space.find(first[5:].data_ptr()) is first.storage
    assert other.data_ptr() // DEVICE_SPAN_BYTES - first.data_ptr() // DEVICE_SPAN_BYTES == 3
    assert space.find(other.data_ptr() + other.nbytes) is None
    assert space.find(0) is None


def test_addresses_do_not_depend_on_the_run():
    """Two runs of one program allocate at the same addresses."""

    def addresses():
        with simrank.Context("hgx_h100") as ctx:
            kept = [ctx.empty(size) for size in (1, 1000, 77, 12345)]
            del kept[1]
            kept.append(ctx.empty(1000))
            return [tensor.data_ptr() for tensor in kept]

    assert addresses() == addresses()


def test_freed_memory_is_given_back_and_counted(ctx):
    """used_bytes falls when the last view dies; the peak stays."""
    memory = ctx.devices[0].memory
    tensor = ctx.empty(1000)
    view = tensor[10:]
    del tensor
    assert memory.used_bytes == 8 * GRANULE_BYTES
    del view
    assert memory.used_bytes == 0
    assert memory.peak_bytes == 8 * GRANULE_BYTES


def test_an_operation_keeps_its_tensors_alive_until_it_has_ended(ctx):
    """Dropping a tensor that an operation in flight reads frees nothing early (D6)."""
    source = ctx.ones(1000)
    total = source.sum()
    del source
    assert ctx.devices[0].memory.used_bytes == 9 * GRANULE_BYTES
    assert total.item() == 1000
    assert ctx.devices[0].memory.used_bytes == GRANULE_BYTES


def test_out_of_memory_names_the_largest_allocations_and_their_lines(shapes):
    """The error carries requested, free and total bytes and the five largest with lines."""
    sizes = (10**10, 4 * 10**10, 10**9, 10**8, 1, 2)
    kept = [shapes.empty(size, dtype="uint8") for size in sizes]
    with pytest.raises(OutOfMemoryError) as caught:
        shapes.empty(6 * 10**10, dtype="uint8")
    error = caught.value
    assert error.requested_bytes == 6 * 10**10
    assert error.total_bytes == 81089 * 2**20
    assert error.free_bytes == error.total_bytes - shapes.devices[0].memory.used_bytes
    assert [size // 10**8 for size, _ in error.largest] == [400, 100, 10, 1, 0]
    assert all(where.startswith("test_memory.py:") for _, where in error.largest)
    assert len(kept) == 6


def test_fresh_memory_is_garbage_that_shows(ctx):
    """Floating garbage is NaN, integer garbage is -1."""
    assert np.isnan(ctx.empty(3).numpy()).all()
    assert ctx.empty(3, dtype="int32").tolist() == [-1, -1, -1]


def test_large_tensors_of_a_shape_only_run_have_no_values():
    """Reading one is an error that names the line where it was made; small ones keep values."""
    with simrank.Context("hgx_h100", data=False) as ctx:
        large = ctx.ones(100_000)
        assert ctx.ones(16 * 1024).sum().item() == 16 * 1024
        with pytest.raises(UninitializedValueError, match=r"test_memory\.py") as caught:
            large.sum().item()
        assert "data=False" in str(caught.value)
        assert large.shape == (100_000,)


def test_a_shape_only_run_takes_no_memory_for_its_tensors():
    """Terabytes of simulated tensors cost no bytes of the host's."""
    with simrank.Context("gb200_nvl72", data=False) as ctx:
        tensors = [ctx.ones(4 * 10**10, device=index) for index in range(72)]
        assert sum(tensor.nbytes for tensor in tensors) > 10 * 10**12
        ctx.drain()


def test_freed_neighbours_are_joined_and_addresses_stay_in_their_devices_span(shapes):
    """Thousands of blocks of distinct sizes come and go; the first address is reused."""
    first = shapes.empty(10, dtype="uint8").data_ptr()
    other = shapes.empty(10, device=1)
    for size in range(2000):
        block = shapes.empty(30 * 10**9 + 512 * size, dtype="uint8")
        assert block.data_ptr() == first
        del block
    space = other.storage.device.memory.space
    assert space.find(other.data_ptr()) is other.storage
    kept = [shapes.empty(512, dtype="uint8") for _ in range(5)]
    hole = kept[1].data_ptr()
    del kept[1:3]
    assert shapes.empty(1024, dtype="uint8").data_ptr() == hole


def test_what_a_collective_without_values_leaves_is_unknown_to_what_follows(run):
    """Unknown values spread through later operations, and a full overwrite ends them."""
    import simrank.distributed as dist

    def program(rank, ctx):
        dist.init_process_group()
        large, small = ctx.ones(8 * 4096), ctx.zeros(4096)
        dist.reduce_scatter_tensor(small, large)
        after = small + 1
        with pytest.raises(UninitializedValueError):
            after[0].item()
        small.fill_(3)
        assert (small + 1)[0].item() == 4
        small.copy_(large[:4096])
        with pytest.raises(UninitializedValueError):
            small.tolist()

    run(program, 8, data=False)


def test_a_small_result_of_values_that_do_not_exist_cannot_be_read():
    """What was computed from a shape-only tensor is unknown, however small it is."""
    with simrank.Context("hgx_h100", data=False) as ctx:
        total = ctx.ones(100_000).sum()
        with pytest.raises(UninitializedValueError):
            total.item()


@pytest.mark.parametrize("collects", [True, False])
def test_tensors_that_only_garbage_refers_to_are_no_reason_to_be_out_of_memory(shapes, collects):
    """Also where Python's collector is held back, or off: it is asked before the error."""
    quarter = shapes.devices[0].memory.total_bytes // 4

    class Module:
        """Refers to itself, as modules with hooks do."""

        def __init__(self):
            self.weight = shapes.empty(quarter, dtype="uint8")
            self.own = self

    gc.collect()
    if not collects:
        gc.disable()
    try:
        for _ in range(10):
            Module()
        kept = [Module() for _ in range(4)]
        with pytest.raises(OutOfMemoryError):
            Module()
        del kept[1:]
        Module()
    finally:
        gc.enable()
