"""tl.load and tl.store: their hints."""

import inspect

import numpy as np
import pytest
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

import simrank
from simrank.errors import UnsupportedError
from simrank.kernels.language import access
from simrank.kernels.language.access import FUNCTIONS
from simrank.kernels.values import types
from simrank.kernels.values.block import Block, constant


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cache_modifier": ".wt"}, r"Cache modifier \.wt not supported"),
        ({"eviction_policy": "evict_soon"}, "Eviction policy evict_soon not supported"),
        ({"other": 1}, "`other` cannot be provided without `mask`"),
    ],
)
def test_what_the_compiler_does_not_take_is_refused(options, words):
    """Before memory is looked at."""
    with pytest.raises(ValueError, match=words):
        access.load(constant(0), **options)


def test_a_store_knows_other_hints_than_a_load():
    """`.wb` is one of stores only."""
    with pytest.raises(ValueError, match="not supported"):
        access.load(constant(0), cache_modifier=".wb")
    with pytest.raises(ValueError, match=r"Cache modifier \.ca"):
        access.store(constant(0), 1, cache_modifier=".ca")


# ---- tensor descriptors: rows gathered and scattered, atomics, padding, and those of the host ----


@triton.jit
def move_rows(x_ptr, index_ptr, out_ptr, rows, columns, M: tl.constexpr, K: tl.constexpr):
    source = tl.make_tensor_descriptor(x_ptr, [rows, columns], [columns, 1], [1, K])
    target = tl.make_tensor_descriptor(out_ptr, [rows, columns], [columns, 1], [1, K])
    index = tl.load(index_ptr + tl.arange(0, M))
    target.scatter(source.gather(index, 4), tl.arange(0, M), 0)


def test_rows_are_gathered_and_scattered(on_rank):
    """What lies outside of the tensor reads as zero and is not written."""

    def body(ctx):
        x = np.arange(20 * 16, dtype="f4").reshape(20, 16)
        index = np.array([3, 1, 19, 25, -2, 0, 7, 7], "i4")
        out = ctx.from_numpy(np.full((20, 16), -1, "f4"))
        move_rows[(1,)](ctx.from_numpy(x), ctx.from_numpy(index), out, 20, 16, M=8, K=16)
        wanted = np.full((20, 16), -1.0)
        wanted[:8] = 0
        for row, start in enumerate(index):
            if 0 <= start < 20:
                wanted[row, :12] = x[start, 4:]
        np.testing.assert_array_equal(out.numpy(), wanted)

    on_rank(body)


@triton.jit
def add_blocks(target, K: tl.constexpr):
    ones = tl.full((8, K), 1, tl.int32)
    target.atomic_add([tl.program_id(0) * 4, 0], ones)
    target.atomic_max([0, 0], ones * 2)


def test_blocks_are_added_atomically(on_rank):
    """Overlapping blocks of several programs; the part outside is left out."""

    def body(ctx):
        out = ctx.zeros(14, 8, dtype=simrank.int32)
        add_blocks[(3,)](TensorDescriptor.from_tensor(out, [8, 8]), K=8)
        found = out.numpy()
        assert (found[4:, 0] == [2, 2, 2, 2, 2, 2, 2, 2, 1, 1]).all()
        assert (found[:, :1] == found).all()

    on_rank(body)


@triton.jit
def copy_block(source, out_ptr, M: tl.constexpr, K: tl.constexpr):
    x = tl.load_tensor_descriptor(source, [0, 4])
    tl.store(out_ptr + tl.arange(0, M)[:, None] * K + tl.arange(0, K)[None, :], x)


ROUNDS_TO_TF32 = "round_f32_to_tf32" in inspect.signature(TensorDescriptor.from_tensor).parameters


def test_padding_is_nan_where_asked_and_inputs_are_rounded_to_tf32(on_rank):
    """Both are options of a host descriptor, the second from Triton 3.7 on."""

    def body(ctx):
        x = np.random.default_rng(0).standard_normal((4, 8)).astype("f4")
        out = ctx.zeros(8, 8)
        options = ["nan", True] if ROUNDS_TO_TF32 else ["nan"]
        source = TensorDescriptor.from_tensor(ctx.from_numpy(x), [8, 8], *options)
        copy_block[(1,)](source, out, M=8, K=8)
        found = out.numpy()
        assert np.isnan(found[4:]).all()
        assert np.isnan(found[:, 4:]).all()
        is_rounded = (found[:4, :4].view("u4") & 0x1FFF == 0).all()
        assert is_rounded == ROUNDS_TO_TF32
        np.testing.assert_allclose(found[:4, :4], x[:, 4:], rtol=2**-11)

    on_rank(body)


