"""Who runs now, and how what they overwrote is restored."""

import numpy as np
import pytest
import triton
import triton.language as tl

from simrank.kernels import machine
from simrank.kernels.machine import Programs, RunningLaunch, Statistics, UnmaskableError
from simrank.kernels.machine.running import MAX_SHOWN, first_few, ids_text, waiting_text


def programs(grid, ids, **options):
    return Programs(RunningLaunch("kernel", grid, None, Statistics()), np.array(ids), **options)


def test_nobody_runs_outside_of_a_kernel():
    """A function of tl that is called there says so."""
    with pytest.raises(RuntimeError, match="outside a kernel"):
        machine.now()


def test_whoever_ran_before_runs_again_afterwards():
    """Also where the kernel raises."""
    outer, inner = programs((1, 1, 1), [0]), programs((1, 1, 1), [0])

    def body():
        assert machine.now() is inner
        raise ValueError("of the kernel")

    def around():
        with pytest.raises(ValueError, match="of the kernel"):
            machine.run(inner, body)
        assert machine.now() is outer

    machine.run(outer, around)
    assert not machine.is_running()


def test_ids_along_an_axis_are_a_scalar_where_all_programs_share_them():
    """Axis 0 runs fastest."""
    several = programs((3, 2, 1), [1, 3, 5])
    assert several.axis_ids(0).tolist() == [1, 0, 2]
    assert several.axis_ids(1).tolist() == [0, 1, 1]
    assert several.axis_ids(2) == 0
    assert np.ndim(several.axis_ids(2)) == 0


def test_what_was_overwritten_is_restored_newest_first():
    """An element that was written twice has its first value again."""
    memory = np.arange(4)
    batch = programs((1, 1, 1), [0], keeps_undo=True)
    for index, value in ((1, 10), (1, 20), (3, 30)):
        batch.undo.append((memory, index, memory[index]))
        memory[index] = value
    batch.roll_back()
    assert memory.tolist() == [0, 1, 2, 3]


def test_what_needs_all_programs_is_not_done_while_some_are_masked_off():
    """One program alone has threads, not programs, that are masked off."""
    several, alone = programs((2, 1, 1), [0, 1]), programs((1, 1, 1), [0])
    machine.require_all(several)
    for some in (several, alone):
        some.active = np.array([True, False])
    machine.require_all(alone)
    with pytest.raises(UnmaskableError):
        machine.require_all(several)


# ---- what vector units do is counted by how fast they are at it ----


@triton.jit
def one_of_each(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + at)
    values = values * 2.0 + 1.0
    values = tl.exp2(values)
    values = tl.where(values > 1.0, values, 0.0)
    tl.store(y + at, values.to(tl.bfloat16))
    tl.store(y + n + tl.program_id(0), tl.sum(values, axis=0).to(tl.bfloat16))


@pytest.mark.parametrize("mode", ["batched", "tasks", "one-by-one"])
def test_every_program_and_element_is_counted_once(run, mode):
    """Two fused operations, one exponential; a comparison, a choice, a conversion and a sum."""
    found = {}

    def body(rank, ctx):
        n = 24 * 128
        x, y = ctx.ones(n), ctx.empty(n + 24, dtype=ctx.bfloat16)
        done = ctx.launch(one_of_each, (24,), x, y, n, BLOCK=128, mode=mode)
        ctx.synchronize()
        found["fused"], found["simple"], found["special"] = done.statistics.operations

    run(body, 1)
    elements = 24 * 128
    assert found["fused"] == 2 * elements
    assert found["special"] == elements
    assert found["simple"] == 4 * elements


@triton.jit
def quotients(
    y, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BY_ROW: tl.constexpr, IS_CALL: tl.constexpr
):
    rows, columns = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    values = (rows * COLUMNS + columns + 1).to(tl.float32)
    if BY_ROW:
        values = values / (rows + 1).to(tl.float32)
    elif IS_CALL:
        values = tl.fdiv(values, values)
    else:
        values = 1.0 / values
    tl.store(y + rows * COLUMNS + columns, values)


