"""Who runs now, and how what they overwrote is restored."""

import numpy as np
import pytest

from simrank.kernels import machine
from simrank.kernels.machine import Programs, Setting, Statistics, UnmaskableError


def programs(grid, ids, **options):
    return Programs(Setting("kernel", grid, None, Statistics()), np.array(ids), **options)


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
