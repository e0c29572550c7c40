"""What lanes of one program do to the same memory."""

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
