"""The current device and stream of the running program."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from simrank.ranks import Program, require_program

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simrank.device.device import Device
    from simrank.device.stream import Stream

_KEY = "current_stream"


def current_device(program: Program | None = None) -> Device:
    """Return the device that the running program uses by default."""
    program = program or require_program("current_device")
    device: Device = program.context.devices[program.device_index]
    return device


def current_stream(program: Program | None = None) -> Stream:
    """Return the running program's current stream: its device's default stream, unless set."""
    program = program or require_program("current_stream")
    chosen: Stream | None = program.local.get(_KEY)
    return current_device(program).default_stream if chosen is None else chosen


@contextmanager
def use_stream(stream: Stream) -> Iterator[Stream]:
    """Make `stream` the current stream of the running program within the block."""
    program = require_program("stream")
    before = program.local.get(_KEY)
    program.local[_KEY] = stream
    try:
        yield stream
    finally:
        program.local[_KEY] = before
