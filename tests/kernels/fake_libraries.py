"""Stand-ins for libraries: modules of their names, without the compiler and library behind them."""

import importlib.util
import sys

import simrank
import simrank.distributed as dist
import simrank.distributed.symmetric_memory as symm_mem

OPS = """
from triton.language import core

@core.builtin
def wait(barrierPtrs, numBarriers, scope, semantic, waitValue=1, _semantic=None):
    raise AssertionError

@core.builtin
def consume_token(value, token, _semantic=None):
    raise AssertionError

@core.builtin
def rank(axis=-1, _semantic=None):
    raise AssertionError

@core.builtin
def num_ranks(axis=-1, _semantic=None):
    raise AssertionError

@core.builtin
def symm_at(ptr, rank, _semantic=None):
    raise AssertionError

@core.builtin
def notify(ptr, rank, signal=1, sig_op="set", comm_scope="inter_node", _semantic=None):
    raise AssertionError
"""
SIMT = """
class simt_exec_region:
    def __enter__(self): ...
    def __exit__(self, *error): ...
"""
SHMEM = """
NVSHMEM_SIGNAL_ADD = 10
NVSHMEM_CMP_GE = 5
def signal_op(sig_addr, signal, sig_op, pe): ...
def signal_wait_until(sig_addr, cmp_, cmp_val): ...
def putmem_nbi_warp(dest, source, bytes, pe): ...
def putmem_signal_block(dest, source, bytes, sig_addr, signal, sig_op, pe): ...
def putmem_signal_warp(dest, source, bytes, sig_addr, signal, sig_op, pe): ...
def barrier_all_block(): ...
def team_sync_block(team): ...
def team_n_pes(team): ...
def remote_mc_ptr(team, ptr): ...
def broadcastmem_block(team, dest, source, nelems, pe_root): ...
"""
HIP = """
from triton.language import core

@core.extern
def thread_idx(axis, _semantic=None):
    raise AssertionError

@core.extern
def load_acquire_system(arg0, _semantic=None):
    raise AssertionError

@core.extern
def store_release_system(arg0, arg1, _semantic=None):
    raise AssertionError

@core.extern
def atom_add_relaxed_agent(arg0, arg1, _semantic=None):
    raise AssertionError

@core.extern
def syncthreads(_semantic=None):
    raise AssertionError
"""
SOURCES = {
    "hip": ("triton.language.extra.hip.libdevice", HIP),
    "dl": ("triton_dist.language.distributed_ops", OPS),
    "simt": ("triton_dist.language.simt_ops", SIMT),
    "shmem": ("triton_dist.language.extra.libshmem_device", SHMEM),
}


def library_in(names, tmp_path_factory):
    """Install the modules, and bind a test module's short names to them, until the next `yield`."""
    folder = tmp_path_factory.mktemp("library")
    before = {name: sys.modules.get(name) for name, _ in SOURCES.values()}
    for short, (name, source) in SOURCES.items():
        path = folder / f"{short}.py"
        path.write_text(source)
        spec = importlib.util.spec_from_file_location(name, path)
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        names[short] = module
    yield
    for name, module in before.items():
        del sys.modules[name]
        if module is not None:
            sys.modules[name] = module


NAME = "torch.distributed._symmetric_memory._nvshmem_triton"
STUB = """
import triton
from triton.language import core

@triton.jit
def put(dest, source, nelems, pe):
    return missing_library(dest, source)

@triton.jit
def get(dest, source, nelems, pe):
    return missing_library(dest, source)

@triton.jit
def putmem_signal_block(dst, src, size_bytes, signal, sig_val, sig_op, pe):
    return missing_library(dst, src)

@triton.jit
def signal_wait_until(signal, cmp, cmp_val):
    return missing_library(signal, cmp)

@triton.jit
def wait_until(ivar, cmp_op, cmp_val):
    return missing_library(ivar, cmp_op)

@core.extern
def signal_op(sig_addr, signal, sig_op, pe, _semantic=None):
    raise AssertionError

@core.extern
def fence(_semantic=None):
    raise AssertionError

@core.extern
def my_pe(_semantic=None):
    raise AssertionError

@core.extern
def n_pes(_semantic=None):
    raise AssertionError

@core.extern
def barrier_all(_semantic=None):
    raise AssertionError

@triton.jit
def alltoall(team, dest, source, nelems_per_pe):
    return missing_library(dest, source)

@triton.jit
def broadcast(team, dest, source, nelems, pe_root):
    return missing_library(dest, source)

@triton.jit
def reduce(team, dest, source, nreduce, operation: core.constexpr):
    return missing_library(dest, source)

@triton.jit
def scan(team, dest, source):
    return missing_library(dest, source)
"""


def nvshmem_in(names, tmp_path_factory):
    """Install torch's bindings, and bind a test module's `nv` to them, until the next `yield`."""
    path = tmp_path_factory.mktemp("stub") / "_nvshmem_triton.py"
    path.write_text(STUB)
    spec = importlib.util.spec_from_file_location(NAME, path)
    names["nv"] = sys.modules[NAME] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules[NAME]


def symmetric(shape, dtype):
    tensor = symm_mem.empty(shape, dtype=dtype)
    tensor.fill_(0)
    symm_mem.rendezvous(tensor)
    dist.barrier()
    return tensor


def parts(ctx, rank):
    """Return a buffer to receive into, one to send from, and the signal pad as int64."""
    dist.init_process_group("nccl")
    both = [symm_mem.empty(8, dtype=simrank.float32) for _ in range(2)]
    handles = [symm_mem.rendezvous(tensor) for tensor in both]
    both[1].fill_(float(rank))
    return both[0], both[1], handles[0].get_signal_pad(rank, dtype=simrank.int64), handles
