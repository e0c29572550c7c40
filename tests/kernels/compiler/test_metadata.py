"""The real compiler, which needs no GPU: it takes the corpus, and refuses what simrank refuses."""

import inspect
from contextlib import nullcontext

import numpy as np
import pytest
import triton
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler.errors import CompilationError
from triton.runtime.errors import OutOfResources
from triton.tools.tensor_descriptor import TensorDescriptor

import simrank
from simrank.errors import UnsupportedError
from simrank.kernels.compiler import metadata as operands
from tests.quick import slow_after

from ..corpus_runs import RUNS, Bench

TARGET = GPUTarget("cuda", 90, 32)
NAMES = {
    "float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "int32": "i32", "int64": "i64",
    "int8": "i8", "float8_e4m3fn": "fp8e4nv",
}  # fmt: skip


@pytest.fixture(autouse=True)
def compiler(monkeypatch, tmp_path):
    """Say what the compiler would warn about, and keep its cache out of the user's."""
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "0")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def signature_of(value):
    """Triton's name of an argument's type."""
    if hasattr(value, "block_shape"):
        return f"tensordesc<{NAMES[value.base.dtype.numpy.name]}{list(value.block_shape)}>"
    if hasattr(value, "data_ptr"):
        return f"*{NAMES[value.dtype.numpy.name]}"
    return "fp32" if isinstance(value, float) else "i32"


class Recorder(Bench):
    """Notes what is launched, and launches it."""

    def __init__(self, ctx):
        super().__init__(ctx, "batched")
        self.sources = []

    def launch(self, kernel, grid, *args, **constants):
        bound = dict(zip(kernel.arg_names, args, strict=False))
        types = {name: signature_of(value) for name, value in bound.items()}
        types |= dict.fromkeys(constants, "constexpr")
        self.sources.append((kernel, types, constants))
        super().launch(kernel, grid, *args, **constants)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in RUNS if name != "matmul_block_pointers"])
def test_the_compiler_takes_the_corpus(name):
    """To machine code for Hopper; block pointers are gone from the compiler, not from kernels."""
    with simrank.Context("hgx_h100") as ctx:
        recorders = []

        def body(_rank):
            recorders.append(Recorder(ctx))
            RUNS[name](recorders[0])

        ctx.multiprocessing.spawn(body, nprocs=1)
    for kernel, types, constants in recorders[0].sources:
        ordered = {name: types[name] for name in kernel.arg_names}
        source = ASTSource(fn=kernel, signature=ordered, constexprs=constants)
        assert triton.compile(source, target=TARGET).asm["cubin"]


@triton.jit
def odd_arange(x_ptr):
    tl.store(x_ptr + tl.arange(0, 48), 1.0)


@triton.jit
def reversed_arange(x_ptr):
    tl.store(x_ptr + tl.arange(8, 0), 1.0)


@triton.jit
def odd_shape(x_ptr):
    tl.store(x_ptr + tl.arange(0, 4), tl.sum(tl.zeros((3, 4), tl.float32), 0))


@triton.jit
def shapes_apart(x_ptr):
    tl.store(x_ptr + tl.arange(0, 8), tl.arange(0, 8) + tl.arange(0, 16))


@triton.jit
def too_large(x_ptr):
    x = tl.arange(0, 4096)[:, None] + tl.arange(0, 4096)[None, :]
    tl.store(x_ptr, tl.sum(x))


@triton.jit
def short_dot(x_ptr):
    x = tl.zeros((16, 8), tl.float16)
    tl.store(x_ptr, tl.sum(tl.dot(x, x.T)))


@triton.jit
def mixed_dot(x_ptr):
    x = tl.zeros((32, 32), tl.float16)
    tl.store(x_ptr, tl.sum(tl.dot(x, x.to(tl.float32))))


@triton.jit
def bf16_dot(x_ptr):
    x = tl.zeros((32, 32), tl.float16)
    tl.store(x_ptr, tl.sum(tl.dot(x, x, out_dtype=tl.bfloat16)))


