"""What torch keeps per process or per native thread, for each rank: begun, swapped and ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._C import _distributed_c10d as c10d_bindings

from simrank.torch import devices, rank_devices
from simrank.torch.registry import groups_of
from simrank.torch.settings import settings_of

if TYPE_CHECKING:
    from simrank.ranks import Program

_generator = torch.default_generator
_FIRST_SEED = 67280421310721  # Source: c10::detail::default_rng_seed_val; torch's own start.


class HubGenerator:
    """The CPU generator's state of whoever drives an engine, while its ranks have their turns.

    Ranks that pass the turn on among themselves leave the generator as it is, so it is put back
    once, as the hub goes on: reading and setting it take as long as the rest of a turn.
    """

    def __init__(self) -> None:
        self._state: torch.Tensor | None = None

    def leave(self) -> None:
        """Keep its state, unless that is so already."""
        if self._state is None:
            self._state = _generator.get_state()

    def enter(self) -> None:
        """Put its state back."""
        if self._state is not None:
            _generator.set_state(self._state)
            self._state = None


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
        turns = program.engine.turns
        if turns.of_hub is None:
            turns.of_hub = HubGenerator()
        self._of_hub = turns.of_hub

    @property
    def turn(self) -> TorchState:
        """Return itself: it follows the turns."""
        return self

    def begin(self) -> None:
        """Let backward run on the rank's own thread, which C++ finds the rank's groups on too."""
        torch.autograd.set_multithreading_enabled(False)
        bindings: Any = c10d_bindings
        for group, name in groups_of(self._program).pg_names.items():
            bindings._register_process_group(name, group)  # noqa: SLF001 - torch's name

    def end(self) -> None:
        """Forget the groups that C++ knows under the thread's id, which will be used again."""
        bindings: Any = c10d_bindings
        bindings._unregister_all_process_groups()  # noqa: SLF001 - torch's name
        devices.end_of_rank(self._program)

    def enter(self) -> None:
        """Put the rank's random numbers and settings in place."""
        self._of_hub.leave()
        if self._own is None:
            _generator.manual_seed(self._seed)
        else:
            _generator.set_state(self._own)
        self._settings.enter()
        if devices.is_enabled() and rank_devices.num_visible(self._program):
            devices.enable_for(self._program)

    def leave(self) -> None:
        """Keep its own, and give the others their settings back."""
        devices.flush()
        self._settings.leave()
        self._own = _generator.get_state()
