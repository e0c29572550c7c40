"""`torch.ops.symm_mem` on simulated devices."""

import shutil

import pytest
import torch

if shutil.which("g++") is None:
    pytest.skip("no compiler for simulated devices", allow_module_level=True)

import torch.distributed as dist
import torch.distributed._symmetric_memory as symm

from simrank.errors import SpawnException
from tests.torch.collectives import all_gather_single, reduce_scatter_single


def start(rank):
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    return dist.group.WORLD.group_name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "name",
    [
        "one_shot_all_reduce", "one_shot_all_reduce_out", "one_shot_all_reduce_copy",
        "one_shot_all_reduce_copy_out", "two_shot_all_reduce_", "two_shot_all_reduce_out",
        "multimem_all_reduce_", "multimem_one_shot_all_reduce", "multimem_one_shot_all_reduce_out",
    ],
)  # fmt: skip
def test_reductions_equal_a_sum(spawn, name, dtype):
    """Of small whole numbers: exactly, whatever the order; twice, as memory is used again."""
    results = {}

    def program(rank):
        group = start(rank)
        operator = getattr(torch.ops.symm_mem, name)
        buffer = symm.empty(1000, dtype=dtype, device="cuda")
        symm.rendezvous(buffer, group)
        got = []
        for turn in range(2):
            given = torch.arange(1000, device="cuda").remainder(5).to(dtype) + rank + turn
            out = torch.empty_like(given)
            extra = [out] if name.endswith("out") else []
            if "copy" in name:
                result = operator(buffer, given, "sum", group, *extra)
            else:
                buffer.copy_(given)
                result = operator(buffer, "sum", group, *extra)
            got.append((out if extra else result).float().cpu())
        results[rank] = got

    spawn(program, 4)
    for got in results.values():
        for turn in range(2):
            expected = 4.0 * (torch.arange(1000) % 5) + 6 + 4 * turn
            assert torch.equal(got[turn], expected)


def test_larger_reductions_take_longer_and_two_shots_cross_less(spawn):
    """The time is that of the links: (p - 1) parts in one shot, 2 (p - 1) / p in two."""
    times = {}

    def program(rank):
        group = start(rank)
        buffer = symm.empty(1 << 24, device="cuda").fill_(1)
        handle = symm.rendezvous(buffer, group)
        for name in ("one_shot_all_reduce", "two_shot_all_reduce_"):
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            handle.barrier()
            first.record()
            getattr(torch.ops.symm_mem, name)(buffer, "sum", group)
            last.record()
            last.synchronize()
            times[name] = first.elapsed_time(last)

    spawn(program, 4)
    part_ms = (4 << 24) / 450e9 * 1e3  # At most; the links have less than their data sheet says.
    assert 3 * part_ms <= times["one_shot_all_reduce"] <= 4 * part_ms
    assert 1.5 * part_ms <= times["two_shot_all_reduce_"] <= 2 * part_ms


def test_scatters_and_gathers(spawn):
    """Shares of a sum; tensors side by side."""
    results = {}

    def program(rank):
        group = start(rank)
        buffer = symm.empty(4, 8, device="cuda")
        symm.rendezvous(buffer, group)
        buffer.copy_(torch.arange(32.0).view(4, 8) * (rank + 1))
        out = torch.empty(4, 4, device="cuda")
        torch.ops.symm_mem.reduce_scatter_out(buffer, group, True, out)
        gathered = symm.empty(8, device="cuda")
        symm.rendezvous(gathered, group)
        own = torch.full((4,), float(rank), device="cuda")
        torch.ops.symm_mem.multimem_all_gather_out(own, group, gathered)
        results[rank] = (out.cpu(), gathered.tolist())

    spawn(program, 2)
    for rank in range(2):
        expected = 3 * torch.arange(32.0).view(4, 8)[:, 4 * rank : 4 * rank + 4]
        assert torch.equal(results[rank][0], expected)
        assert results[rank][1] == [0.0] * 4 + [1.0] * 4


@pytest.mark.parametrize("world_size", [2, 4])
def test_fused_products_equal_plain_ones(spawn, world_size):
    """The pipelines are those of torch, over the workspace that it keeps for each rank."""
    errors = []

    def program(rank):
        group = start(rank)
        torch.manual_seed(rank)
        a = torch.randn(8, 16, device="cuda", dtype=torch.float64)
        torch.manual_seed(100)
        bs = [torch.randn(16, n, device="cuda", dtype=torch.float64) for n in (6, 10)]
        for _ in range(2):
            gathered, products = torch.ops.symm_mem.fused_all_gather_matmul(a, bs, 0, group)
            whole = torch.empty(8 * world_size, 16, device="cuda", dtype=torch.float64)
            all_gather_single(whole, a)
            errors.append(float((gathered - whole).abs().max()))
            errors.extend(
                float((product - whole @ b).abs().max())
                for product, b in zip(products, bs, strict=True)
            )
            out = torch.ops.symm_mem.fused_matmul_reduce_scatter(a, bs[0], "sum", 0, group)
            plain = torch.empty(8 // world_size, 6, device="cuda", dtype=torch.float64)
            reduce_scatter_single(plain, a @ bs[0])
            errors.append(float((out - plain).abs().max()))
            low = torch.ops.symm_mem._low_contention_all_gather(a, group)
            low = torch.ops._c10d_functional.wait_tensor(low)
            errors.append(float((low - whole).abs().max()))

    spawn(program, world_size)
    assert len(errors) == world_size * 2 * 5
    assert max(errors) < 1e-12


def test_what_is_not_simulated_is_refused_by_name(spawn):
    """Not computed elsewhere."""

    def program(rank):
        x = torch.ones(4, device="cuda")
        torch.ops.symm_mem.nvshmem_put(x, 0)

    with pytest.raises(SpawnException, match=r"symm_mem\.nvshmem_put on simulated CUDA devices"):
        spawn(program, 1)


def test_a_captured_graph_has_them(spawn):
    """And signals, on what lies in memory at the replay."""

    def program(rank):
        group = start(rank)
        buffer = symm.empty(64, device="cuda")
        handle = symm.rendezvous(buffer, group)
        buffer.fill_(rank + 1.0)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            handle.barrier()
            total = torch.ops.symm_mem.one_shot_all_reduce(buffer, "sum", group)
            twice = total * 2
        for number in (3.0, 4.0):
            buffer.fill_(number)
            graph.replay()
            assert torch.equal(twice, torch.full_like(twice, 4 * number))

    spawn(program, 2)