@triton.jit
def wrong_accumulator(x_ptr):
    x = tl.zeros((32, 32), tl.float16)
    tl.store(x_ptr, tl.sum(tl.dot(x, x, acc=tl.zeros((16, 16), tl.float32))))


@triton.jit
def block_through_scalar(x_ptr):
    tl.store(x_ptr, tl.arange(0, 8))


@triton.jit
def other_without_mask(x_ptr):
    tl.store(x_ptr, tl.sum(tl.load(x_ptr + tl.arange(0, 8), other=0.0)))


@triton.jit
def integer_mask(x_ptr):
    lanes = tl.arange(0, 8)
    tl.store(x_ptr + lanes, 1.0, mask=lanes)


@triton.jit
def exponent_of_half(x_ptr):
    tl.store(x_ptr + tl.arange(0, 8), tl.exp(tl.zeros((8,), tl.float16)))


@triton.jit
def division_of_signs(x_ptr):
    x = tl.arange(0, 8)
    tl.store(x_ptr + x, x // x.to(tl.uint32))


@triton.jit
def logical_of_integers(x_ptr):
    x = tl.program_id(0)
    tl.store(x_ptr, x and x)


@triton.jit
def bits_of_another_width(x_ptr):
    tl.store(x_ptr + tl.arange(0, 8), tl.arange(0, 8).to(tl.int64, bitcast=True))


@triton.jit
def cannot_reshape(x_ptr):
    tl.store(x_ptr + tl.arange(0, 8), tl.reshape(tl.arange(0, 16), (8,)))


@triton.jit
def no_such_axis(x_ptr):
    tl.store(x_ptr, tl.sum(tl.zeros((4, 4), tl.float32), axis=2))


@triton.jit
def number_of_no_type(x_ptr):
    tl.store(x_ptr + tl.arange(0, 8), tl.zeros((8,), tl.int8) + 1000)


@triton.jit
def odd_slice(x_ptr):
    x = tl.arange(0, 8)
    tl.store(x_ptr, x[0])


@triton.jit
def not_defined(x_ptr, flag: tl.constexpr):
    if flag:
        x = 1.0
    tl.store(x_ptr, x)


@triton.jit
def failed_assertion(x_ptr):
    tl.static_assert(x_ptr.dtype.element_ty == tl.float16, "it is not fp16")


@triton.jit
def mask_of_another_shape(x_ptr):
    rows = tl.arange(0, 8)[:, None] + tl.arange(0, 16)[None, :]
    tl.load(x_ptr + rows, mask=tl.arange(0, 16)[:, None] < 4)


@triton.jit
def index_of_scalar(x_ptr):
    tl.store(x_ptr + tl.arange(0, 8), tl.load(x_ptr)[:, None])


REFUSED = {
    mask_of_another_shape: "Cannot make_shape_compatible: incompatible dimensions at index 0",
    index_of_scalar: "too many indices for tensor of rank 0",
    odd_arange: "arange's range must be a power of 2",
    reversed_arange: "arange's end argument must be greater than the start argument",
    odd_shape: "must be a power of 2",
    shapes_apart: "Cannot make_shape_compatible: incompatible dimensions at index 0: 8 and 16",
    too_large: "exceeds triton maximum tensor numel",
    short_dot: "Input shapes should have M >= 1, N >= 1 and K >= 16",
    mixed_dot: "Both operands must be same dtype. Got fp16 and fp32",
    bf16_dot: "out_dtype=bfloat16 is unsupported",
    wrong_accumulator: "accumulator shape",
    block_through_scalar: "Value argument cannot be block type",
    other_without_mask: "`other` cannot be provided without `mask`",
    integer_mask: "Mask must have boolean scalar type",
    exponent_of_half: "Expected dtype ['fp32', 'fp64'] but got fp16",
    division_of_signs: "because they have different signedness",
    logical_of_integers: "Cannot bitcast data-type of size 32 to data-type of size 1",
    bits_of_another_width: "Cannot bitcast data-type of size 32 to data-type of size 64",
    cannot_reshape: "reshape() cannot change total number of elements in tensor",
    no_such_axis: "invalid axis 2. Expected -2 <= axis < 2",
    number_of_no_type: "Scalar 1000 is out of range for type int8",
    odd_slice: "unsupported tensor index",
    not_defined: "x",
    failed_assertion: "it is not fp16",
}


# Releases without these words compile the first, and give no cause for the second; simrank does.
LATER = {index_of_scalar: "too many indices for tensor", wrong_accumulator: "accumulator shape"}


def cause_of(error):
    """The text of an error and of what caused it."""
    text = str(error)
    while error.__cause__ is not None:
        error = error.__cause__
        text += f"\n{error}"
    return text


@pytest.mark.parametrize("kernel", REFUSED, ids=lambda kernel: kernel.__name__)
def test_what_the_compiler_refuses_simrank_refuses_in_its_words(kernel):
    """Shapes, types and names."""
    has_flag = "flag" in kernel.arg_names
    signature = {"x_ptr": "*fp32"} | ({"flag": "constexpr"} if has_flag else {})
    flags = {"flag": False} if has_flag else {}
    source = ASTSource(fn=kernel, signature=signature, constexprs=flags)
    theirs = None
    try:
        triton.compile(source, target=TARGET)
    except CompilationError as error:
        theirs = cause_of(error)
    with simrank.Context("hgx_h100") as ctx, pytest.raises(simrank.errors.SpawnException) as ours:

        def body(_rank):
            x = ctx.from_numpy(np.zeros(4096, "f4"))
            kernel[(1,)](x, **flags)
            ctx.cuda.synchronize()

        ctx.multiprocessing.spawn(body, nprocs=1)
    texts = (inspect.getsource(module) for module in (tl.core, tl.semantic))
    if kernel not in LATER or any(LATER[kernel] in text for text in texts):
        assert theirs is not None
        assert REFUSED[kernel] in theirs
    assert REFUSED[kernel] in str(ours.value.errors[0])


@triton.jit
def doubled(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, 2 * tl.load(x_ptr + offs, mask=offs < n), mask=offs < n)


def test_a_kernel_that_is_warmed_up_says_what_it_takes_and_is_launched(run):
    """As programs that size their grid by registers and shared memory do; no GPU is needed."""

    def body(rank, ctx):
        x, out = ctx.arange(100, dtype=simrank.float32), ctx.zeros(100)
        kernel = doubled.warmup(x, out, 100, BLOCK=64, num_warps=2, grid=(1,))
        kernel._init_handles()
        assert kernel.n_regs > 0
        assert kernel.metadata.shared == 0
        assert kernel.metadata.num_warps == 2
        kernel[2, 1, 1](x, out, 100, 64)
        assert out.tolist() == [2.0 * i for i in range(100)]

    run(body, 1)


@triton.jit
def tiles_in_stages(a, b, c, K, N, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK, BLOCK), tl.float32)
    for start in range(0, K, BLOCK):
        left = tl.load(a + at[:, None] * K + start + at[None, :])
        acc = tl.dot(left, tl.load(b + (start + at)[:, None] * N + at[None, :]), acc)
    tl.store(c + at[:, None] * N + at[None, :], acc.to(tl.float16))


