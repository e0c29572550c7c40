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
    from simrank.equality.training import Training

WHOLE = "program"  # The name of one that an adapter made.
NEEDED = ("build", "batch", "loss", "parallelize")
LAYOUT = "LAYOUT"  # The layout of a program that is run without a list of layouts.
_LEARNING_RATE = 0.1  # Of the default update; large, so that a wrong gradient shows.


class Program(Protocol):
    """A program that can train as a single one, and on each rank of a layout.

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

    def train(self, setting: Setting, training: Training) -> object:
        """Build the model on the running rank, and do the steps.

        Args:
            setting: The rank's place, and the single program's values.
            training: Is told of the model and of each step.
        """


@dataclass(frozen=True)
class Functions:
    """The functions of a program.

    Attributes:
        build: `build()` returns the single model.
        batch: `batch(step)` returns the tensors of one step for all ranks, inputs first.
        loss: `loss(model, batch)` returns the loss of the single program.
        parallelize: `parallelize(model, mesh)` returns this rank's model, or a list of its parts.
        train_step: `train(model, batch, mesh)` does the forward, the backward and what finishes
            gradients; it returns the loss, or None where a rank has none.
        update: `update(model, mesh)` does the optimizer's step; the mesh is None in the single
            program.
    """

    build: Callable[[], Module]
    batch: Callable[[int], Sequence[torch.Tensor]]
    loss: Callable[[Any, Any], torch.Tensor]
    parallelize: Callable[[Module, DeviceMesh], Any]
    train_step: Callable[[Any, Any, DeviceMesh], torch.Tensor | None]
    update: Callable[[Any, DeviceMesh | None], object]

    @property
    def axes(self) -> Sequence[str]:
        """Any."""
        return ()

    @property
    def shared_axes(self) -> Sequence[str]:
        """None: all axes are those of the mesh."""
        return ()

    def train(self, setting: Setting, training: Training) -> None:
        """Build the model, let `parallelize` change it, and do the steps."""
        model: Any = setting.prepare(self.build())
        if setting.mesh is not None:
            model = self.parallelize(model, setting.mesh)
        training.watch(model if isinstance(model, list | tuple) else [model])
        for index in range(training.num_steps):
            training.begin()
            batch = setting.place(self.batch(index))
            if setting.mesh is None:
                loss: torch.Tensor | None = self.loss(model, batch)
                assert loss is not None
                loss.backward()
            else:
                loss = self.train_step(model, batch, setting.mesh)
            training.note_gradients()
            self.update(model, setting.mesh)
            training.end(loss)


def program_of(names: Mapping[str, Any], path: str) -> Program:
    """Return the program that a file defines: its `program`, or that of its functions.

    Args:
        names: The names of the file.
        path: The file, for the error.

    Raises:
        ConfigError: A function is missing.
    """
    whole: Any = names.get(WHOLE)
    if callable(getattr(whole, "train", None)) and hasattr(whole, "axes"):
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
        train_step=others.get("train", train),
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
