"""What torch keeps per process or per native thread, for each rank: begun, swapped and ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._C import _distributed_c10d as c10d_bindings

from simrank.torch import devices, rank_devices
from simrank.torch.settings import settings_of

if TYPE_CHECKING:
    from simrank.ranks import Program

_generator = torch.default_generator
_FIRST_SEED = 67280421310721  # Source: c10::detail::default_rng_seed_val; torch's own start.


class TorchState:
    """The state of one rank: its CPU generator and settings are in place while it has the turn.

    What torch keeps per native thread (grad and inference mode, autocast, dispatch modes, default
    device) is the rank's own because its thread is.
    """

    def __init__(self, program: Program) -> None:
        self._seed = _FIRST_SEED + (program.rank or 0) + (program.engine.seed << 20)
        self._program = program
        self._settings = settings_of(program)
        self._own: torch.Tensor | None = None
        self._others: torch.Tensor | None = None

    @property
    def turn(self) -> TorchState:
        """Return itself: it follows the turns."""
        return self

    def begin(self) -> None:
        """Let backward run on the rank's own thread."""
        torch.autograd.set_multithreading_enabled(False)

    def end(self) -> None:
        """Forget the groups that C++ knows under the thread's id, which will be used again."""
        bindings: Any = c10d_bindings
        bindings._unregister_all_process_groups()  # noqa: SLF001 - torch's name
        devices.end_of_rank(self._program)

    def enter(self) -> None:
        """Put the rank's random numbers and settings in place."""
        self._others = _generator.get_state()
        if self._own is None:
            _generator.manual_seed(self._seed)
        else:
            _generator.set_state(self._own)
        self._settings.enter()
        if devices.is_enabled() and rank_devices.num_visible(self._program):
            devices.enable_for(self._program)

    def leave(self) -> None:
        """Give the others theirs back."""
        devices.flush()
        self._settings.leave()
        self._own = _generator.get_state()
        assert self._others is not None, "entered"
        _generator.set_state(self._others)