unspecialized = triton.jit(do_not_specialize_on_alignment=["a"])(tiles_in_stages.fn)


@pytest.mark.parametrize(
    ("kernel", "offset", "size", "num_tiles"),
    [
        (tiles_in_stages, 0, 256, 6),
        (tiles_in_stages, 1, 256, 4),
        (tiles_in_stages, 0, 257, 2),
        (unspecialized, 0, 256, 4),
    ],
)
def test_a_kernel_is_compiled_for_what_its_arguments_are_multiples_of(
    run, kernel, offset, size, num_tiles
):
    """As for a GPU: what is not known to be a multiple of 16 is neither copied wide nor ahead."""

    def body(rank, ctx):
        a = ctx.empty(size * size + 16, dtype=ctx.float16)[offset:]
        b, c = (ctx.empty(size * size, dtype=ctx.float16) for _ in range(2))
        warm = kernel.warmup(a, b, c, size, size, BLOCK=64, num_stages=3, grid=(1,))
        assert warm.metadata.shared == num_tiles * 64 * 64 * 2

    run(body, 1)


@pytest.mark.slow
def test_a_kernel_that_wants_more_registers_than_there_are_says_how_many_it_spills(run):
    """By the names of Triton's compiled kernels; few warps have many elements each."""

    def body(rank, ctx):
        a, b, c = (ctx.empty(256 * 256, dtype=ctx.float16) for _ in range(3))
        spilled = []
        for warps in (2, 8):
            warm = tiles_in_stages.warmup(a, b, c, 256, 256, BLOCK=128, num_warps=warps, grid=(1,))
            warm._init_handles()
            spilled.append(warm.n_spills)
            assert warm.n_regs <= 255
        assert spilled[0] > 10
        assert spilled[1] == 0

    run(body, 1, cluster="hgx_a100")


