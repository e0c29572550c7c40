"""Kernels on channels and plain symmetric memory: right numbers, back-pressure, hangs told."""

import re

import numpy as np
import pytest
import triton
import triton.language as tl

import simrank
import simrank.distributed as dist
from simrank.collectives import Problem
from simrank.collectives.reference import count_wrong
from simrank.errors import DeadlockError
from simrank.kernels import channels
from simrank.kernels.algorithms import KernelAlgorithm

KERNELS = ("ring_all_reduce", "one_shot_all_reduce", "two_shot_all_reduce", "all_gather",
           "reduce_scatter", "all_to_all")  # fmt: skip


def algorithm_of(name, **options):
    """Return a kernel of benches/kernels with small slots."""
    options = {"num_channels": 2, "num_slots": 2, "slot_size": 64, **options}
    return KernelAlgorithm(name, f"benches.kernels.{name}", options)


def played(run, name, num_ranks, count, dtype="float32", *, times=1, absent=(), **options):
    """Run a kernel on numbers and return how many elements are wrong, and the operations."""
    algorithm = algorithm_of(name, **options)
    problem = Problem(algorithm.collective, num_ranks, count)
    sends = count * (num_ranks if algorithm.collective in ("reduce_scatter", "all_to_all") else 1)
    takes = count * (num_ranks if algorithm.collective in ("all_gather", "all_to_all") else 1)
    generator = np.random.default_rng(3)
    kind = simrank.device.as_dtype(dtype).numpy
    inputs = [(generator.integers(-8, 8, sends) / 4).astype(kind) for _ in range(num_ranks)]
    outputs, operations = [None] * num_ranks, []

    def body(rank, ctx):
        dist.init_process_group("nccl")
        source, target = ctx.from_numpy(inputs[rank]), ctx.empty(takes, dtype=dtype)
        prepared = algorithm.prepare(count, dtype)
        if rank in absent:
            return
        operations.extend(prepared.launch(source, target) for _ in range(times))
        outputs[rank] = target.numpy()

    run(body, num_ranks)
    return count_wrong(problem, inputs, outputs, reduce_op="sum"), operations


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(("num_ranks", "count"), [(2, 40), (3, 17), (1, 9)])
def test_kernels_leave_the_right_numbers(run, name, num_ranks, count):
    """Counts that fill no slot, and several."""
    num_wrong, operations = played(run, name, num_ranks, count)
    assert num_wrong == 0
    assert {operation.mode for operation in operations} == {"tasks"}


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("num_ranks", [2, 4, 8])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("count", [8, 1000])
def test_kernels_leave_the_right_numbers_on_more_ranks(run, name, num_ranks, dtype, count):
    """Several dtypes and sizes."""
    assert played(run, name, num_ranks, count, dtype)[0] == 0


@pytest.mark.parametrize("name", ["ring_all_reduce", "all_to_all"])
def test_flags_count_on_from_launch_to_launch(run, name):
    """Three launches in a row need no reset."""
    assert played(run, name, 2, 40, times=3)[0] == 0


@pytest.mark.parametrize("name", ["ring_all_reduce", "all_gather", "all_to_all"])
def test_one_slot_is_enough_and_slower(run, name):
    """The sender waits for its credit: back-pressure."""
    wrong_one, one = played(run, name, 2, 100, num_slots=1, num_channels=1)
    wrong_four, four = played(run, name, 2, 100, num_slots=4, num_channels=1)
    assert wrong_one == wrong_four == 0
    assert one[0].cost.duration_ps > four[0].cost.duration_ps


def test_another_seed_gives_the_same_numbers(run):
    """Stores may overtake each other, but never their flag."""

    def seeded(fn, nprocs):
        return run(fn, nprocs, seed=11)

    assert played(seeded, "ring_all_reduce", 3, 50)[0] == 0


@pytest.mark.parametrize("name", ["ring_all_reduce", "one_shot_all_reduce"])
def test_a_rank_that_does_not_launch_hangs_the_others_by_name(run, name):
    """Kernel, programs and the user's line."""
    with pytest.raises(DeadlockError) as caught:
        played(run, name, 2, 40, absent=(1,))
    text = str(caught.value)
    assert "kernel 'kernel' programs 0-1 wait for a change of bytes 0, " in text
    assert "rank 1: returned" in text


@triton.jit
def meet(pads, rank, WORLD_SIZE: tl.constexpr):
    channels.barrier(pads, tl.program_id(0) * (WORLD_SIZE + 1), rank, WORLD_SIZE)


def test_the_report_of_a_hang_has_one_line_for_ranks_in_the_same_state(run):
    """Which programs of which kernel wait for which bytes, and who never came."""
    import simrank.distributed.symmetric_memory as symm_mem

    def body(rank, ctx):
        dist.init_process_group("nccl")
        buffer = symm_mem.empty(4)
        handle = symm_mem.rendezvous(buffer)
        if rank != 2:
            meet[(3,)](handle.signal_pad_ptrs_dev, rank, WORLD_SIZE=4)
        ctx.synchronize()

    with pytest.raises(DeadlockError) as caught:
        run(body, 4)
    text = re.sub(r"py:\d+", "py", str(caught.value))
    assert text == (
        "deadlock (proved) at t=17.601 us: 3 rank(s) wait forever\n"
        "  ranks 0-1, 3: meet at test_channels.py\n"
        "  ranks 0-1, 3: kernel 'meet' programs 0-2 wait for a change of bytes 0, 20, 40 of a "
        "buffer of its own device (allocated at test_channels.py) at test_channels.py\n"
        "  rank 2: returned"
    )


@triton.jit
def pass_on(pads, rank, out):
    if rank == 0:
        channels.put_signal(pads, 5, 1)
        channels.put_signal(pads, 5, 1)
    else:
        channels.wait_signal(pads, 5, rank)
        channels.wait_signal(pads, 5, rank)
    tl.store(out, 1)


def test_signals_of_kernels_pair_up_and_leave_zeros(run):
    """A second signal waits until the first was taken."""
    import simrank.distributed.symmetric_memory as symm_mem

    def body(rank, ctx):
        dist.init_process_group("nccl")
        buffer = symm_mem.empty(4)
        handle = symm_mem.rendezvous(buffer)
        out = ctx.zeros(1, dtype=simrank.int32)
        pass_on[(1,)](handle.signal_pad_ptrs_dev, rank, out)
        assert out.item() == 1
        assert handle.get_signal_pad(rank).sum().item() == 0

    run(body, 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_compile_for_a_real_gpu(name, monkeypatch):
    """The same source gives code for an H100."""
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "0")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = algorithm_of(name).kernel
    types = {"source": "*bf16", "target": "*bf16", "buffers": "i64", "pads": "i64", "count": "i32",
             "rank": "i32"}  # fmt: skip
    constants = {"WORLD_SIZE": 8, "NUM_SLOTS": 4, "SLOT": 1024}
    signature = {**types, **dict.fromkeys(constants, "constexpr")}
    source = ASTSource(kernel, signature=signature, constexprs=constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32))
    assert "cubin" in compiled.asm
