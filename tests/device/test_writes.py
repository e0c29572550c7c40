"""What in flight writes a storage: what a walk over everything finds, at a fixed cost."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import simrank
from simrank.device.memory import PendingWrites


def operation(stream):
    return SimpleNamespace(stream=stream, complete=False, error=None)


class Model:
    """Every write ever noted, walked each time; streams complete or fail their writes in order."""

    def __init__(self):
        self.writes = []

    def overlapping(self, low, high):
        found = []
        for index, (written, first, last) in enumerate(self.writes):
            is_open = not written.complete or written.error is not None
            covers = [w for w in self.writes[index + 1 :] if w[1] <= first and last <= w[2]]
            if is_open and first < high and low < last and not (written.complete and covers):
                found.append(written)
        return found


spans = st.tuples(st.integers(0, 8), st.integers(1, 8)).map(lambda pair: (pair[0], sum(pair)))
steps = st.one_of(
    st.tuples(st.just("note"), st.sampled_from("ab"), spans),
    st.tuples(st.just("end"), st.sampled_from("ab"), st.just((0, 0))),
    st.tuples(st.just("look"), st.just("a"), spans),
)


@given(st.lists(steps, max_size=120))
def test_waiting_for_what_is_found_waits_for_every_open_write(trace):
    """A write that is left out is of the same stream as one that is found, and issued before it."""
    writes, model = PendingWrites(), Model()
    queues = {"a": [], "b": []}
    for kind, stream, (low, high) in trace:
        if kind == "note":
            new = operation(stream)
            writes.note(new, low, high)
            model.writes.append((new, low, high))
            queues[stream].append(new)
        elif kind == "end" and queues[stream]:
            queues[stream].pop(0).complete = True
        elif kind == "look":
            found, everything = writes.overlapping(low, high), model.overlapping(low, high)
            order = [written for written, _, _ in model.writes]
            for missed in (o for o in everything if o not in found):
                assert any(
                    o.stream == missed.stream and order.index(o) > order.index(missed)
                    for o in found
                )
            assert all(o in everything for o in found)


def test_a_failed_write_is_found_until_something_covers_it():
    """What it should have written is not there; a later write of all of it makes up for that."""
    writes, failed = PendingWrites(), operation("a")
    writes.note(failed, 0, 8)
    failed.complete, failed.error = True, RuntimeError()
    half, whole = operation("b"), operation("b")
    writes.note(half, 0, 4)
    assert writes.overlapping(0, 8) == [failed, half]
    writes.note(whole, 0, 8)
    assert writes.overlapping(0, 8) == [whole]


def test_the_host_that_writes_over_a_failed_write_forgets_it():
    """Writes under way stay."""
    writes, failed, live = PendingWrites(), operation("a"), operation("b")
    writes.note(failed, 0, 4)
    writes.note(live, 4, 8)
    failed.complete, failed.error = True, RuntimeError()
    writes.write_over(0, 8)
    assert writes.overlapping(0, 8) == [live]


@pytest.mark.parametrize("width", [8, 1])
def test_what_is_remembered_does_not_grow_with_what_has_ended(width):
    """A thousand writes of a stream, each ended before the next but one: some dozens are kept."""
    writes, last = PendingWrites(), None
    for index in range(1000):
        if last is not None:
            last.complete = True
        last = operation("a")
        writes.note(last, index % 8, index % 8 + width)
    assert len(writes._writes) <= 32


def test_slices_written_in_turn_are_each_waited_for():
    """A read of one row waits for the kernels that write it, not for those of the others."""
    with simrank.Context("hgx_h100") as ctx:

        def program(rank):
            x = ctx.zeros(64, 4)
            for _ in range(3):
                for row in range(64):
                    x[row].add_(row)
            assert x[5].tolist() == [15.0] * 4
            assert x.tolist() == [[3.0 * row] * 4 for row in range(64)]

        ctx.multiprocessing.spawn(program, nprocs=1)