@triton.jit
def tiles_by_descriptors(a, b, c, K, BLOCK: tl.constexpr):
    acc = tl.zeros((BLOCK, BLOCK), tl.float32)
    for start in range(0, K, BLOCK):
        acc = tl.dot(a.load([0, start]), b.load([start, 0]), acc)
    c.store([0, 0], acc.to(tl.float16))


def test_descriptors_of_tensors_are_compiled_too(run):
    """Else nobody would know how many programs of Hopper's kernels an SM holds."""

    def body(rank, ctx):
        tensors = (ctx.empty(256, 256, dtype=ctx.float16) for _ in range(3))
        given = [TensorDescriptor.from_tensor(tensor, [64, 64]) for tensor in tensors]
        warm = tiles_by_descriptors.warmup(*given, 256, BLOCK=64, num_stages=3, grid=(1,))
        assert "cp.async.bulk.tensor" in warm.asm["ptx"]
        assert warm.metadata.shared >= 6 * 64 * 64 * 2

    run(body, 1)


@pytest.mark.parametrize(
    ("stages", "fits", "num_programs"),
    slow_after(1, [(16, False, 1), (3, True, 1), (3, True, 200), (16, False, 200)]),
)
def test_a_program_that_takes_more_shared_memory_than_there_is_is_refused_as_on_a_gpu(
    run, stages, fits, num_programs
):
    """Where its kernel is loaded, and where the compiler is asked for a launch."""

    def body(rank, ctx):
        a, b, c = (ctx.empty(1024 * 1024, dtype=ctx.float16) for _ in range(3))
        options = {"BLOCK": 64, "num_stages": stages}
        warm = tiles_in_stages.warmup(a, b, c, 1024, 1024, **options, grid=(1,))
        reported = nullcontext() if fits else pytest.raises(OutOfResources, match="shared memory")
        with reported:
            warm._init_handles()
        with nullcontext() if fits else pytest.raises(OutOfResources, match="limit: 232448"):
            tiles_in_stages[(num_programs,)](a, b, c, 1024, 1024, **options)
            ctx.synchronize()

    run(body, 1)


def test_a_block_that_no_sm_has_registers_for_is_not_compiled(run, monkeypatch):
    """Triton's compiler takes minutes for it; who computes with one program means no GPU."""
    asked = []
    monkeypatch.setattr("simrank.kernels.operation.resources", lambda *_: asked.append(1))

    def body(rank, ctx):
        for block, is_asked in ((512, False), (256, True)):
            a, b, c = (ctx.empty(block * block, dtype=ctx.float16) for _ in range(3))
            tiles_in_stages[(1,)](a, b, c, block, block, BLOCK=block)
            ctx.synchronize()
            assert bool(asked) == is_asked

    run(body, 1)


tuned_in_stages = triton.autotune(
    configs=[triton.Config({"BLOCK": 128}, num_stages=stages) for stages in (8, 2)], key=["K"]
)(tiles_in_stages)


@pytest.mark.slow
def test_autotune_leaves_out_what_does_not_fit(run):
    """As on a GPU, where such a configuration counts as one that never ends."""

    def body(rank, ctx):
        a, b, c = (ctx.empty(1024 * 1024, dtype=ctx.float16) for _ in range(3))
        tuned_in_stages[(200,)](a, b, c, 1024, 1024)
        assert tuned_in_stages.best_config.num_stages == 2

    run(body, 1)


