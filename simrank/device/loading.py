"""Lazy loading: a kernel's code comes to the device at its first launch, once the device is quiet.

So a kernel that spins until something issued later sets its flag can block the host for ever: the
load in between waits for it. `preload` loads before anything runs.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from simrank.engine import Handle
from simrank.ranks import require_program

if TYPE_CHECKING:
    from collections.abc import Iterable

    from simrank.device.device import Device
    from simrank.device.operation import Operation
    from simrank.device.stream import Stream
    from simrank.engine import CallSite

_MODE = "CUDA_MODULE_LOADING"
LOAD_PS = 300_000_000  # assumed: 0.3 ms for the code of one kernel


class Loading(Handle):
    """The load of a kernel's code: its host waits for the device to be quiet, others for the load.

    Attributes:
        behind: What other hosts of the device wait to issue until the code is there.
    """

    __slots__ = ("_blocker", "_module", "behind")

    def __init__(self, module: str, blocker: Operation) -> None:
        super().__init__()
        self._module = module
        self._blocker = blocker
        self.behind: list[str] = []

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

    @property
    def to_fix(self) -> str:
        """Return the cycle of waits, from what sets the flag back to it, and what breaks it."""
        setter = self.behind[0] if self.behind else "what this host would issue next"
        running = self._blocker.blocker().describe()
        return (
            f"{setter} <- load of '{self._module}' <- {running} <- its flag <- {setter}: load "
            "kernels before anything runs, with ctx.preload() or CUDA_MODULE_LOADING=EAGER"
        )


class BehindLoad(Handle):
    """A host's wait for a load that another host of the device has begun, for reports."""

    __slots__ = ("_loading", "_name")

    def __init__(self, name: str, loading: Loading) -> None:
        super().__init__()
        self._name = name
        self._loading = loading

    def describe(self) -> str:
        """Return what is to be issued, and behind what."""
        return f"the call of '{self._name}', behind {self._loading.describe()}"

    @property
    def to_fix(self) -> str:
        """Return the cycle that the load is in."""
        return self._loading.to_fix


def load_before(stream: Stream, operation: Operation) -> None:
    """Load what an operation runs if the device lacks it: block the host until it is quiet.

    Meanwhile no other host of the device issues anything, not even a copy.
    """
    device, module = stream.device, operation.module
    engine = device.engine
    while device.loading is not None:
        loading = device.loading
        loading.behind.append(operation.name)
        wait = BehindLoad(operation.name, loading)
        loading.on_complete(lambda wait=wait: wait.finish(engine))  # type: ignore[misc]
        engine.wait(wait)
    if module is None or _has(device, module):
        return
    for other in list(device.streams or ()):
        tail = other.tail
        if tail is None:
            continue
        loading = device.loading = Loading(module, tail)
        tail.on_complete(lambda loading=loading: _quiet(device, loading))  # type: ignore[misc]
        engine.wait(loading)
    assert device.loaded is not None, "it loads lazily"
    device.loaded.add(module)
    engine.charge(LOAD_PS, f"load {module}")


def _quiet(device: Device, loading: Loading) -> None:
    if device.loading is loading:
        device.loading = None
    loading.finish(device.engine)


def _has(device: Device, module: str) -> bool:
    """Return whether a device has a kernel: by its name, or by the first word, its family's.

    Source: CUDA Programming Guide, section 4.7: CUDA_MODULE_LOADING is read as a process starts to
    use the device.
    """
    loaded = device.loaded
    if loaded is None or module in loaded or module.partition(" ")[0] in loaded:
        return True
    program = require_program("a launch")
    mode: str | None = program.local.get(_MODE)
    if mode is None:
        mode = program.local[_MODE] = os.environ.get(_MODE, "")
    return mode.upper() == "EAGER"


def preload(devices: Iterable[Device], kernels: Iterable[Any]) -> None:
    """Load kernels now, while nothing runs; each by its name, or as something that has one."""
    names = [kernel if isinstance(kernel, str) else kernel.__name__ for kernel in kernels]
    for device in devices:
        if device.loaded is not None:
            device.loaded.update(names)
