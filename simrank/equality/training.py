"""The training steps of a program on a rank: the program does them, and a tape records them."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch.utils._pytree import tree_flatten

from simrank.equality.dropouts import Dropouts
from simrank.equality.record import parameters_of, plain_name, taped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch.nn import Module
    from torch.overrides import TorchFunctionMode

    from simrank.equality.alignment import Rows
    from simrank.equality.layout import Layout
    from simrank.equality.record import Dropped, Spot
    from simrank.equality.tape import Tape

_SEED = 1
_NO_MODEL = "the program trained nothing: it has to call watch with its model"
_NOT_NOTED = "the program has to call note_gradients before it clips and uses them"
_TOO_FEW = "the program ended after {} of {} steps"


class Training:
    """The steps of a program on a rank.

    A program calls `watch` once its model has its values, and at each of `num_steps` steps
    `begin`, `note_gradients` and `end`: in a loop, or where a trainer calls it back.

    Args:
        num_steps: As below.
        make_tape: Returns the tape of a model's parts.
        place: Where the rank stands; None in the single program.
        has_dropout: Whether dropouts drop anything.

    Attributes:
        num_steps: Steps to do.
    """

    def __init__(
        self,
        num_steps: int,
        make_tape: Callable[[Sequence[Module]], Tape],
        place: tuple[Layout, Mapping[str, int]] | None = None,
        *,
        has_dropout: bool = True,
    ) -> None:
        self.num_steps = num_steps
        self._make_tape, self._place, self._has_dropout = make_tape, place, has_dropout
        self._parts: Sequence[Module] = ()
        self._tape: Tape | None = None
        self._step = ExitStack()
        self._num_ended, self._seed = 0, 0

    @property
    def tape(self) -> Tape:
        """The tape of the model.

        Raises:
            RuntimeError: The program has none yet.
        """
        if self._tape is None:
            raise RuntimeError(_NO_MODEL)
        return self._tape

    def watch(
        self, parts: Sequence[Module], exported: Mapping[str, torch.Tensor] | None = None
    ) -> None:
        """Record the modules of a model from now on.

        Args:
            parts: The model, or its parts.
            exported: Of the single program: its values under names that ranks look them up by.
        """
        self._parts = list(parts)
        self._tape = self._make_tape(self._parts)
        self._tape.record.exported = exported or {}

    def begin(self) -> None:
        """Begin a step: before its forward."""
        if torch.initial_seed() == self._seed:  # Otherwise the program has set its own.
            self._set_seed(_SEED + self._num_ended)
        self._step.enter_context(self.tape.step())

    def note_gradients(self) -> None:
        """Record the gradients: when they are final, before they are clipped."""
        self.tape.note_gradients()

    def end(self, loss: object = None) -> None:
        """End a step: after its update.

        Args:
            loss: Of the rank's part of the batch; None where a rank has none.

        Raises:
            RuntimeError: The gradients were not noted.
        """
        step = self.tape.record.steps[-1]
        if not step.parameter_gradients:
            raise RuntimeError(_NOT_NOTED)
        step.loss = None if loss is None else taped(torch.as_tensor(loss)).value
        self.tape.note_state()
        self._step.close()
        for part in self._parts:
            part.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        step.to_host()
        self._num_ended += 1

    @contextmanager
    def recorded(self, modes: list[TorchFunctionMode]) -> Iterator[None]:
        """Record the steps that a block does, and all dropouts there and in its backwards.

        Args:
            modes: Those of the rank's backwards.

        Raises:
            RuntimeError: It did fewer.
        """
        self._set_seed(0)
        off: set[str] = set()
        dropouts = Dropouts(
            self._find_dropout,
            lambda: self._tape is not None and self._tape.is_in_step(),
            off,
            self._place,
            is_off=not self._has_dropout,
        )
        before = list(modes)
        modes.append(dropouts)
        try:
            with dropouts:
                yield
        finally:
            modes[:] = before
        if self._num_ended < self.num_steps:
            raise RuntimeError(_TOO_FEW.format(self._num_ended, self.num_steps))
        self.tape.record.switched_off |= off

    def _set_seed(self, seed: int) -> None:
        self._seed = seed
        torch.manual_seed(seed)

    def _find_dropout(self) -> tuple[list[Dropped], Dropped | None, Rows | None]:
        return self.tape.find_dropout()


class _Seen(Exception):  # noqa: N818 - it ends a step, and is no error
    """The gradients of a step are known: the rest of it is not needed."""


class PartOfBatch(Training):
    """Steps of the single program, the last of which has the gradients of a part of its batch.

    Args:
        num_steps: As above; the last of them ends with its gradients.
        make_tape: As above.
        output: A tensor that passes.
        flows: By call of it, the elements through which its gradient flows in the last step.
        has_dropout: As above.

    Attributes:
        gradients: Of the last step, by parameter.
    """

    def __init__(
        self,
        num_steps: int,
        make_tape: Callable[[Sequence[Module]], Tape],
        output: Spot,
        flows: Mapping[int, Sequence[int]],
        *,
        has_dropout: bool = True,
    ) -> None:
        super().__init__(num_steps, make_tape, has_dropout=has_dropout)
        self.gradients: dict[str, torch.Tensor] = {}
        self._output, self._flows = output, flows
        self._num_calls = 0

    def watch(
        self, parts: Sequence[Module], exported: Mapping[str, torch.Tensor] | None = None
    ) -> None:
        """Record the modules of a model from now on."""
        super().watch(parts, exported)
        named = ((name, m) for part in parts for name, m in part.named_modules())
        module = next(each for name, each in named if plain_name(name) == self._output.module)
        module.register_forward_hook(self._see)

    def begin(self) -> None:
        """Begin a step."""
        super().begin()
        self._num_calls = 0

    def note_gradients(self) -> None:
        """Record the gradients, and end the last step."""
        super().note_gradients()
        if self._is_last:
            self.gradients = {
                name: each.grad.detach().cpu().clone()
                for name, each in parameters_of(self._parts).items()
                if each.grad is not None
            }
            raise _Seen

    @contextmanager
    def recorded(self, modes: list[TorchFunctionMode]) -> Iterator[None]:
        """Run the steps of a block up to the last one's gradients."""
        try:
            with super().recorded(modes):
                yield
        except _Seen:
            pass

    @property
    def _is_last(self) -> bool:
        return self._num_ended == self.num_steps - 1

    def _see(self, _module: Module, _args: object, out: object) -> None:
        elements = self._flows.get(self._num_calls)
        self._num_calls += 1
        if elements is not None and self._is_last:
            tree_flatten(out)[0][self._output.index].register_hook(partial(_cut, elements))


def _cut(elements: Sequence[int], gradient: torch.Tensor) -> torch.Tensor:
    """Return a gradient that is zero but for some elements."""
    mask = torch.zeros(gradient.numel(), dtype=gradient.dtype)
    mask[list(elements)] = 1
    return gradient * mask.view(gradient.shape).to(gradient.device)