def test_an_integer_that_is_one_is_a_constant_for_the_compiler(run):
    """So strides of one are known to it: what lies side by side is loaded together."""

    def body(rank, ctx):
        a, b, c = (ctx.empty(64 * 64, dtype=ctx.float16) for _ in range(3))
        for size in (1, 2):
            warm = tiles_in_stages.warmup(a, b, c, size, size, BLOCK=64, grid=(1,))
            assert ("%K: i32" in warm.asm["ttir"]) == (size == 2)

    run(body, 1)


@triton.jit
def doubled_in_stages(x_ptr, BLOCK: tl.constexpr, num_stages: tl.constexpr):
    for start in tl.range(0, 64, BLOCK, num_stages=num_stages):
        offs = start + tl.arange(0, BLOCK)
        tl.store(x_ptr + offs, 2 * tl.load(x_ptr + offs))


def test_a_warmed_kernel_takes_an_option_that_is_an_argument_by_position(run):
    """A kernel that wants to know its `num_stages` is given them twice: once for the compiler."""

    def body(rank, ctx):
        x = ctx.ones(64)
        kernel = doubled_in_stages.warmup(x, BLOCK=16, num_stages=4, grid=(1,))
        kernel[1, 1, 1](x, 16, 4)
        assert x.tolist() == [2.0] * 64

    run(body, 1)


@triton.jit
def scaled_and_moved(x):
    tl.store(x, tl.exp2(tl.load(x)) * 1.5 + 1.0)


@pytest.mark.slow
def test_options_and_knobs_of_the_compiler_reach_the_assembly(run, monkeypatch):
    """Fusion of products, flushing of small numbers, and the architecture."""
    language, runtime = triton.knobs.language, triton.knobs.runtime

    def body(rank, ctx):
        x = ctx.ones(16)

        def assembly(stage="ptx", **options):
            launched = scaled_and_moved[(1,)](x, **options)
            warm = scaled_and_moved.warmup(x, grid=(1,), **options)
            assert launched.asm[stage] == warm.asm[stage]
            return warm.asm[stage]

        for fuses in (True, False):
            assert ("fma.rn.f32" in assembly(enable_fp_fusion=fuses)) == fuses
            with monkeypatch.context() as patch:
                patch.setattr(language, "default_fp_fusion", fuses)
                assert ("fma.rn.f32" in assembly()) == fuses
        for flushes in (True, False):
            text = assembly(enable_fp_fusion=False, enable_reflect_ftz=flushes)
            assert ("ex2.approx.ftz.f32" in text) == flushes
        for arch in (80, 90):
            assert f"cuda:{arch}" in assembly("ttgir", arch=f"sm{arch}", enable_fp_fusion=False)
            with monkeypatch.context() as patch:
                patch.setattr(runtime, "override_arch", f"sm{arch}")
                assert f"cuda:{arch}" in assembly("ttgir", enable_fp_fusion=False)

    run(body, 1)


@triton.jit
def stores_at_seven(x: tl.const, n):
    if n == 7:
        tl.store(x, 1.0)


@triton.jit
def stores_in_rounds(x: tl.const, n):
    for number in range(n):
        tl.store(x + number, 1.0)


@triton.jit
def stores_after_return(x: tl.const, n):
    if n == 0:
        return
    tl.store(x, 1.0)


@triton.jit
def store_one(pointer):
    tl.store(pointer, 1.0)


@triton.jit
def stores_by_a_function(x: tl.const, n):
    while n > 0:
        store_one(x)
        n -= 1


@triton.jit
def stores_if_asked(x: tl.const, n, STORES: tl.constexpr):
    if STORES:
        tl.store(x, n)


@pytest.mark.parametrize(
    "kernel", [stores_at_seven, stores_in_rounds, stores_after_return, stores_by_a_function]
)
def test_a_store_through_a_constant_pointer_is_refused_where_no_program_reaches_it(run, kernel):
    """As by the compiler, which reads all of the source."""

    def body(rank, ctx):
        with pytest.raises(CompilationError) as caught:
            kernel[(1,)](ctx.ones(4), 0)
        assert "Cannot store to a constant pointer" in _whole(caught.value)

    run(body, 1)


