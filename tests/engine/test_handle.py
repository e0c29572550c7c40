"""Handles: they complete once, tell their callbacks, then wake their waiters."""

from functools import partial

import pytest

from simrank.engine import Engine, Handle, NamedWait


def test_a_handle_completes_once_at_one_time():
    """The time is kept; a second completion is simrank's own bug."""
    engine = Engine()
    handle = engine.timer(12)
    assert (handle.complete, handle.complete_ps) == (False, -1)
    engine.run()

    assert (handle.complete, handle.complete_ps) == (True, 12)
    with pytest.raises(AssertionError, match="completes once"):
        handle.finish(engine)


def test_callbacks_run_in_order_before_the_waiters():
    """A callback added later than completion runs at once."""
    engine, log = Engine(), []
    handle = Handle()

    def body():
        engine.wait(handle)
        log.append("waiter")

    engine.start_task(body, "a program")
    handle.on_complete(lambda: log.append("first"))
    handle.on_complete(lambda: log.append("second"))
    engine.call_at(5, lambda: handle.finish(engine))
    engine.run()
    handle.on_complete(lambda: log.append("late"))

    assert log == ["first", "second", "waiter", "late"]


def test_a_forgotten_callback_is_not_called():
    """Taking back what was never given is nothing."""
    engine, log = Engine(), []
    handle = Handle()

    def callback():
        log.append(1)

    handle.forget(callback)
    handle.on_complete(callback)
    handle.forget(callback)
    handle.finish(engine)

    assert log == []


def test_a_callback_can_pass_to_a_later_handle():
    """The others stay; what the later one has already comes first."""
    engine, log = Engine(), []
    handle, later = Handle(), Handle()
    callbacks = [partial(log.append, number) for number in range(3)]
    handle.on_complete(callbacks[0])
    handle.pass_on(callbacks[0], later)
    handle.on_complete(callbacks[1])
    handle.on_complete(callbacks[2])
    handle.pass_on(callbacks[2], later)
    handle.finish(engine)
    assert log == [1]

    later.finish(engine)
    assert log == [1, 0, 2]


def test_completion_counts_as_progress():
    """What polls could see has changed."""
    engine = Engine()
    before = engine.progress
    Handle().finish(engine)

    assert engine.progress == before + 1


def test_a_plain_handle_describes_itself_without_a_site():
    """Reports then show the line that waits."""
    assert (Handle().describe(), Handle().site()) == ("a handle", None)


def test_a_named_wait_is_shown_by_its_name():
    """In the report of a hang, say."""
    assert NamedWait("key 'a' of store 0").describe() == "key 'a' of store 0"
