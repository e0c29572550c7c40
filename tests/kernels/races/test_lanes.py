"""Lanes of one program that access the same memory: findings where nothing orders their threads."""

import pytest
import triton
import triton.language as tl

import simrank


@triton.jit
def scatters(index, x, HOW: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    if HOW == "two lanes":
        tl.store(x + tl.load(index + i), i)
    elif HOW == "two lanes of a matrix":
        rows = tl.arange(0, 4)[:, None]
        tl.store(x + rows // 2 + tl.zeros((4, 4), tl.int32), rows + tl.arange(0, 4)[None, :])
    elif HOW == "one of them masked off":
        tl.store(x + tl.load(index + i), i, mask=i % 2 == 0)
    elif HOW == "equal values":
        tl.store(x + tl.load(index + i), 5)
    elif HOW == "own elements":
        tl.store(x + (i * 7) % N, i)
    elif HOW == "atomics":
        tl.atomic_add(x + tl.load(index + i), i)


@triton.jit
def goes_through_memory(x, y, HOW: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    other = (i % 8) * (N // 8) + i // 8
    if HOW == "transposed":
        tl.store(x + i, i)
        tl.store(y + i, tl.load(x + other))
    elif HOW == "one element":
        tl.store(x + i, i)
        tl.store(y, tl.load(x + 3))
    elif HOW == "shifted":
        tl.store(x + i, i)
        tl.store(y + i, tl.load(x + i + 1, mask=i < N - 1, other=0))
    elif HOW == "behind a barrier":
        tl.store(x + i, i)
        tl.debug_barrier()
        tl.store(y + i, tl.load(x + other))
    elif HOW == "in one pattern":
        tl.store(x + other, i)
        tl.store(y + i, tl.load(x + other))
    elif HOW == "other elements":
        tl.store(x + i, i)
        tl.store(y + i, tl.load(x + N + other))
    elif HOW == "behind an atomic":
        tl.store(x + i, i)
        tl.atomic_add(y, 1)
        tl.store(y + i, tl.load(x + other))


def findings(kernel, how, **options):
    """What is found in a launch, and the results."""

    def body(_rank):
        index, x, y = ctx.arange(64) // 2, ctx.zeros(128, dtype="int32"), ctx.zeros(64)
        given = (index, x) if kernel is scatters else (x, y.int())
        for _ in range(2):
            kernel[(2,)](*given, HOW=how, N=64, **options)
        ctx.cuda.synchronize()

    with simrank.Context("hgx_h100") as ctx:
        ctx.multiprocessing.spawn(body, nprocs=1)
    return [finding for finding in ctx.findings if "program 0:" in finding]


@pytest.mark.parametrize("mode", ["auto", "one-by-one", "tasks"])
@pytest.mark.parametrize("how", ["two lanes", "two lanes of a matrix"])
def test_lanes_that_store_different_values_to_one_element_are_a_finding(how, mode):
    """Once for a line, whatever the mode; it names the lanes and the line."""
    (finding,) = findings(scatters, how, mode=mode)
    assert "lanes 0 and 1 store different values to one element at test_lanes.py:" in finding


@pytest.mark.parametrize(
    "how", ["one of them masked off", "equal values", "own elements", "atomics"]
)
def test_lanes_that_do_not_disagree_are_none(how):
    """Equal values, own elements, and atomics."""
    assert findings(scatters, how) == []


@pytest.mark.parametrize("how", ["transposed", "one element", "shifted"])
def test_a_tile_that_is_read_otherwise_than_it_was_stored_is_a_finding(how):
    """Its elements go from thread to thread."""
    (finding,) = findings(goes_through_memory, how)
    assert "is loaded in another pattern at test_lanes.py:" in finding
    assert "tl.debug_barrier()" in finding


@pytest.mark.parametrize(
    "how", ["behind a barrier", "in one pattern", "other elements", "behind an atomic"]
)
def test_a_barrier_or_the_same_pattern_makes_it_right(how):
    """Each thread reads what it has stored itself, or what was stored before all met."""
    assert findings(goes_through_memory, how) == []


# ---- loads and stores of one element by different lanes: a barrier orders them ----


@triton.jit
def apart(x, o, HOW: tl.constexpr, N: tl.constexpr):  # noqa: C901 - a case each
    i = tl.arange(0, N)
    if HOW == "reversed":
        tl.store(x + i, tl.load(x + (N - 1 - i)))
    elif HOW == "rotated":
        tl.store(x + i, tl.load(x + i) - tl.load(x + (i + N // 2) % N))
    elif HOW == "rows":
        rows, columns = tl.arange(0, 32)[:, None], tl.arange(0, 32)[None, :]
        tl.store(x + rows * 32 + columns, tl.load(x + (rows + 8) % 32 * 32 + columns))
    elif HOW == "scalar":
        least = tl.load(x)
        tl.store(x + i, tl.load(x + i) - least)
    elif HOW == "spread":
        tl.store(x + i, tl.load(x + i // 2))
    elif HOW == "two stores":
        tl.store(x + i, i)
        tl.store(x + (N - 1 - i), i + 1000)
    elif HOW == "cleared":
        tl.store(x + i, 0)
        tl.store(x + (i * 7) % N, i, mask=i < 100)
    elif HOW == "cleared for atomics":
        tl.store(x + i, 0)
        tl.atomic_add(x + (i * 7) % N, 1, sem="relaxed")
    elif HOW == "read behind atomics":
        tl.atomic_add(x + i % 4, 1, sem="relaxed")
        tl.store(o + i, tl.load(x + i % 4))
    elif HOW == "next round":
        for _ in range(3):
            values = tl.load(x + i) + tl.load(x + i + 1)
            tl.debug_barrier()
            tl.store(x + i, values)


@triton.jit
def ordered(x, o, HOW: tl.constexpr, N: tl.constexpr):  # noqa: C901 - a case each
    i = tl.arange(0, N)
    rows, columns = tl.arange(0, 32)[:, None], tl.arange(0, 32)[None, :]
    if HOW == "in place":
        tl.store(x + i, tl.load(x + i) * 2)
    elif HOW == "masked":
        tl.store(x + i, tl.load(x + i, mask=i < 100, other=0) * 2, mask=i < 50)
        tl.store(x + i, tl.load(x + i) + 1)
    elif HOW == "halves":
        left, right = tl.load(x + i), tl.load(x + N + i)
        tl.store(x + i, left - right)
        tl.store(x + N + i, left + right)
    elif HOW == "barrier":
        values = tl.load(x + (N - 1 - i))
        tl.debug_barrier()
        tl.store(x + i, values)
    elif HOW == "rounds":
        for _ in range(3):
            values = tl.load(x + i) + tl.load(x + i + 1)
            tl.debug_barrier()
            tl.store(x + i, values)
            tl.debug_barrier()
    elif HOW == "one value":
        tl.store(x + i, 7)
        tl.store(x + (N - 1 - i), 7)
    elif HOW == "scalars":
        tl.store(x, tl.load(x) + 1)
    elif HOW == "sum":
        tl.store(x, tl.sum(tl.load(x + i), 0))
    elif HOW == "sum of a reversed tile":
        values = tl.load(x + (N - 1 - i))
        tl.store(x + i, values + tl.sum(values, 0))
    elif HOW == "flipped":
        tl.store(x + i, tl.flip(tl.load(x + i)))
    elif HOW == "sorted":
        tl.store(x + i, tl.sort(tl.load(x + i)))
    elif HOW == "transposed":
        tl.store(x + rows * 32 + columns, tl.trans(tl.load(x + rows * 32 + columns)))
    elif HOW == "other layout":
        tl.store(x + columns * 32 + rows, tl.load(x + rows * 32 + columns))
    elif HOW == "product":
        tile = tl.load(x + rows * 32 + columns).to(tl.float16)
        tl.store(x + rows * 32 + columns, tl.dot(tile, tile).to(tl.int32))
    elif HOW == "last program":
        tl.store(x + tl.program_id(0), 5)
        if tl.atomic_add(o, 1) == 0:
            tl.store(o + N + i, tl.load(x + i))


APART = {
    "reversed": "what is loaded at {} is stored in another pattern at {}: threads overwrite",
    "rotated": "what is loaded at {} is stored in another pattern at {}: threads overwrite",
    "rows": "what is loaded at {} is stored in another pattern at {}: threads overwrite",
    "scalar": "what is loaded at {} is stored in another pattern at {}: threads overwrite",
    "spread": "what is loaded at {} is stored in another pattern at {}: threads overwrite",
    "two stores": "what is stored at {} is stored in another pattern at {}: which of the values",
    "cleared": "what is stored at {} is stored in another pattern at {}: which of the values",
    "cleared for atomics": "what is stored at {} is updated in another pattern at {}: threads",
    "read behind atomics": "what is updated at {} is loaded in another pattern at {}: threads read",
    "next round": "what is stored at {} is loaded in another pattern at {}: threads read",
}


def found_in(kernel, how, *, size=256, **options):
    """Return the findings of a launch of one program."""

    def body(_rank):
        x, o = (ctx.zeros(2048, dtype="int32") for _ in range(2))
        kernel[(1,)](x, o, HOW=how, N=size, **options)
        ctx.synchronize()

    with simrank.Context("hgx_h100") as ctx:
        ctx.multiprocessing.spawn(body, nprocs=1)
    return ctx.findings


@pytest.mark.slow
@pytest.mark.parametrize("how", APART)
def test_lanes_without_a_barrier_between_them_are_a_finding(how):
    """In each direction, with the two lines and the cure."""
    (finding,) = found_in(apart, how)
    for words in APART[how].split("{}"):
        assert words in finding
    assert finding.count("test_lanes.py:") == 2
    assert "to fix: call tl.debug_barrier() between the two" in finding


@pytest.mark.slow
@pytest.mark.parametrize("size", [32, 256])
@pytest.mark.parametrize("num_warps", [1, 4])
@pytest.mark.parametrize(
    "how",
    [
        "in place", "masked", "halves", "barrier", "rounds", "one value", "scalars", "sum",
        "sum of a reversed tile", "flipped", "sorted", "transposed", "other layout", "product",
        "last program",
    ],
)  # fmt: skip
def test_lanes_that_the_compiler_or_the_source_orders_are_none(how, num_warps, size):
    """The same threads, equal values, a barrier, or one that a reduction or a new layout needs."""
    assert found_in(ordered, how, size=size, num_warps=num_warps) == []