def _whole(error):
    """Return the text of an error and of its causes: one per function that calls another."""
    return str(error) + (_whole(error.__cause__) if error.__cause__ else "")


def test_a_store_that_a_compile_time_constant_leaves_out_is_none(run):
    """The pointer is only read."""

    def body(rank, ctx):
        x = ctx.ones(4)
        stores_if_asked[(1,)](x, 2, STORES=False)
        assert x.tolist() == [1.0] * 4

    run(body, 1)


def test_a_kernel_is_warmed_up_for_types_alone(run):
    """Where there are no tensors yet: torch's dtypes stand for them."""
    torch = pytest.importorskip("torch")

    def body(rank, ctx):
        types = torch.float32, torch.bfloat16
        kernel = doubled.warmup(*types, 100, BLOCK=64, grid=(1,))
        assert ".bf16" in kernel.asm["ptx"] or ".b16" in kernel.asm["ptx"]
        assert kernel.metadata.num_warps == 4

    run(body, 1)


def test_a_warmup_for_devices_without_cuda_is_refused_by_name(run):
    """Registers and shared memory of AMD's compiler mean other things."""

    def body(rank, ctx):
        with pytest.raises(UnsupportedError, match=r"warmup of kernel 'doubled': .*MI300"):
            doubled.warmup(ctx.zeros(4), ctx.zeros(4), 4, BLOCK=4, grid=(1,))

    run(body, 1, cluster="mi300x")


# ---- What warps read of shared memory for their dots ----

MULTIPLY = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1}, {%r1}, {%r2}, {%f1};\n"
READ = "ldmatrix.sync.aligned.m8n8.x{}.shared.b16 {{%r1}}, [%r2];\n"
FLOPS = 2 * 16 * 8 * 16


def loop(label, body):
    """A loop as LLVM writes it."""
    return f"$L__BB0_{label}: // Header: Depth=1\n{body}@%p1 bra $L__BB0_{label};\n"


@given(st.integers(1, 9), st.integers(0, 9), st.sampled_from([1, 2, 4]), st.integers(0, 9))
def test_loops_count_and_what_is_around_them_does_not(num_dots, num_reads, width, num_outside):
    """It runs once, where a loop runs many times."""
    body = MULTIPLY * num_dots + READ.format(width) * num_reads
    around = READ.format(4) * num_outside
    found = operands.operand_bytes_per_flop(around + loop(2, body) + around)
    assert found == pytest.approx(num_reads * width * 128 / (num_dots * FLOPS))


def test_of_nested_loops_the_innermost_with_dots_count():
    """A loop without dots within one that has them is no better a sample, so the outer counts."""
    inner = loop(3, MULTIPLY + READ.format(4))
    nested = loop(2, READ.format(4) * 7 + inner)
    assert operands.operand_bytes_per_flop(nested) == pytest.approx(512 / FLOPS)
    others = loop(2, MULTIPLY + READ.format(2) + loop(3, "add.s32 %r1, %r1, 1;\n"))
    assert operands.operand_bytes_per_flop(others) == pytest.approx(256 / FLOPS)


def test_without_loops_all_of_it_counts():
    """A short loop is unrolled."""
    assert operands.operand_bytes_per_flop(MULTIPLY + READ.format(4)) == pytest.approx(512 / FLOPS)


@pytest.mark.parametrize("ptx", ["", READ.format(4), "wgmma.mma_async.sync.aligned.m64n64k16;"])
def test_without_dots_of_warps_nothing_is_read_for_them(ptx):
    """Groups of warps read as they multiply."""
    assert operands.operand_bytes_per_flop(ptx) == 0.0


def test_a_branch_ahead_is_no_loop():
    """An `if` around reads makes no loop of them."""
    skipped = "@%p1 bra $L__BB0_4;\n" + READ.format(4) + "$L__BB0_4:\n"
    found = operands.operand_bytes_per_flop(skipped + loop(5, MULTIPLY + READ.format(1)))
    assert found == pytest.approx(128 / FLOPS)
