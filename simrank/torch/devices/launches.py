"""Triton kernels on torch's tensors: arguments, and order among torch's operations.

torch computes at once, and so do kernels that neither wait nor publish; they take their time on
torch's current stream. Those that wait for other ranks run at their turn there, and torch's
operations that touch their memory wait.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from simrank.engine.callsite import is_library
from simrank.kernels import library_tensors
from simrank.ranks.current import rank_program
from simrank.torch.cuda import operations
from simrank.torch.cuda.library import native
from simrank.torch.cuda.streams import captured_graph, frozen_all
from simrank.torch.devices import activation, buffers
from simrank.torch.devices.rank_devices import note_storages, settle_pending

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import FrameType

    from simrank.device import Operation
    from simrank.device.memory import Storage
    from simrank.device.tensors.tensor import Tensor
    from simrank.ranks import Program
    from simrank.torch.devices.rank_devices import RankDevices


_KEY = "launches on torch's tensors"


class TorchLaunches:
    """The part of torch in the launches of one rank; see `library_tensors.Library`."""

    namespace: Any = torch.cuda

    def __init__(self, program: Program, own: RankDevices) -> None:
        self._program = program
        self._own = own

    def prepare(self) -> None:
        """Issue pending operations, and make torch's device and stream current."""
        self._own.flush()
        self._own.make_current()

    def launched(
        self,
        launch: Callable[[tuple[Any, ...], dict[str, Any]], object],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        """Add the launch to the graph that is captured."""
        if captured_graph() is not None:
            kept = frozen_all(args), frozen_all(kwargs)
            activation.keep_in_graph(partial(launch, *kept), (*args, *kwargs.values()))

    def tensor(self, value: object) -> Tensor | None:
        """Return a torch tensor, or an object with an address and a type, as simrank's tensor."""
        if isinstance(value, torch.Tensor):
            return buffers.argument_of(value)
        return buffers.pointed_at(value) if hasattr(value, "data_ptr") else None

    def values(self, value: object) -> np.ndarray[Any, Any] | None:
        """Return a copy of a torch tensor's values; complex numbers become pairs."""
        if not isinstance(value, torch.Tensor):
            return None
        plain = value.detach().resolve_conj().resolve_neg()
        real = torch.view_as_real(plain) if plain.is_complex() else plain
        return np.array(buffers.argument_of(real).numpy())

    def phase(self) -> str:
        """Return the phase of a training step in which the program is."""
        return operations.phase()

    def settle(self, reads: Sequence[Storage], writes: Sequence[Storage]) -> None:
        """Wait for operations in flight that use the storages."""
        settle_pending(reads, writes)

    def in_flight(
        self, operation: Operation, reads: Sequence[Storage], writes: Sequence[Storage]
    ) -> None:
        """Make the rank's torch operations wait for a kernel."""
        note_storages(operation, reads, writes, self._program)

    def function(self, name: str) -> Callable[..., Any] | None:
        """Return torch's function of floats, as its simulated devices compute it."""
        own = getattr(torch, name, None)
        return None if own is None else partial(_computed, own)

    def current_device(self) -> int:
        """Return the current device's number in its node."""
        return int(native().simrank_current_device())

    def current_stream(self, device: int) -> int:
        """Return the handle of a device's current stream."""
        return int(native().simrank_current_stream(device))

    def device(self) -> torch.device:
        """Return the current device."""
        return torch.device("cuda", self.current_device())


def _computed(function: Callable[..., torch.Tensor], *arrays: Any) -> Any:
    """Compute a function of numpy arrays with torch, outside of the rank's modes."""
    disabled: Any = torch._C  # noqa: SLF001 - the documented way out of modes
    with disabled._DisableTorchDispatch(), disabled.DisableTorchFunction(), torch.no_grad():  # noqa: SLF001
        return function(*(torch.from_numpy(array) for array in arrays)).numpy()


class _Finder:
    """Finder of the running rank's `TorchLaunches`."""

    def running(self) -> TorchLaunches | None:
        """Return the running rank's launches, once it has used a device."""
        own = activation.devices_in_use()
        if own is None:
            return None
        program = rank_program()
        assert program is not None, "it has devices"
        found: TorchLaunches | None = program.local.get(_KEY)
        if found is None:
            found = program.local[_KEY] = TorchLaunches(program, own)
        return found

    def asked_by_user(self) -> TorchLaunches | None:
        """Return the rank's launches; turn devices on if the calling module imports torch."""
        program = rank_program()
        if program is None or not _has_torch() or not activation.are_available(program.context):
            return None
        activation.enable_for(program)
        return self.running()

    def of_values(self, values: Iterable[object]) -> TorchLaunches | None:
        """Return the rank's launches; turn devices on for a tensor of a Context that has ended."""
        program = rank_program()
        if program is None or not any(isinstance(v, torch.Tensor) and v.is_cuda for v in values):
            return None
        activation.enable_for(program)
        return self.running()


def _has_torch() -> bool:
    """Return whether the user's module that asks has imported torch."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - the documented way to one's caller
    while frame is not None and is_library(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return False
    return any(value is torch for value in list(frame.f_globals.values()))


_finder = _Finder()


def install() -> None:
    """Register torch with the launches of kernels."""
    library_tensors.register(_finder)