@triton.jit
def short_rows(x_ptr):
    tl.make_tensor_descriptor(x_ptr, [8, 8], [8, 1], [8, 2])


@triton.jit
def odd_strides(x_ptr):
    tl.make_tensor_descriptor(x_ptr, [8, 7], [7, 1], [8, 8])


@triton.jit
def custom_float8(x_ptr):
    tl.store(x_ptr, tl.load(x_ptr).to(tl.float8e4b15))


@pytest.mark.parametrize(
    ("kernel", "error", "text"),
    [
        (short_rows, ValueError, "at least 16 bytes in the last dimension, but got 2 \\* 4 = 8"),
        (odd_strides, ValueError, "must be 16-byte aligned, but got a stride of 7 \\* 4 = 28"),
        (custom_float8, UnsupportedError, "elements of type fp8e4b15 are not supported"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_hardware_or_simrank_lacks_is_refused(on_rank, kernel, error, text):
    """In Triton's words, or by name."""

    def body(ctx):
        kernel[(1,)](ctx.zeros(64))
        ctx.cuda.synchronize()

    with pytest.raises(error, match=text):
        on_rank(body)


@triton.jit
def rounded(x, out, N: tl.constexpr):
    source = tl.make_block_ptr(x, (N,), (1,), (0,), (16,), (0,))
    target = tl.make_block_ptr(out, (N,), (1,), (0,), (16,), (0,))
    tl.static_assert(target.type.element_ty.shape == [16])
    values = tl.load(source, boundary_check=(0,))
    tl.store(target, (values * 1.5).to(target.type.element_ty), boundary_check=(0,))


def test_a_block_pointer_points_to_a_block(on_rank):
    """Its type is what generated kernels convert to."""

    def body(ctx):
        x = ctx.from_numpy(np.arange(12, dtype="f4"))
        out = ctx.zeros(12, dtype=simrank.int32)
        rounded[(1,)](x, out, N=12)
        assert out.tolist() == [int(1.5 * i) for i in range(12)]

    on_rank(body)


@triton.jit
def _described_again(y_desc, y, n, BLOCK: tl.constexpr):
    sizes = [n] + y_desc.shape[1:]  # noqa: RUF005 - joining is what is tested
    strides = y_desc.strides[:-1] + (1,)  # noqa: RUF005
    again = tl.make_tensor_descriptor(y, sizes, strides, y_desc.block_shape)
    again.store([0, 0], again.load([0, 0]) + tl.full([BLOCK] + (BLOCK,), 1.0, tl.float32))


def test_shapes_and_strides_of_descriptors_are_tuples(run):
    """They are joined with tuples and lists, as Triton's."""

    def body(rank, ctx):
        y = ctx.zeros(16, 16)
        desc = TensorDescriptor(y, [16, 16], [16, 1], [16, 16])
        _described_again[1,](desc, y, 16, BLOCK=16)
        assert (y == 1).all().item()

    run(body, 1)


# ---- tl's atomics: what they are refused for ----


def pointer(element):
    return Block(np.int64(0), types.pointer_to(element))


@pytest.mark.parametrize(
    ("name", "element"),
    [
        ("atomic_and", types.float32),
        ("atomic_add", types.int8),
        ("atomic_max", types.float16),
        ("atomic_cas", types.int8),
        ("atomic_poll", types.float32),
    ],
)
def test_types_that_hardware_has_no_atomic_for_are_refused(name, element):
    """By function and type."""
    arguments = (1, 2) if name == "atomic_cas" else (1,)
    with pytest.raises(ValueError, match=f"{name} does not support {element}"):
        FUNCTIONS[name](pointer(element), *arguments)


@pytest.mark.parametrize(("name", "sem"), [("atomic_load", "release"), ("atomic_store", "acquire")])
def test_a_look_does_not_release_and_a_store_does_not_acquire(name, sem):
    """As Triton has it."""
    arguments = () if name == "atomic_load" else (1,)
    with pytest.raises(ValueError, match="only supports"):
        FUNCTIONS[name](pointer(types.int32), *arguments, sem=sem)


def test_a_time_limit_is_not_negative():
    """Of a poll."""
    with pytest.raises(ValueError, match="non-negative"):
        FUNCTIONS["atomic_poll"](pointer(types.int32), 1, timeout_ns=-1)
