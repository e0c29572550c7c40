"""Launches on memory without values: what a sample of the programs does is scaled to all."""

import time

import pytest
import triton
import triton.language as tl

import simrank
from simrank.errors import SpawnException, UnsupportedError
from simrank.kernels.running import sample

N = 1 << 20  # Of four bytes: more than shape-only tensors with values have.


@triton.jit
def scale(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(y + at, tl.exp(tl.load(x + at, mask=inside)) * 2.0, mask=inside)


@triton.jit
def triangle(x, y, size, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros((BLOCK,), tl.float32)
    for column in range(row + 1):
        total += tl.load(x + (row * size + column) * BLOCK + tl.arange(0, BLOCK))
    tl.store(y + row * BLOCK + tl.arange(0, BLOCK), total)


@triton.jit
def matmul(a, b, c, K, N, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        left = tl.load(a + rows[:, None] * K + start + inner[None, :])
        right = tl.load(b + (start + inner)[:, None] * N + columns[None, :])
        acc = tl.dot(left, right, acc)
    tl.store(c + rows[:, None] * N + columns[None, :], acc.to(tl.bfloat16))


@triton.jit
def steered_by_a_sum(x, y, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + at)
    if tl.sum(values, axis=0) > 0:
        tl.store(y + at, values)


@triton.jit
def steered_by_a_length(lengths, x, y, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK,), tl.float32)
    for part in range(tl.load(lengths + tl.program_id(0))):
        total += tl.load(x + part * BLOCK + tl.arange(0, BLOCK))
    tl.store(y + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), total)


@triton.jit
def gather(ids, x, y, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + tl.load(ids + at)))


def cost_of(run, launch, *, data):
    """Return what a launch costs and counts, with or without values."""
    found = []

    def body(rank, ctx):
        done = launch(ctx)
        ctx.synchronize()
        found.append((done.cost, done.statistics))

    run(body, 1, data=data)
    return found[0]


