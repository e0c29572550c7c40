"""Statistics, errors and reuse of device memory are those of CUDA's caching allocator."""

from __future__ import annotations

import gc
import resource

import pytest
import torch

from simrank.errors import UnsupportedError
from simrank.torch import cuda as simulated

MIB = 1 << 20


def test_allocated_and_peak(cuda):
    """Storages count once, however many views they have, and until the last dies."""
    x = torch.empty(MIB, device="cuda:1")
    assert torch.cuda.memory_allocated(1) == 4 * MIB
    y = x * 2
    view = y[3:]
    del y
    assert torch.cuda.memory_allocated(1) == 8 * MIB
    del view
    assert torch.cuda.memory_allocated(1) == 4 * MIB
    assert torch.cuda.max_memory_allocated(1) == 8 * MIB
    torch.cuda.reset_peak_memory_stats(1)
    assert torch.cuda.max_memory_allocated(1) == 4 * MIB
    assert torch.cuda.memory_allocated(0) == 0
    x.untyped_storage().resize_(0)
    assert torch.cuda.memory_allocated(1) == 0


def test_reserved_memory_grows_by_segments(cuda):
    """2 MiB for small blocks, 20 MiB below 10 MiB, else whole 2 MiB; empty_cache gives it back."""
    kept = [torch.empty(1, device="cuda")]
    assert torch.cuda.memory_reserved() == 2 * MIB
    kept.append(torch.empty(2 * MIB, dtype=torch.uint8, device="cuda"))
    assert torch.cuda.memory_reserved() == 22 * MIB
    kept.append(torch.empty(31 * MIB, dtype=torch.uint8, device="cuda"))
    assert torch.cuda.memory_reserved() == (22 + 32) * MIB
    free, total = torch.cuda.mem_get_info()
    assert total - free == 54 * MIB
    del kept[1:]
    assert torch.cuda.memory_reserved() == 54 * MIB
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 2 * MIB


def test_statistics_and_snapshots_have_torchs_shape(cuda):
    """memory_stats, memory_summary and memory_snapshot read what they read of CUDA."""
    x = torch.empty(1000, device="cuda")
    stats = torch.cuda.memory_stats()
    assert stats["allocated_bytes.all.peak"] == 4096
    assert stats["requested_bytes.all.current"] == 4000
    assert stats["inactive_split_bytes.all.current"] == 2 * MIB - 4096
    assert "CUDA memory summary" in torch.cuda.memory_summary()
    (segment,) = torch.cuda.memory_snapshot()
    assert segment["total_size"] == 2 * MIB
    assert segment["blocks"][0]["address"] == x.data_ptr()
    assert [block["state"] for block in segment["blocks"]] == ["active_allocated", "inactive"]


def test_histories(cuda):
    """What happened to memory since `_record_memory_history`, in order."""
    x = torch.empty(100, device="cuda:1")
    address = x.data_ptr()
    del x
    torch.cuda.memory._record_memory_history()
    x = torch.empty(100, device="cuda:1")
    del x
    events = torch.cuda.memory._snapshot()["device_traces"][1]
    assert [event["action"] for event in events] == ["alloc", "free_requested", "free_completed"]
    assert {(event["addr"], event["size"]) for event in events} == {(address, 512)}


def test_freed_memory_is_reused_by_its_stream_only(cuda):
    """The same size gets the same address on the same stream, and another on another stream."""
    x = torch.empty(MIB, device="cuda")
    address = x.data_ptr()
    del x
    with torch.cuda.stream(torch.cuda.Stream()):
        other = torch.empty(MIB, device="cuda")
    again = torch.empty(MIB, device="cuda")
    assert other.data_ptr() != address
    assert again.data_ptr() == address


