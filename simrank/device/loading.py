"""Lazy loading: a kernel's code comes to the device at its first launch, once the device is quiet.

So a kernel that spins until something issued later sets its flag can block the host for ever: the
load in between waits for it. `preload` loads before anything runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simrank.engine import Handle

if TYPE_CHECKING:
    from collections.abc import Iterable

    from simrank.device.device import Device
    from simrank.device.operation import Operation
    from simrank.device.stream import Stream
    from simrank.engine import CallSite

LOAD_PS = 300_000_000  # assumed: 0.3 ms for the code of one kernel


class Loading(Handle):
    """A host's wait for the device to be quiet, for reports."""

    __slots__ = ("_blocker", "_module")

    def __init__(self, module: str, blocker: Operation) -> None:
        super().__init__()
        self._module = module
        self._blocker = blocker

    def describe(self) -> str:
        """Return what is loaded, and what runs meanwhile."""
        running = self._blocker.blocker()
        return (
            f"the first launch of '{self._module}', which loads its code and waits until the "
            f"device is quiet: {running.describe()}"
        )

    def site(self) -> CallSite | None:
        """Return None: the waiting line says where."""
        return None


def load_before(stream: Stream, operation: Operation) -> None:
    """Load what an operation runs if the device lacks it: block the host until it is quiet."""
    device, module = stream.device, operation.module
    if device.loaded is None or module is None or module in device.loaded:
        return
    engine = device.engine
    for other in list(device.streams):
        tail = other.tail
        if tail is not None:
            wait = Loading(module, tail)
            tail.on_complete(lambda wait=wait: wait.finish(engine))  # type: ignore[misc]
            engine.wait(wait)
    device.loaded.add(module)
    engine.charge(LOAD_PS, f"load {module}")


def preload(devices: Iterable[Device], modules: Iterable[str]) -> None:
    """Load code now, while nothing runs."""
    names = list(modules)
    for device in devices:
        if device.loaded is not None:
            device.loaded.update(names)