def launches():
    """Yield launches whose cost is the same with values and without."""

    def elementwise(ctx):
        x, y = ctx.empty(N), ctx.empty(N)
        return ctx.launch(scale, (N // 1024,), x, y, N, BLOCK=1024)

    def growing(ctx):
        x, y = ctx.empty(64 * 64 * 256), ctx.empty(64 * 1024)
        return ctx.launch(triangle, (64,), x, y, 64, BLOCK=256)

    def product(ctx):
        a, b, c = (ctx.empty(512, 512, dtype=ctx.bfloat16) for _ in range(3))
        return ctx.launch(matmul, (4, 8), a, b, c, 512, 512, BM=128, BN=64, BK=64)

    return {"elementwise": elementwise, "growing": growing, "product": product}


@pytest.mark.parametrize("name", launches())
def test_a_sample_costs_what_all_programs_do(run, name):
    """Every program alike, work that grows along the grid, and a product."""
    launch = launches()[name]
    whole, counted = cost_of(run, launch, data=True)
    sampled, scaled = cost_of(run, launch, data=False)
    assert sampled.duration_ps == pytest.approx(whole.duration_ps, rel=0.02)
    assert sampled.limiter == whole.limiter
    assert scaled.flops == counted.flops
    assert scaled.operations == pytest.approx(counted.operations, rel=0.02)
    assert scaled.num_lanes == pytest.approx(counted.num_lanes, rel=0.02)


@pytest.mark.parametrize("kernel", [steered_by_a_sum, steered_by_a_length])
def test_a_kernel_that_values_steer_is_refused_by_name(run, kernel):
    """Nobody knows which way it would go."""

    def body(rank, ctx):
        x, y = ctx.empty(N), ctx.empty(N)
        if kernel is steered_by_a_sum:
            kernel[(N // 256,)](x, y, BLOCK=256)
        else:
            kernel[(N // 256,)](ctx.empty(N, dtype=ctx.int32), x, y, BLOCK=256)
        ctx.synchronize()

    with pytest.raises(SpawnException) as caught:
        run(body, 1, data=False)
    (error,) = caught.value.errors.values()
    assert isinstance(error, UnsupportedError)
    assert f"what kernel '{kernel.__name__}' does depends on values that it loads" in str(error)


@triton.jit
def checked_gather(ids, x, y, num_rows, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(ids + at)
    tl.device_assert((row >= 0) & (row < num_rows), "no such row")
    tl.store(y + at, tl.load(x + row * BLOCK))


@pytest.mark.parametrize(
    ("kernel", "sizes"), [(gather, ()), (checked_gather, (2,))], ids=["plain", "asserted"]
)
def test_addresses_may_come_from_memory(run, kernel, sizes):
    """An embedding's rows: where they are changes nothing, nor does an assertion about them."""

    def launch(ctx):
        ids, x, y = ctx.empty(N, dtype=ctx.int32), ctx.empty(N), ctx.empty(N)
        return ctx.launch(kernel, (N // 1024,), ids, x, y, *sizes, BLOCK=1024)

    sampled, _ = cost_of(run, launch, data=False)
    assert sampled.hbm_bytes > 2 * 4 * N


@triton.jit
def causal_rows(x, y, length, BLOCK: tl.constexpr):
    row, key = tl.program_id(0), tl.arange(0, BLOCK)
    seen = tl.load(x + row * length + key, key <= row % length, 0.0)
    tl.store(y + row * length + key, seen)


def test_the_longest_row_of_the_sample_tells_how_many_sectors_move(run):
    """A row with one element moves a whole sector for it, and no other row does."""

    def launch(ctx):
        x, y = (ctx.empty(8192, 256, dtype=ctx.bfloat16) for _ in range(2))
        return ctx.launch(causal_rows, (8192,), x, y, 256, BLOCK=256)

    _, counts = cost_of(run, launch, data=False)
    moved = sum(each.read_sectors_bytes for each in counts.traffic.values())
    assert 8192 * 256 < moved < 1.1 * 2 * 8192 * 256  # Half of it or all, at two bytes.


@triton.jit
def scatter_in_place(ids, x, num_kept, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    kept = tl.load(x + at, tl.arange(0, BLOCK) < num_kept, 0.0)
    tl.store(x + at, kept)
    tl.store(x + tl.load(ids + at), kept + tl.arange(0, BLOCK))


def test_lanes_of_a_sample_are_not_accused(run):
    """A program of the sample runs more than once, and its addresses are made up."""

    def body(rank, ctx):
        scatter_in_place[(N // 256,)](ctx.empty(N, dtype=ctx.int32), ctx.empty(N), 100, BLOCK=256)
        ctx.synchronize()
        assert not ctx.findings

    run(body, 1, data=False)


def test_what_a_sample_writes_is_unknown(run):
    """A small tensor that has values loses them: only some of it would have been written."""

    def body(rank, ctx):
        x, y = ctx.empty(N), ctx.ones(1024)
        assert y[0].item() == 1
        scale[(1,)](x, y, 1024, BLOCK=1024)
        ctx.synchronize()
        with pytest.raises(simrank.errors.UninitializedValueError, match="has no values"):
            y[0].item()

    run(body, 1, data=False)


@triton.jit
def steered_by_a_large_number(loads, x, y, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if tl.load(loads + tl.program_id(0)) > 5:
        tl.store(y + at, tl.load(x + at))


def test_numbers_that_only_large_ones_steer_by_are_found_too(run):
    """Neither zero nor one is above five."""

    def body(rank, ctx):
        loads, x, y = ctx.empty(N, dtype=ctx.int32), ctx.empty(N), ctx.empty(N)
        steered_by_a_large_number[(N // 256,)](loads, x, y, BLOCK=256)
        ctx.synchronize()

    with pytest.raises(SpawnException, match="depends on values that it loads"):
        run(body, 1, data=False)


@triton.jit
def store_through_a_table(x, table, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    small = tl.load(table).to(tl.pointer_type(tl.float32))
    tl.store(small + tl.program_id(0), tl.sum(tl.load(x + at), axis=0))


def test_what_is_written_by_address_is_unknown_too(run):
    """Only some of the programs have run."""

    def body(rank, ctx):
        x, small = ctx.empty(N), ctx.ones(1024)
        table = ctx.tensor([small.data_ptr()], dtype=ctx.int64)
        store_through_a_table[(1024,)](x, table, BLOCK=1024)
        ctx.synchronize()
        with pytest.raises(simrank.errors.UninitializedValueError, match="has no values"):
            small[0].item()

    run(body, 1, data=False)


def test_a_grid_without_programs_does_nothing(run):
    """As with values."""

    def body(rank, ctx):
        done = ctx.launch(scale, (0,), ctx.empty(N), ctx.empty(N), N, BLOCK=256)
        ctx.synchronize()
        assert done.cost.hbm_bytes == 0

    run(body, 1, data=False)


@pytest.mark.slow
def test_large_products_and_attention_take_seconds():
    """16,384^3: 8,192 programs of 256 dots, of which eight run."""
    clocks = (time.perf_counter,)
    found = []

    def body(rank, ctx):
        size = 16_384
        a, b, c = (ctx.empty(size, size, dtype=ctx.bfloat16) for _ in range(3))
        begin = clocks[0]()
        grid = (size // 128, size // 256)
        tiles = {"BM": 128, "BN": 256, "BK": 64, "num_warps": 8}  # Four would spill.
        done = ctx.launch(matmul, grid, a, b, c, size, size, **tiles)
        ctx.synchronize()
        found.append((clocks[0]() - begin, 2 * size**3 / done.cost.duration_ps))

    with simrank.Context("hgx_h100", data=False) as ctx:
        ctx.multiprocessing.spawn(body, args=(ctx,), nprocs=1)
    seconds, tflops = found[0]
    assert seconds < 20
    assert 500 < tflops < 800


@triton.jit
def scale_where(x, y, WHO: tl.constexpr, BLOCK: tl.constexpr):
    one, other = tl.program_id(0), tl.program_id(1)
    last = (one == tl.num_programs(0) - 1) & (other == tl.num_programs(1) - 1)
    works = True
    if WHO == "the first":
        works = (one == 0) & (other == 0)
    elif WHO == "the last":
        works = last
    elif WHO == "the last row":
        works = other == tl.num_programs(1) - 1
    elif WHO == "the first column":
        works = one == 0
    if works:
        at = (one * tl.num_programs(1) + other) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y + at, tl.exp(tl.load(x + at)))


@pytest.mark.parametrize(
    "who", ["all", "the first", "the last", "the last row", "the first column"]
)
@pytest.mark.parametrize("grid", [(32, 32), (1024, 1), (2, 512)])
def test_programs_at_the_edges_of_a_grid_are_in_the_sample(run, who, grid):
    """Where they alone work, what all cost is what they cost."""

    def launch(ctx):
        return ctx.launch(scale_where, grid, ctx.empty(N), ctx.empty(N), WHO=who, BLOCK=1024)

    whole, counted = cost_of(run, launch, data=True)
    sampled, scaled = cost_of(run, launch, data=False)
    assert scaled.num_lanes == counted.num_lanes
    assert scaled.operations == counted.operations
    assert sampled.hbm_bytes == whole.hbm_bytes > 0


@triton.jit
def steered_in_the_last(loads, x, y, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if tl.program_id(0) == tl.num_programs(0) - 1:  # noqa: SIM102 - the others do not load
        if tl.load(loads) > 5:
            tl.store(y + at, tl.load(x + at))


def test_a_program_at_the_edge_that_values_steer_is_refused_too(run):
    """It alone asks what it has loaded."""

    def body(rank, ctx):
        loads, x, y = ctx.empty(N, dtype=ctx.int32), ctx.empty(N), ctx.empty(N)
        steered_in_the_last[(N // 256,)](loads, x, y, BLOCK=256)
        ctx.synchronize()

    with pytest.raises(SpawnException, match="depends on values that it loads"):
        run(body, 1, data=False)


@pytest.mark.parametrize("data", [True, False])
def test_slices_of_one_buffer_are_read_again_from_l2(run, data):
    """As tensors of their own are."""

    def apart(ctx):
        a, b, c = (ctx.empty(512, 512, dtype=ctx.bfloat16) for _ in range(3))
        return ctx.launch(matmul, (4, 8), a, b, c, 512, 512, BM=128, BN=64, BK=64)

    def slices(ctx):
        whole = ctx.empty(64 * 512, 512, dtype=ctx.bfloat16)
        a, b, c = (whole[first : first + 512] for first in (1024, 16 * 1024, 32 * 1024))
        return ctx.launch(matmul, (4, 8), a, b, c, 512, 512, BM=128, BN=64, BK=64)

    (own, _), (of_one, _) = (cost_of(run, launch, data=data) for launch in (apart, slices))
    assert of_one == own


@triton.jit
def scale_pair(pair, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(pair[1] + at, tl.load(pair[0] + at))


@triton.jit
def scale_window(window, y, BLOCK: tl.constexpr):
    begin = tl.program_id(0) * BLOCK
    tl.store(y + begin + tl.arange(0, BLOCK), window.load([begin]))


def test_tuples_and_descriptors_of_the_host_may_lack_values(run):
    """As tensors may that are arguments themselves."""
    descriptor = pytest.importorskip("triton.tools.tensor_descriptor").TensorDescriptor

    def pair(ctx):
        tensors = (ctx.empty(N), ctx.empty(N))
        return ctx.launch(scale_pair, (N // 1024,), tensors, BLOCK=1024)

    def window(ctx):
        x = descriptor(ctx.empty(N), [N], [1], [1024])
        return ctx.launch(scale_window, (N // 1024,), x, ctx.empty(N), BLOCK=1024)

    for launch in (pair, window):
        whole, _ = cost_of(run, launch, data=True)
        sampled, _ = cost_of(run, launch, data=False)
        assert sampled == whole


def test_who_asks_for_races_is_told_that_a_sample_has_none(run):
    """Once for each kernel; who does not ask is not."""

    def body(rank, ctx):
        for _ in range(2):
            scale[(N // 1024,)](ctx.empty(N), ctx.empty(N), N, BLOCK=1024)
        ctx.synchronize()

    assert run(body, 1, data=False).findings == []
    (reported,) = run(body, 1, data=False, races="report").findings
    assert reported == (
        "  kernel 'scale': races of its programs are not looked for, since memory that it uses has "
        "no values (data=False)"
    )


def counts_of(statistics):
    """Return all that a launch counted, with storages by the order of their first access."""
    traffic = [
        [getattr(each, name) for name in each.__slots__ if name not in ("address", "device")]
        for each in statistics.traffic.values()
    ]
    rest = {
        name: getattr(statistics, name)
        for name in vars(statistics)
        if name not in ("fill", "loads", "parts", "profile", "traffic", "views")
    }
    return traffic, rest, [(load.ids.tolist(), load.work) for load in statistics.loads]


@pytest.mark.parametrize("name", launches())
def test_a_form_that_is_known_counts_the_same(run, name):
    """On other memory and on another rank; its results are as unknown as those of the first."""
    sample._known.clear()
    launch, seen = launches()[name], {}

    def body(rank, ctx):
        for _ in range(2):
            done = launch(ctx)
            ctx.synchronize()
            seen.setdefault(rank, []).append((done.cost, counts_of(done.statistics)))

    run(body, 2, data=False)
    assert len(sample._known) == 1
    first, *others = [each for found in seen.values() for each in found]
    assert others == [first] * 3


def test_another_form_is_not_taken_for_a_known_one(run):
    """Other numbers, types, sizes, offsets, grids; memory that is read and written is not kept."""
    sample._known.clear()

    def body(rank, ctx):
        x, y, small = ctx.empty(2 * N), ctx.empty(N), ctx.empty(2 * N, dtype=ctx.float64)
        for given in (
            (x, y, N), (x, y, N - 1), (small, y, N), (x[:N], y, N), (x[N:], y, N), (x, x, N),
            (y, y, N),
        ):  # fmt: skip
            scale[(N // 1024,)](*given, BLOCK=1024)
        scale[(N // 2048,)](x, y, N, BLOCK=1024)
        scale[(N // 1024,)](x, y, N, BLOCK=512)
        scale[(1,)](ctx.ones(1024), y, 1024, BLOCK=1024)  # It has values.
        ctx.synchronize()

    run(body, 1, data=False)
    assert len(sample._known) == 7


def test_what_a_known_form_writes_is_unknown_too(run):
    """As after the first launch."""

    def body(rank, ctx):
        x, y = ctx.empty(N), ctx.empty(N)
        for _ in range(2):
            scale[(N // 1024,)](x, y, N, BLOCK=1024)
        small = ctx.empty(1024)
        scale[(1,)](x, small, 1024, BLOCK=1024)
        other = ctx.ones(1024)
        other.copy_(small)
        ctx.synchronize()
        with pytest.raises(simrank.errors.UninitializedValueError, match="has no values"):
            other[0].item()

    run(body, 1, data=False)