def _faults(num_bytes):
    """Return how many pages come in as a tensor of so many bytes is made and filled."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.empty(num_bytes, dtype=torch.uint8, device="cuda").fill_(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_freed_memory_keeps_its_pages_within_bounds(cuda):
    """Temporaries come and go; what is larger than the bound goes back to the host at once."""
    small, large = 16 * MIB, 300 * MIB
    pages = resource.getpagesize()
    assert _faults(small) > small // pages // 2
    assert _faults(small) < small // pages // 8
    torch.cuda.empty_cache()
    assert _faults(small) > small // pages // 2
    torch.empty(large, dtype=torch.uint8, device="cuda")[: 2 * small].fill_(1)
    held = torch.empty(large, dtype=torch.uint8, device="cuda")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    held[:small].fill_(1)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    assert faults > small // pages // 2


def test_what_a_simulation_keeps_it_gives_back_at_its_end():
    """Also where a tensor outlives it, and its memory with it."""
    with simulated.standalone():
        alive = torch.empty(1, device="cuda")
        assert _faults(250 * MIB) > 0
    with simulated.standalone():
        assert _faults(16 * MIB) > _faults(16 * MIB) * 4
        del alive


def test_record_stream_delays_reuse_until_the_stream_is_done():
    """A block that another stream uses is not given out before the simulator says so."""
    done = []

    def on_stream_call(what, _rank, _device, _stream, _event):
        return what.name != "EVENT_QUERY" or bool(done)

    with simulated.standalone(1, callbacks=simulated.Callbacks(on_stream_call=on_stream_call)):
        x = torch.empty(MIB, device="cuda")
        address = x.data_ptr()
        x.record_stream(torch.cuda.Stream())
        del x
        y = torch.empty(MIB, device="cuda")
        assert y.data_ptr() != address
        assert torch.cuda.memory_stats()["active_bytes.all.current"] == 8 * MIB
        assert torch.cuda.memory_allocated() == 4 * MIB
        done.append(True)
        z = torch.empty(MIB, device="cuda")
        assert z.data_ptr() == address


def test_out_of_memory():
    """The error is torch's, its text the simulator's, and small tensors still fit."""
    callbacks = simulated.Callbacks(
        on_out_of_memory=lambda rank, device, size: f"CUDA out of memory: {rank} {device} {size}"
    )
    properties = simulated.DeviceProperties(total_memory=64 * MIB)
    with simulated.standalone(1, properties=properties, callbacks=callbacks):
        with pytest.raises(torch.OutOfMemoryError, match=f"CUDA out of memory: 0 0 {65 * MIB}"):
            torch.empty(65 * MIB, dtype=torch.uint8, device="cuda")
        with pytest.raises(torch.cuda.OutOfMemoryError, match="CUDA out of memory"):
            [torch.ones(4 * MIB, device="cuda") * 2 for _ in range(8)]
        gc.collect()
        assert torch.ones(4, device="cuda").sum().item() == 4
        assert torch.cuda.memory_stats()["num_ooms"] == 2


def test_a_fraction_limits_memory(cuda):
    """set_per_process_memory_fraction."""
    torch.cuda.set_per_process_memory_fraction(0.001)
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
        torch.empty(200 * MIB, dtype=torch.uint8, device="cuda")
    assert torch.cuda.get_per_process_memory_fraction() == 0.001


def test_fresh_memory_can_be_nan():
    """With `fill_fresh`, what nobody wrote is NaN."""
    with simulated.standalone(1, fill_fresh=True):
        assert torch.empty(100, device="cuda").isnan().all()
        assert torch.empty(100, device="cuda", dtype=torch.bfloat16).isnan().all()


def test_allocations_are_told():
    """Blocks at or above the threshold, with their address and rank; temporaries are not."""
    reported = []
    callbacks = simulated.Callbacks(
        on_alloc=lambda *event: reported.append(("alloc", *event)),
        on_free=lambda *event: reported.append(("free", *event)),
        alloc_threshold_bytes=4096,
    )
    with simulated.standalone(1, callbacks=callbacks):
        torch.empty(1023, device="cuda")
        x = torch.empty(1024, device="cuda")
        address = x.data_ptr()
        del x
    assert reported == [("alloc", 0, 0, address, 4096, 0), ("free", 0, 0, address, 4096, 0)]


def test_storages(cuda):
    """Untyped storages are made, asked and resized on devices."""
    x = torch.ones(4, device="cuda:1")
    storage = x.untyped_storage()
    assert storage.device == torch.device("cuda:1")
    assert storage.is_cuda
    storage.resize_(0)
    assert x.untyped_storage().size() == 0
    storage.resize_(16)
    x.fill_(3)
    assert x.sum().item() == 12
    assert torch.UntypedStorage(8, device="cuda").device.type == "cuda"


def test_raw_allocations(cuda):
    """As caching_allocator_alloc makes them."""
    pointer = torch.cuda.caching_allocator_alloc(1000)
    assert torch.cuda.memory_allocated() == 1024
    torch.cuda.caching_allocator_delete(pointer)
    assert torch.cuda.memory_allocated() == 0


def test_a_pool_keeps_to_itself_what_is_allocated_from_it(cuda):
    """Its memory is given out again in it alone, and goes with it."""
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        assert pool.use_count() == 2
        inside = torch.empty(1 << 20, device="cuda")
        elsewhere = torch.empty(1 << 20, device="cuda:1")
    outside = torch.empty(1 << 20, device="cuda")
    assert pool.use_count() == 1
    (segment,) = pool.snapshot()
    end = segment["address"] + segment["total_size"]
    held = [segment["address"] <= each.data_ptr() < end for each in (inside, elsewhere, outside)]
    assert held == [True, False, False]
    address = inside.data_ptr()
    del inside
    assert torch.empty(1 << 20, device="cuda").data_ptr() != address
    with torch.cuda.use_mem_pool(pool):
        assert torch.empty(1 << 20, device="cuda").data_ptr() == address
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    del pool
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == before - segment["total_size"]


def test_a_pool_whose_segments_are_not_split_has_one_for_each_tensor(cuda):
    """As pools of symmetric memory have; what a pool cannot do is refused by name."""
    pool = torch.cuda.MemPool(no_split=True)
    with torch.cuda.use_mem_pool(pool):
        held = [torch.empty(8, device="cuda") for _ in range(3)]
    assert len(pool.snapshot()) == len(held)
    for wrong in ({"allocator": object()}, {"use_on_oom": True}):
        with pytest.raises(UnsupportedError, match=r"torch\.cuda\.MemPool"):
            torch.cuda.MemPool(**wrong)


# ---- addresses lead to blocks and devices ----


def test_an_address_leads_to_its_block(cuda):
    """Anywhere inside, but not behind, nor after its end of life."""
    x = torch.ones(100, device="cuda:2")
    address = x.data_ptr()
    assert simulated.find_block(address + 399) == (2, address, 400)
    assert simulated.find_block(address + 512) is None
    assert simulated.device_of(address) == 2
    del x
    assert simulated.find_block(address) is None
    assert simulated.device_of(torch.ones(1).data_ptr()) is None
    assert simulated.signal_pad(address) == 0


# ---- legacy tensor types of CUDA ----


def test_legacy_types(cuda):
    """They make tensors, name types, and are asked by isinstance."""
    x = torch.cuda.FloatTensor([1, 2])
    assert x.is_cuda
    assert isinstance(x, torch.cuda.FloatTensor)
    assert not isinstance(x.cpu(), torch.cuda.FloatTensor)
    assert not isinstance(x.half(), torch.cuda.FloatTensor)
    y = torch.cuda.LongTensor(3)
    assert (y.shape, y.dtype) == ((3,), torch.int64)
    assert torch.ones(2).type("torch.cuda.HalfTensor").dtype == torch.float16
    assert x.type("torch.FloatTensor").device.type == "cpu"
    assert x.type_as(torch.ones(1)).device.type == "cpu"


def test_untyped_storages(cuda):
    """Made from sizes and from bytes; those of the host are made as ever."""
    assert torch.UntypedStorage([1, 2, 3], device="cuda").cpu().tolist() == [1, 2, 3]
    assert torch.UntypedStorage(4, device="cpu").device.type == "cpu"
    host = torch.UntypedStorage(4)
    assert host.resize_(8).nbytes() == 8