@pytest.mark.parametrize("is_call", [False, True])
def test_a_division_by_a_block_also_compares_and_scales_its_divisors(run, is_call):
    """Two comparisons and five products; elements with one divisor share them."""
    found = {}

    def body(rank, ctx):
        for by_row in (False, True):
            shape = {"ROWS": 8, "COLUMNS": 64, "BY_ROW": by_row, "IS_CALL": is_call}
            done = ctx.launch(quotients, (3,), ctx.empty(512), **shape)
            ctx.synchronize()
            found[by_row] = np.array(done.statistics.operations)

    run(body, 1)
    elements = 3 * 8 * 64
    more = found[False] - found[True]
    assert found[False][machine.SPECIAL] == found[True][machine.SPECIAL] == elements
    assert more[machine.FUSED] == 2 * 5 * elements
    assert more[machine.SIMPLE] == 2 * elements - 3 * 8  # Divisors of rows are converted.


@triton.jit
def sums_of_rows(x, y, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    rows, columns = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    tl.store(y + rows, tl.sum(tl.load(x + rows[:, None] * COLUMNS + columns[None, :]), 1))


@pytest.mark.parametrize("columns", [16, 64])
@pytest.mark.parametrize("mode", ["batched", "tasks"])
def test_each_sum_along_a_row_costs_its_lanes_an_exchange(run, mode, columns):
    """Four lanes, two steps, each an exchange (as long as two operations) and an addition."""
    found = []

    def body(rank, ctx):
        x, y = ctx.ones(32, columns), ctx.empty(32)
        done = ctx.launch(sums_of_rows, (3,), x, y, ROWS=32, COLUMNS=columns, mode=mode)
        ctx.synchronize()
        found.append(done.statistics.operations[machine.SIMPLE])

    run(body, 1)
    assert found == [3 * 32 * (columns + 4 * 2 * 3)]


def test_what_all_programs_share_is_counted_for_each(run):
    """Rows that are the same in all programs are computed once here, and by each on hardware."""
    found = []

    @triton.jit
    def shared(y, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        tl.store(y + tl.program_id(0) * BLOCK + at, tl.exp2(at.to(tl.float32)))

    def body(rank, ctx):
        done = ctx.launch(shared, (10,), ctx.empty(640), BLOCK=64)
        ctx.synchronize()
        found.append(done.statistics.operations[machine.SPECIAL])

    run(body, 1)
    assert found == [640]


@triton.jit
def some_trips(y, BLOCK: tl.constexpr):
    values = tl.zeros((BLOCK,), tl.float32)
    for _ in range(tl.program_id(0)):
        values = tl.exp2(values)
    tl.store(y + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), values)


@pytest.mark.parametrize("mode", ["batched", "masked", "one-by-one"])
def test_programs_that_are_masked_off_do_nothing(run, mode):
    """Program p takes p trips, in whatever form it runs."""
    found = []

    def body(rank, ctx):
        done = ctx.launch(some_trips, (10,), ctx.empty(640), BLOCK=64, mode=mode)
        ctx.synchronize()
        found.append(done.statistics.operations[machine.SPECIAL])

    run(body, 1)
    assert found == [45 * 64]


# ---- numbers of programs and bytes as text ----


@pytest.mark.parametrize(
    ("ids", "text"), [([3], "3"), ([0, 1, 2, 3], "0-3"), ([0, 2, 3, 7], "0, 2-3, 7")]
)
def test_neighbours_are_a_range(ids, text):
    """Runs of numbers are written by their ends."""
    assert ids_text(ids) == text


def test_many_are_cut_off():
    """Dots say that there are more than are shown."""
    assert first_few(range(MAX_SHOWN)).endswith(str(MAX_SHOWN - 1))
    assert first_few(range(MAX_SHOWN + 1)).endswith(f"{MAX_SHOWN - 1}, ...")


def test_programs_that_wait_for_one_byte_share_it():
    """The verb and the bytes go by number; values are there where they are known."""
    assert waiting_text({5: 16}, []) == "program 5 waits for a change of byte 16"
    several = waiting_text({0: 0, 1: 16, 2: 16}, ["2 to 1"])
    assert several == "programs 0-2 wait for a change of bytes 0, 16 from 2 to 1"
