"""Pools of torch's symmetric memory, and nccl's calls on what they give out."""

import shutil

import pytest
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm

if shutil.which("g++") is None:
    pytest.skip("no compiler for simulated devices", allow_module_level=True)
pytestmark = pytest.mark.filterwarnings("ignore:.*_tensor. is deprecated:FutureWarning")


def test_what_a_pool_gives_out_is_memory_that_peers_reach(spawn):
    """Members meet once for an address, whatever tensor is there later."""

    def program(rank):
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        pool = symm.get_mem_pool(torch.device("cuda", rank))
        assert pool is symm.get_mem_pool(torch.device("cuda", rank))
        addresses = set()
        for turn in range(2):
            with torch.cuda.use_mem_pool(pool):
                buffer = torch.full((64,), float(10 * turn + rank), device="cuda")
            addresses.add(buffer.data_ptr())
            assert symm.is_symm_mem_tensor(buffer)
            handle = symm.rendezvous(buffer, dist.group.WORLD.group_name)
            handle.barrier()
            peer = handle.get_buffer(1 - rank, (64,), torch.float32)
            assert peer.unique().tolist() == [10 * turn + 1 - rank]
            handle.barrier()
            del buffer, peer
        assert len(addresses) == 1
        assert not symm.is_symm_mem_tensor(torch.empty(64, device="cuda"))

    for _ in range(2):  # The next simulation begins with fresh devices.
        spawn(program, 2)


@pytest.mark.parametrize("policy", ["DEFAULT", "ZERO"])
def test_profiles_show_nccls_kernels_for_memory_that_the_group_has_met_in(spawn, policy):
    """A gather needs what it fills to be there, a reduction what it reads."""

    def program(rank):
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        options = dist.ProcessGroupNCCL.Options()
        options.config.cta_policy = getattr(dist.ProcessGroupNCCL, f"NCCL_CTA_POLICY_{policy}")
        group = dist.new_group(pg_options=options)
        part = torch.ones(8, device="cuda")
        whole = torch.ones(16, device="cuda")
        with torch.cuda.use_mem_pool(symm.get_mem_pool(torch.device("cuda", rank))):
            shared = torch.ones(16, device="cuda")
        symm.rendezvous(shared, group.group_name)
        found = []
        for buffer, where in ((whole, group), (shared, dist.group.WORLD), (shared, group)):
            with torch.profiler.profile() as prof:
                dist.all_gather_into_tensor(buffer, part, group=where)
                dist.reduce_scatter_tensor(part, buffer, group=where)
                dist.reduce_scatter_tensor(part.int(), buffer.int(), group=where)
            found.append(
                [
                    (event.name, event.activity_type)
                    for event in prof.events()
                    if event.name.startswith(("nccl", "Memcpy"))
                    and event.device_type == torch.autograd.DeviceType.CUDA
                ]
            )
        ring = [
            ("ncclDevKernel_AllGather", "kernel"),
            ("ncclDevKernel_ReduceScatter", "kernel"),
            ("ncclDevKernel_ReduceScatter", "kernel"),
        ]
        gather = {
            "DEFAULT": ("ncclSymkDevKernel_AllGather", "kernel"),
            "ZERO": ("Memcpy PtoP", "gpu_memcpy"),
        }
        symmetric = [gather[policy], ("ncclSymkDevKernel_ReduceScatter", "kernel"), ring[2]]
        assert found == [ring, ring, symmetric]

    spawn(program, 2)
