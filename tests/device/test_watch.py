"""Watched memory: who polls some bytes is woken by the write that touches them."""

import numpy as np
import pytest

from simrank.device.watch import Poll, Watch, WatchCondition, watchers_of


@pytest.fixture
def watched(ctx):
    """A storage that somebody has looked at, its watchers, and the engine."""
    storage = ctx.zeros(64).storage
    ctx.synchronize()
    watchers = watchers_of(ctx.devices[0].memory.space)
    return storage, watchers, ctx.engine


def watch(watchers, storage, low, high):
    """Return a wait for a change of the bytes from `low` to `high`, exclusive."""
    added = Watch([Poll(storage, low, high, watchers.version(storage))])
    watchers.add(added)
    return added


def test_a_write_wakes_those_whose_bytes_it_touches(watched):
    """Ends are exclusive: neighbours sleep on."""
    storage, watchers, engine = watched
    before, inside, after = (watch(watchers, storage, low, low + 4) for low in (0, 4, 8))
    watchers.wrote(engine, storage, 4, 8)
    assert [each.complete for each in (before, inside, after)] == [False, True, False]


def test_a_watch_is_woken_once_and_may_be_taken_back(watched):
    """What is removed is not woken, and removing twice does no harm."""
    storage, watchers, engine = watched
    first, second = (watch(watchers, storage, 0, 4) for _ in range(2))
    watchers.remove(second)
    watchers.remove(second)
    watchers.wrote(engine, storage, 0, 256)
    watchers.wrote(engine, storage, 0, 256)
    assert (first.complete, second.complete) == (True, False)


def test_versions_count_writes_from_the_first_look_on(watched):
    """Memory that nobody looks at costs nothing."""
    storage, watchers, engine = watched
    watchers.wrote(engine, storage, 0, 4)
    assert storage not in watchers.versions
    assert watchers.version(storage) == 0
    watchers.wrote(engine, storage, 0, 4)
    assert watchers.version(storage) == 1


def test_an_operation_on_a_tensor_wakes_its_watchers(ctx, watched):
    """Not only kernels: a fill is a write like any other."""
    storage, watchers, _ = watched
    tensor = ctx.zeros(4)
    ctx.synchronize()
    waits = watch(watchers, tensor.storage, 0, 4)
    tensor.fill_(1)
    assert not waits.complete
    ctx.synchronize()
    assert waits.complete
    assert storage not in watchers.versions


def test_waits_for_a_value_are_woken_by_that_value(watched):
    """All that only look at it; of those that may change it one, which hands over."""
    storage, watchers, engine = watched
    word = storage.array(np.dtype(np.int32))
    word[0] = 1
    watchers.version(storage)
    waits = {}
    for is_exclusive in (False, True):
        test = WatchCondition(storage, 0, np.dtype(np.int32), "Eq", 1, is_exclusive)
        waits[is_exclusive] = [Watch([], test=test) for _ in range(3)]
        for each in waits[is_exclusive]:
            watchers.add(each)

    def woken(is_exclusive):
        return [each.complete for each in waits[is_exclusive]]

    watchers.wrote(engine, storage, 0, 4)
    assert not any(woken(False) + woken(True))
    word[0] = 0
    watchers.wrote(engine, storage, 4, 8)
    assert not any(woken(False) + woken(True))
    watchers.wrote(engine, storage, 0, 4)
    assert woken(False) == [True] * 3
    assert woken(True) == [True, False, False]
    watchers.passed_on(engine, storage, 0, 4)
    assert woken(True) == [True, True, False]
    watchers.remove(waits[True][2])
    watchers.passed_on(engine, storage, 0, 4)
    assert woken(True) == [True, True, False]
