"""Programs whose layouts are compared: their functions, with defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map

from simrank.errors import ConfigError, ConfigProblem

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch.distributed.device_mesh import DeviceMesh
    from torch.nn import Module

NEEDED = ("build", "batch", "loss", "parallelize")
LAYOUT = "LAYOUT"  # The layout of a program that is run without a list of layouts.
# Parts of a module's name that wrappers add.
_WRAPPERS = frozenset({"module", "_checkpoint_wrapped_module", "_orig_mod", "_fsdp_wrapped_module"})
_LEARNING_RATE = 0.1  # Of the default update; large, so that a wrong gradient shows.


def plain_name(name: str, renamed: Mapping[str, str] | None = None) -> str:
    """Return the name of a module or parameter without the parts that wrappers add.

    Args:
        name: As torch gives it.
        renamed: Names of modules here, and those to use.
    """
    plain = ".".join(part for part in name.split(".") if part not in _WRAPPERS)
    for here in sorted(renamed or {}, key=len, reverse=True):
        if not here or plain == here or plain.startswith(f"{here}."):
            rest = plain[len(here) :].lstrip(".")
            return ".".join(filter(None, [(renamed or {})[here], rest]))
    return plain


@dataclass(frozen=True)
class EqualProgram:
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


def program_of(names: Mapping[str, Any], path: str) -> EqualProgram:
    """Return the program that a file defines.

    Args:
        names: The names of the file.
        path: The file, for the error.

    Raises:
        ConfigError: A function is missing.
    """
    for name in NEEDED:
        if not callable(names.get(name)):
            expected = f"a function {name}; needed are {', '.join(NEEDED)}"
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
    return EqualProgram(
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
