"""One worker's process as its pool sees it: how it ended, and that nothing of it is left open."""

from __future__ import annotations

import os
import signal
import time

import pytest

from simrank.validate.process import Process, _ended


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (signal.SIGKILL, "killed by SIGKILL"),
        (signal.SIGSEGV | 0x80, "killed by SIGSEGV"),
        (7 << 8, "exited with code 7"),
        (0, "exited with code 0"),
        (40, "killed by signal 40"),
    ],
)
def test_a_wait_status_is_told_in_words(status, text):
    """Of a signal with its name, where it has one."""
    assert _ended(status.to_bytes(4, "big")) == text


def test_an_end_without_a_status_is_the_keepers():
    """Which was killed before it could tell."""
    assert _ended(b"") == "killed, and its keeper with it"


def test_a_process_that_is_released_ends_and_leaves_no_descriptor():
    """Also before it was asked anything."""
    before = sorted(os.listdir("/proc/self/fd"))
    process = Process(0, dict(os.environ), listener=None, echo=None)
    assert not process.has_ended()
    process.release()
    process.reap(time.monotonic() + 10)
    assert process.ended == "killed by SIGKILL"
    process.close()
    process.close()
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_a_keeper_that_does_not_listen_is_killed_at_the_deadline():
    """Here it is stopped."""
    process = Process(0, dict(os.environ), listener=None, echo=None)
    process._keeper.send_signal(signal.SIGSTOP)
    process.release()
    process.reap(time.monotonic() + 0.1)
    assert process.ended == "killed, and its keeper with it"
    process.close()
