"""Inline PTX: instructions against Python, packing as Triton has it, refusals by name."""

import ml_dtypes
import numpy as np
import pytest

import simrank
import simrank.distributed as dist
import simrank.distributed.symmetric_memory as symm_mem
from simrank.errors import UnsupportedError

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

from simrank.kernels.memory.illegal import IllegalAccessError  # noqa: E402 - it needs triton


@triton.jit
def unary(
    x, out, ASM: tl.constexpr, CONSTRAINTS: tl.constexpr, KIND: tl.constexpr, N: tl.constexpr
):
    offs = tl.program_id(0) * N + tl.arange(0, N)
    found = tl.inline_asm_elementwise(
        ASM, CONSTRAINTS, [tl.load(x + offs)], dtype=KIND, is_pure=True, pack=1
    )
    tl.store(out + offs, found)


def applied(run, asm, values, *, kind, constraints="=r,r", out=None):
    """Return what assembly makes of an array."""
    found = []

    def body(rank, ctx):
        x = ctx.from_numpy(values)
        result = ctx.zeros(len(values), dtype=out or values.dtype)
        unary[(2,)](x, result, ASM=asm, CONSTRAINTS=constraints, KIND=kind, N=len(values) // 2)
        found.append(result.numpy())

    run(body, 1)
    return found[0]


INTS = np.array([0, 1, -1, 7, -8, 123456789, -(2**31), 2**31 - 1], np.int32)
WORDS = INTS.view(np.uint32).astype(object)
CASES = {
    "add.s32 $0, $1, 5;": lambda v: v + 5,
    "sub.u32 $0, 1, $1;": lambda v: 1 - v,
    "mul.lo.u32 $0, $1, $1;": lambda v: v * v,
    "mul.hi.u32 $0, $1, $1;": lambda v: v * v >> 32,
    "mad.lo.s32 $0, $1, 3, -4;": lambda v: v * 3 - 4,
    "shl.b32 $0, $1, 4;": lambda v: v << 4,
    "shl.b32 $0, $1, 40;": lambda v: 0,
    "shr.u32 $0, $1, 4;": lambda v: v >> 4,
    "and.b32 $0, $1, 0xFF;": lambda v: v & 255,
    "xor.b32 $0, $1, -1;": lambda v: ~v,
    "not.b32 $0, $1;": lambda v: ~v,
    "popc.b32 $0, $1;": lambda v: v.bit_count(),
    "clz.b32 $0, $1;": lambda v: 32 - v.bit_length(),
    "bfe.u32 $0, $1, 4, 8;": lambda v: v >> 4 & 255,
    "lop3.b32 $0, $1, 0xF0F0F0F0, 0x0F0F0F0F, 0xCA;": lambda v: (
        (v & 0xF0F0F0F0) | (~v & 0x0F0F0F0F)
    ),
    "prmt.b32 $0, $1, 0, 0x0123;": lambda v: int.from_bytes(v.to_bytes(4, "little"), "big"),
    "max.u32 $0, $1, 9;": lambda v: max(v, 9),
    "{ .reg .pred p; setp.gt.u32 p, $1, 7; selp.b32 $0, 1, 2, p; }": lambda v: 1 if v > 7 else 2,
    "{ .reg .pred %p<2>; setp.lt.u32 %p0|%p1, $1, 7; @%p0 mov.u32 $0, 3; @!%p0 mov.u32 $0, 4; }": (
        lambda v: 3 if v < 7 else 4
    ),
    "{ .reg .b16 lo, hi; mov.b32 {lo, hi}, $1; mov.b32 $0, {hi, lo}; }": lambda v: (
        v >> 16 | v << 16
    ),
    "{ .reg .pred p; setp.eq.u32 p, $1, 0; mov.u32 $0, 1; @p bra end; mov.u32 $0, 2; end: }": (
        lambda v: 2 if v else 1
    ),
    "{ .reg .u64 %w; mul.wide.u32 %w, $1, 16; shr.u64 %w, %w, 32; cvt.u32.u64 $0, %w; }": (
        lambda v: v * 16 >> 32
    ),
    "cvt.sat.u32.s32 $0, $1;": lambda v: v if v < 2**31 else 0,
    "cvt.s32.s8 $0, $1;": lambda v: int(np.uint8(v & 255).view(np.int8)),
}


@pytest.mark.parametrize("asm", CASES, ids=lambda asm: asm.split()[0 if asm[0] != "{" else 1])
def test_integer_instructions_give_what_python_gives(run, asm):
    """Modulo 2**32."""
    found = applied(run, asm, INTS, kind=tl.int32).view(np.uint32)
    assert found.tolist() == [CASES[asm](int(word)) & 0xFFFFFFFF for word in WORDS]


FLOATS = np.array([0.5, 1.0, 2.0, 3.75, 0.1, 10.0, 0.25, 100.0], np.float32)
FLOAT_CASES = {
    "rcp.approx.ftz.f32 $0, $1;": lambda v: np.float32(1) / v,
    "ex2.approx.f32 $0, $1;": np.exp2,
    "lg2.approx.f32 $0, $1;": np.log2,
    "sqrt.rn.f32 $0, $1;": np.sqrt,
    "tanh.approx.f32 $0, $1;": np.tanh,
    "fma.rn.f32 $0, $1, $1, 0f3F800000;": lambda v: (
        v.astype(np.float64) * v.astype(np.float64) + 1
    ).astype(np.float32),
    "max.f32 $0, $1, 2.5;": lambda v: np.maximum(v, np.float32(2.5)),
    "neg.f32 $0, $1;": lambda v: -v,
    "cvt.rni.f32.f32 $0, $1;": np.rint,
}


@pytest.mark.parametrize("asm", FLOAT_CASES, ids=lambda asm: asm.split()[0])
def test_float_instructions_give_what_numpy_gives(run, asm):
    """Approximations are exact here."""
    found = applied(run, asm, FLOATS, kind=tl.float32, constraints="=f,f")
    assert np.array_equal(found, FLOAT_CASES[asm](FLOATS))


def test_conversions_round_and_saturate(run):
    """To integers toward zero; NaN gives zero."""
    values = np.array([1.9, -1.9, 3e10, np.nan], np.float32)
    found = applied(
        run, "cvt.rzi.s32.f32 $0, $1;", values, kind=tl.int32, constraints="=r,f", out="int32"
    )
    assert found.tolist() == [1, -1, 2**31 - 1, 0]


@triton.jit
def unpack_bytes(a, b, c, d, N: tl.constexpr):
    offs = tl.arange(0, N)
    (first, second) = tl.inline_asm_elementwise(
        asm="""
        {
            // Unpack `a`.
            .reg .b8 tmp<4>;
            mov.b32 {tmp0, tmp1, tmp2, tmp3}, $8;
            cvt.u32.u8 $0, tmp0;
            cvt.u32.u8 $1, tmp1;
            cvt.u32.u8 $2, tmp2;
            cvt.u32.u8 $3, tmp3;
        }
        cvt.rn.f32.s32 $4, $0;
        cvt.rn.f32.s32 $5, $1;
        cvt.rn.f32.s32 $6, $2;
        cvt.rn.f32.s32 $7, $3;
        max.f32 $4, $4, $9;
        max.f32 $5, $5, $10;
        max.f32 $6, $6, $11;
        max.f32 $7, $7, $12;
        """,
        constraints="=r,=r,=r,=r,=r,=r,=r,=r,r,r,r,r,r",
        args=[tl.load(a + offs), tl.load(b + offs)],
        dtype=(tl.int32, tl.float32),
        is_pure=True,
        pack=4,
    )
    tl.store(c + offs, first)
    tl.store(d + offs, second)


def test_narrow_elements_share_registers_as_in_tritons_own_example(run):
    """Four bytes are in one register, four floats in four."""

    def body(rank, ctx):
        a = np.arange(250, 266).astype(np.uint8)
        b = np.linspace(0, 300, 16).astype(np.float32)
        c, d = ctx.zeros(16, dtype=simrank.int32), ctx.zeros(16)
        unpack_bytes[(1,)](ctx.from_numpy(a), ctx.from_numpy(b), c, d, N=16)
        assert c.tolist() == a.tolist()
        assert d.tolist() == np.maximum(a.astype(np.float32), b).tolist()

    run(body, 1)


@triton.jit
def pairs(x, y, out, N: tl.constexpr):
    offs = tl.arange(0, N)
    found = tl.inline_asm_elementwise(
        "fma.rn.bf16x2 $0, $1, $2, $2;",
        "=r,r,r",
        [tl.load(x + offs), tl.load(y + offs)],
        dtype=tl.bfloat16,
        is_pure=True,
        pack=2,
    )
    tl.store(out + offs, found)


def test_pairs_of_bfloat16_are_computed_side_by_side(run):
    """Each rounded once."""

    def body(rank, ctx):
        x = np.linspace(-3, 3, 8).astype(ml_dtypes.bfloat16)
        y = np.linspace(1, 2, 8).astype(ml_dtypes.bfloat16)
        out = ctx.zeros(8, dtype=simrank.bfloat16)
        pairs[(1,)](ctx.from_numpy(x), ctx.from_numpy(y), out, N=8)
        wide = x.astype(np.float64) * y.astype(np.float64) + y.astype(np.float64)
        assert np.array_equal(out.numpy(), wide.astype(np.float32).astype(ml_dtypes.bfloat16))

    run(body, 1)


@triton.jit
def to_fp8(x, out, N: tl.constexpr):
    offs = tl.arange(0, N)
    found = tl.inline_asm_elementwise(
        "cvt.rn.satfinite.e4m3x2.f32 $0, $2, $1;",
        "=h,r,r",
        [tl.load(x + offs)],
        dtype=tl.float8e4nv,
        is_pure=True,
        pack=2,
    )
    tl.store(out + offs, found)


def test_pairs_of_fp8_saturate(run):
    """The first source of the instruction goes to the upper half."""

    def body(rank, ctx):
        x = np.array([0.3, -1.0, 500.0, 448.0], np.float32)
        out = ctx.zeros(4, dtype=simrank.float8_e4m3fn)
        to_fp8[(1,)](ctx.from_numpy(x), out, N=4)
        assert out.float().tolist() == [0.3125, -1.0, 448.0, 448.0]

    run(body, 1)


@triton.jit
def four_bit_pairs(x, out, wide, N: tl.constexpr):
    offs = tl.arange(0, N)
    low, high = tl.split(tl.load(x + tl.arange(0, 2 * N)).reshape((N, 2)))
    packed = tl.inline_asm_elementwise(
        """
        {
            .reg .b8 pair;
            cvt.rn.satfinite.e2m1x2.f32 pair, $2, $1;
            cvt.u32.u8 $0, pair;
        }
        """,
        "=r,r,r", [low, high], dtype=tl.int32, is_pure=True, pack=1,
    )  # fmt: skip
    tl.store(out + offs, packed)
    both = tl.inline_asm_elementwise(
        "{ .reg .b8 pair; cvt.u8.u32 pair, $1; cvt.rn.f16x2.e2m1x2 $0, pair; }",
        "=r,r", [packed], dtype=tl.int32, is_pure=True, pack=1,
    )  # fmt: skip
    tl.store(wide + 2 * offs, (both & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True))
    tl.store(wide + 2 * offs + 1, (both >> 16).to(tl.int16).to(tl.float16, bitcast=True))


def test_pairs_of_four_bit_floats_round_to_even_and_saturate(run):
    """The first source of the instruction goes to the upper four bits, and comes back from them."""
    given = np.float32([0.25, 0.75, 1.25, -1.75, 2.5, 5.0, 100, -np.inf])
    wanted = [0.0, 1.0, 1.0, -2.0, 2.0, 4.0, 6.0, -6.0]

    def body(rank, ctx):
        out, wide = ctx.zeros(4, dtype=simrank.int32), ctx.zeros(8, dtype=simrank.float16)
        four_bit_pairs[(1,)](ctx.from_numpy(given), out, wide, N=4)
        assert wide.tolist() == wanted
        assert out.tolist() == [0x20, 0xC2, 0x64, 0xF7]

    run(body, 1)


@pytest.mark.parametrize(
    ("rounding", "wanted"),
    [("rp", [127, 128, 128, 0, 254, 255, 129, 0]), ("rz", [127, 127, 127, 0, 254, 255, 129, 0])],
)
def test_powers_of_two_are_rounded_up_or_toward_zero(run, rounding, wanted):
    """The scales of microscaling formats: a biased exponent of eight bits."""
    asm = (
        f"{{ .reg .b16 p; cvt.{rounding}.satfinite.ue8m0x2.f32 p, 0f00000000, $1; "
        "cvt.u32.u16 $0, p; }"
    )
    given = np.float32([1.0, 1.5, -1.1, 0.0, np.inf, np.nan, 4.0, 2.0**-127])
    found = applied(run, asm, given, kind=tl.int32, out=simrank.int32)
    assert (found & 0xFF).tolist() == wanted


@triton.jit
def who(out, asm_unused):
    pid = tl.program_id(0)
    block, blocks, threads = tl.inline_asm_elementwise(
        "mov.u32 $0, %ctaid.x; mov.u32 $1, %nctaid.x; mov.u32 $2, %ntid.x;",
        "=r,=r,=r", [], dtype=(tl.int32, tl.int32, tl.int32), is_pure=True, pack=1,
    )  # fmt: skip
    tl.store(out + pid * 3, block)
    tl.store(out + pid * 3 + 1, blocks)
    tl.store(out + pid * 3 + 2, threads)


def test_special_registers_say_who_runs_even_in_lockstep(run):
    """One lane stands for 32 x num_warps threads."""

    def body(rank, ctx):
        out = ctx.zeros(12, dtype=simrank.int32)
        operation = who[(4,)](out, 0, num_warps=8)
        assert operation.mode == "batched"
        assert out.tolist() == [n for pid in range(4) for n in (pid, 4, 256)]

    run(body, 1)


@triton.jit
def atomics(x, out):
    old = tl.inline_asm_elementwise(
        """
        atom.global.relaxed.gpu.add.u32 $0, [$1], 5;
        red.relaxed.gpu.global.max.u32 [$1+4], 9;
        atom.global.gpu.inc.u32 $0, [$1+8], 3;
        st.global.u32 [$1+12], 77;
        ld.global.v2.u32 {$0, _}, [$1];
        """,
        "=&r,l", [x], dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip
    tl.store(out + tl.program_id(0), old)


def test_atomics_of_each_program_take_effect_one_after_the_other(run):
    """`inc` starts over at its limit; vectors are loaded element by element."""

    def body(rank, ctx):
        x = ctx.tensor([1, 2, 3, 4], dtype=simrank.int32)
        out = ctx.zeros(3, dtype=simrank.int32)
        atomics[(3,)](x, out)
        assert x.tolist() == [16, 9, 2, 77]
        assert max(out.tolist()) == 16

    run(body, 1)


@triton.jit
def bounded_wait(flag, out):
    rounds = tl.inline_asm_elementwise(
        """
        {
            .reg .pred %p<2>;
            .reg .u32 %v, %n;
            mov.u32 %n, 0;
            again:
                add.u32 %n, %n, 1;
                nanosleep.u32 100;
                ld.acquire.sys.u32 %v, [$1];
                setp.ne.u32 %p0, %v, 0;
                setp.lt.and.u32 %p1, %n, 20, !%p0;
                @%p0 bra done;
                setp.lt.u32 %p1, %n, 20;
                @%p1 bra again;
            done:
            mov.u32 $0, %n;
        }
        """,
        "=r,l", [flag], dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip
    tl.store(out, rounds)


def test_a_loop_that_counts_its_rounds_ends_by_itself(run):
    """It is polled in time, not parked for ever."""

    def body(rank, ctx):
        out = ctx.zeros(1, dtype=simrank.int32)
        bounded_wait[(1,)](ctx.zeros(1, dtype=simrank.int32), out)
        assert out.item() == 20

    run(body, 1)


@pytest.mark.parametrize(
    ("asm", "constraints", "named"),
    [
        ("mbarrier.init.shared.b64 [$1], 1;", "=r,r", "mbarrier.init.shared.b64"),
        ("shfl.sync.bfly.b32 $0, $1, 1, 31, -1;", "=r,r", "shfl.sync.bfly.b32"),
        ("ld.shared.u32 $0, [$1];", "=r,r", "ld.shared.u32"),
        ("mov.u32 $0, %lanemask_lt;", "=x,r", "the constraint '=x'"),
        ("bra nowhere; mov.u32 $0, $1;", "=r,r", "'nowhere'"),
    ],
)
def test_what_is_not_emulated_is_refused_by_name(run, asm, constraints, named):
    """Instead of a wrong number."""
    with pytest.raises(Exception, match="inline assembly") as caught:
        applied(run, asm, INTS, kind=tl.int32, constraints=constraints)
    assert named in str(caught.value)


@triton.jit
def timed_on_amd(x, out, clock):
    tl.inline_asm_elementwise("s_waitcnt vmcnt(0)", "=r", [], dtype=tl.int32, is_pure=False, pack=1)
    now = tl.inline_asm_elementwise(
        """s_waitcnt vmcnt(0)
        s_memrealtime $0
        s_waitcnt lgkmcnt(0)""",
        "=s", [], dtype=tl.int64, is_pure=False, pack=1,
    )  # fmt: skip
    tl.store(clock + tl.program_id(0), now)
    tl.store(out + tl.program_id(0), tl.load(x + tl.program_id(0)))


def test_waits_and_the_clock_of_amd_are_known(run):
    """Its counter runs at 100 MHz; other instructions of AMD's are refused by name."""

    def body(rank, ctx):
        out, clock = ctx.zeros(2), ctx.zeros(2, dtype=simrank.int64)
        for _ in range(2):
            before_ps = ctx.now_ps
            timed_on_amd[(2,)](ctx.ones(2), out, clock)
            ctx.synchronize()
            assert before_ps // 10_000 <= min(clock.tolist()) <= ctx.now_ps // 10_000
        assert out.tolist() == [1.0, 1.0]
        with pytest.raises(simrank.errors.UnsupportedError, match="s_getreg_b32"):
            unary[(1,)](
                ctx.zeros(2), out, ASM="s_getreg_b32 $0, hwreg(HW_REG_XCC_ID, 0, 16)",
                CONSTRAINTS="=s,r", KIND=tl.int32, N=2,
            )  # fmt: skip
            ctx.synchronize()

    run(body, 1, cluster="mi300x")


@triton.jit
def send_pairs(pads, rank, N: tl.constexpr):
    lanes = tl.arange(0, N)
    there = tl.load(pads + 1 - rank).to(tl.pointer_type(tl.int32)) + 2 * lanes
    tl.inline_asm_elementwise(
        "st.volatile.global.v2.b32 [$1], {$2, $3}; mov.u32 $0, 0;",
        "=r,l,r,r",
        [there, lanes + 100, lanes * 0 + 1],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def receive_pairs(pads, out, rank, N: tl.constexpr):
    lanes = tl.arange(0, N)
    here = tl.load(pads + rank).to(tl.pointer_type(tl.int32)) + 2 * lanes
    arrived = 0
    while arrived < N:
        data, flag = tl.inline_asm_elementwise(
            "ld.volatile.global.v2.b32 {$0, $1}, [$2];",
            "=r,=r,l",
            [here],
            dtype=(tl.int32, tl.int32),
            is_pure=False,
            pack=1,
        )
        arrived = tl.sum(flag)
    tl.store(out + lanes, data)


@pytest.mark.parametrize("seed", [4, 5, 8, 9])
def test_a_vector_is_loaded_and_stored_at_one_time(run, seed):
    """Who sees the flag beside data sees the data."""

    def body(rank, ctx):
        dist.init_process_group("nccl")
        handle = symm_mem.rendezvous(symm_mem.empty(8, dtype=simrank.float32))
        pads, out = simrank.tensor(handle.signal_pad_ptrs), ctx.zeros(16, dtype=simrank.int32)
        dist.barrier()
        if rank == 0:
            receive_pairs[(1,)](pads, out, rank, 16)
            assert out.tolist() == list(range(100, 116))
        else:
            send_pairs[(1,)](pads, rank, 16)

    run(body, 2, seed=seed)


@triton.jit
def load_a_pair(x, out):
    first, _ = tl.inline_asm_elementwise(
        "ld.global.v2.b32 {$0, $1}, [$2];",
        "=r,=r,l",
        [x],
        dtype=(tl.int32, tl.int32),
        is_pure=True,
        pack=1,
    )
    tl.store(out, first)


def test_a_vector_lies_at_a_multiple_of_its_size(run):
    """Else hardware gives up: its elements alone would be aligned."""

    def body(rank, ctx):
        x, out = ctx.arange(8, dtype=simrank.int32), ctx.zeros(1, dtype=simrank.int32)
        load_a_pair[(1,)](x[2:], out)
        assert out.item() == 2
        load_a_pair[(1,)](x[3:], out)
        with pytest.raises(IllegalAccessError, match="multiple of 8, the size of 2 uint32"):
            out.item()

    run(body, 1)


@triton.jit
def meet_in_the_workspace(out):
    high, low = tl.inline_asm_elementwise(
        "mov.u32 $0, %envreg1; mov.u32 $1, %envreg2;",
        "=r,=r",
        [],
        dtype=(tl.uint32, tl.uint32),
        is_pure=True,
        pack=1,
    )
    address = (high.to(tl.uint64) << 32) | low
    counter = tl.cast(address, tl.pointer_type(tl.int32), bitcast=True) + 1
    tl.atomic_add(counter, 1)
    while tl.atomic_add(counter, 0) != tl.num_programs(0):
        pass
    tl.store(out + tl.program_id(0), 1)


def test_programs_of_a_cooperative_launch_share_a_workspace(run):
    """Zero at the start of each; other launches have none."""

    def body(rank, ctx):
        for _ in range(2):
            out = ctx.zeros(5, dtype=simrank.int32)
            meet_in_the_workspace[(5,)](out, launch_cooperative_grid=True)
            assert out.tolist() == [1] * 5
        meet_in_the_workspace[(5,)](out)
        with pytest.raises(UnsupportedError, match="launch_cooperative_grid=True"):
            ctx.synchronize()

    run(body, 1, races="error")
