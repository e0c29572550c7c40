"""Programs whose layouts are compared: their functions, with defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.utils._pytree import tree_map

from simrank.errors import ConfigError, ConfigProblem

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch.distributed.device_mesh import DeviceMesh
    from torch.nn import Module

    from simrank.equality.setting import Setting

WHOLE = "program"  # The name of one that an adapter made.
NEEDED = ("build", "batch", "loss", "parallelize")
LAYOUT = "LAYOUT"  # The layout of a program that is run without a list of layouts.
_LEARNING_RATE = 0.1  # Of the default update; large, so that a wrong gradient shows.


class Session(Protocol):
    """A program on a rank, once its model is built.

    Attributes:
        parts: The model, or its parts.
        exported: Of the single program: its values under names that ranks look them up by.
    """

    parts: Sequence[Module]
    exported: Mapping[str, torch.Tensor]

    def step(self, index: int, note_gradients: Callable[[], None]) -> torch.Tensor | None:
        """Do a training step.

        Args:
            index: Of the step.
            note_gradients: Called when gradients are final, before they are clipped.

        Returns:
            The loss, or None where a rank has none.
        """


class Program(Protocol):
    """A program that can be started as a single one, and on each rank of a layout.

    Attributes:
        axes: Names of the axes that a layout may have, outermost first; none: any, as given.
        shared_axes: Those of axes that lie over the ranks of the others, such as `ep`.
    """

    @property
    def axes(self) -> Sequence[str]:
        """Names of the axes that a layout may have, outermost first; none: any, as given."""

    @property
    def shared_axes(self) -> Sequence[str]:
        """Names of axes that lie over the ranks of the others, such as `ep`."""

    def start(self, setting: Setting) -> Session:
        """Build the model on the running rank."""


@dataclass(frozen=True)
class Functions:
    """The functions of a program.

    Attributes:
        build: `build()` returns the single model.
        batch: `batch(step)` returns the tensors of one step for all ranks, inputs first.
        loss: `loss(model, batch)` returns the loss of the single program.
        parallelize: `parallelize(model, mesh)` returns this rank's model, or a list of its parts.
        part: `part(batch, mesh)` returns this rank's part of a batch.
        train: `train(model, batch, mesh)` does the forward, the backward and what finishes
            gradients; it returns the loss, or None where a rank has none.
        update: `update(model, mesh)` does the optimizer's step; the mesh is None in the single
            program.
    """

    build: Callable[[], Module]
    batch: Callable[[int], Sequence[torch.Tensor]]
    loss: Callable[[Any, Any], torch.Tensor]
    parallelize: Callable[[Module, DeviceMesh], Any]
    part: Callable[[Any, DeviceMesh], Any]
    train: Callable[[Any, Any, DeviceMesh], torch.Tensor | None]
    update: Callable[[Any, DeviceMesh | None], object]

    @property
    def axes(self) -> Sequence[str]:
        """Any."""
        return ()

    @property
    def shared_axes(self) -> Sequence[str]:
        """None: all axes are those of the mesh."""
        return ()

    def start(self, setting: Setting) -> Session:
        """Build the model on the running rank, and let `parallelize` change it."""
        torch.manual_seed(0)
        model: Any = setting.prepare(self.build())
        if setting.mesh is not None:
            model = self.parallelize(model, setting.mesh)
        return _Functions(self, setting, model)


class _Functions:
    """The functions of a program on a rank."""

    def __init__(self, functions: Functions, setting: Setting, model: Any) -> None:  # noqa: ANN401
        self.parts: Sequence[Module] = list(model) if isinstance(model, list | tuple) else [model]
        self.exported: Mapping[str, torch.Tensor] = {}
        self._functions, self._setting, self._model = functions, setting, model

    def step(self, index: int, note_gradients: Callable[[], None]) -> torch.Tensor | None:
        """Do the forward, the backward and the update."""
        functions, mesh = self._functions, self._setting.mesh
        batch = self._setting.place(functions.batch(index))
        if mesh is None:
            loss: torch.Tensor | None = functions.loss(self._model, batch)
            assert loss is not None
            loss.backward()
        else:
            loss = functions.train(self._model, batch, mesh)
        note_gradients()
        functions.update(self._model, mesh)
        return loss


def program_of(names: Mapping[str, Any], path: str) -> Program:
    """Return the program that a file defines: its `program`, or that of its functions.

    Args:
        names: The names of the file.
        path: The file, for the error.

    Raises:
        ConfigError: A function is missing.
    """
    whole: Any = names.get(WHOLE)
    if callable(getattr(whole, "start", None)) and hasattr(whole, "axes"):
        found: Program = whole
        return found
    for name in NEEDED:
        if not callable(names.get(name)):
            expected = f"a function {name}; needed are {', '.join(NEEDED)}, or a {WHOLE}"
            raise ConfigError(ConfigProblem(path, None, name, expected, "none"))
    loss = names["loss"]
    # A module of that name is none of its functions.
    others = {
        name: names[name] for name in ("part", "train", "update") if callable(names.get(name))
    }
    part = others.get("part", _part)

    def train(model: Any, batch: Any, mesh: DeviceMesh) -> torch.Tensor:  # noqa: ANN401
        value: torch.Tensor = loss(model, part(batch, mesh))
        value.backward()
        return value

    functions = {name: names[name] for name in NEEDED}
    return Functions(
        **functions,
        part=part,
        train=others.get("train", train),
        update=others.get("update", _update),
    )


def _part(batch: Any, mesh: DeviceMesh) -> Any:  # noqa: ANN401 - of the program's own types
    """Return this rank's rows: chunks of dimension 0 over the axis `dp`, if there is one."""
    if "dp" not in (mesh.mesh_dim_names or ()):
        return batch
    axis = mesh["dp"]
    return tree_map(lambda each: _chunk(each, axis), batch)


def _chunk(each: Any, axis: DeviceMesh) -> Any:  # noqa: ANN401 - as above
    if not isinstance(each, torch.Tensor) or not each.dim():
        return each
    return each.chunk(axis.size())[axis.get_local_rank()]


def _update(model: Any, _mesh: DeviceMesh | None) -> None:  # noqa: ANN401 - a model or its parts
    """Do a step of plain gradient descent."""
    with torch.no_grad():
        for part in model if isinstance(model, list | tuple) else [model]:
            for parameter in part.parameters():
                if parameter.grad is not None:
                    parameter.sub_(_LEARNING_RATE * parameter.grad)
