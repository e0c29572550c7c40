"""Settings: the precision, place and values with which a program builds its model on a rank."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.utils._pytree import tree_map

from simrank.equality.precision import cast
from simrank.equality.record import plain_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch.distributed.device_mesh import DeviceMesh
    from torch.nn import Module

    from simrank.equality.record import Taped

_JITTER = 0.02  # Of the parameters, in their own unit: no two elements are alike.
_JITTER_SEED = 3
_JITTER_SERIES, _JITTER_STRIDE = 1 << 16, 7919  # Numbers that are drawn, and a prime.


@dataclass(frozen=True)
class Setting:
    """The precision, place and values with which a program builds its model on a rank.

    Attributes:
        dtype: What parameters and floating inputs are computed in; None: in their own types.
        device: Where models and batches lie: cuda, the rank's own, or cpu.
        sizes: Those of the layout's axes; none: the single program.
        mesh: The axes that are no shared ones; None: the single program.
        initial: The single program's parameters before its first step; None: this is it, and draws
            them.
        exported: Its values under other names, if it exports some.
    """

    dtype: torch.dtype | None
    device: str = "cuda"
    sizes: Mapping[str, int] = field(default_factory=dict)
    mesh: DeviceMesh | None = None
    initial: Mapping[str, Taped] | None = None
    exported: Mapping[str, torch.Tensor] | None = None

    def move(self, model: Module) -> Module:
        """Return a model on the rank's device, in the type that is computed in."""
        return model.to(self.device)._apply(lambda each: cast(each, self.dtype))  # noqa: SLF001

    def prepare(self, model: Module) -> Module:
        """Return the single model on the rank's device, no two elements of it alike.

        Ones and zeros could not be aligned, and would hide faults. In its own types the model gets
        the values that it had in float64.
        """
        if self.dtype is None and self.initial is not None:
            self.fill([model])
            return self.move(model)
        model._apply(lambda each: cast(each, self.dtype))  # noqa: SLF001 - also of its buffers
        jitter = _Jitter()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.is_floating_point() or parameter.is_complex():
                    jitter.add_to(parameter)
        return self.move(model)

    def with_values(self, model: Module) -> Module:
        """Return a model on the rank's device: the single one prepared, a rank's one filled."""
        if self.mesh is None:
            return self.prepare(model)
        self.move(model)
        self.fill([model])
        return model

    def rows_per_rank(self, num_rows: int, *axes: str) -> int:
        """Return the number of rows that a rank has of a batch which some axes split.

        Raises:
            ValueError: They do not divide it.
        """
        count = prod(self.sizes.get(axis, 1) for axis in axes)
        if num_rows % count:
            raise ValueError(f"a batch of {num_rows} rows for {count} data-parallel ranks")
        return num_rows // count

    def place(self, batch: Any) -> Any:  # noqa: ANN401 - of the program's own types
        """Return the tensors of a step on the rank's device, in their own structure."""

        def placed(tensor: Any) -> Any:  # noqa: ANN401 - of the program's own types
            is_tensor = isinstance(tensor, torch.Tensor)
            return cast(tensor.to(self.device), self.dtype) if is_tensor else tensor

        return tree_map(placed, tuple(batch) if isinstance(batch, list) else batch)

    def rows_per_piece(self, num_rows: int, count: int, axes: Sequence[str]) -> int:
        """Return the rows of each of `count` parts in which a rank takes its rows.

        Raises:
            ValueError: Rows cannot be shared.
        """
        size, rest = divmod(self.rows_per_rank(num_rows, *axes), count)
        if rest:
            raise ValueError(f"{count} micro-batches of {size * count + rest} rows")
        return size

    def pieces(self, batch: Any, count: int, axes: Sequence[str]) -> list[Any]:  # noqa: ANN401
        """Return the parts in which the rank takes its rows of a batch, on its device.

        Args:
            batch: Of all ranks together, rows first, in the program's own structure.
            count: Parts.
            axes: Whose ranks share the rows.

        Raises:
            ValueError: Rows cannot be shared.
        """
        rank = 0
        for axis in axes:
            if self.mesh is not None and axis in (self.mesh.mesh_dim_names or ()):
                rank = rank * self.mesh[axis].size() + self.mesh[axis].get_local_rank()

        def piece(number: int, tensor: Any) -> Any:  # noqa: ANN401 - of the program's own types
            if not isinstance(tensor, torch.Tensor) or not tensor.dim():
                return tensor
            size = self.rows_per_piece(len(tensor), count, axes)
            first = (rank * count + number) * size
            return tensor[first : first + size]

        return [tree_map(partial(piece, number), self.place(batch)) for number in range(count)]

    def fill(self, parts: Sequence[Module], *, only_sharded: bool = False) -> None:
        """Give the parameters of a rank the single program's values, by name and placement.

        Args:
            parts: The rank's model, or its parts.
            only_sharded: Whether only to DTensors.

        Raises:
            KeyError: The single program has no parameter of that name.
        """
        assert self.initial is not None
        for part in parts:
            for name, parameter in part.named_parameters():
                if only_sharded and not isinstance(parameter, DTensor):
                    continue
                value = self.initial[plain_name(name)].value
                with torch.no_grad():
                    _fill(parameter, value)


class _Jitter:
    """Small numbers that all differ: sums of one number of each of two series."""

    def __init__(self) -> None:
        drawn = torch.Generator().manual_seed(_JITTER_SEED)
        shape = 2, _JITTER_SERIES
        self._rows, self._columns = _JITTER * torch.randn(shape, generator=drawn).double()
        self._num_used = 0  # Of the rows.

    def add_to(self, parameter: torch.Tensor) -> None:
        """Add to each element, in place, a share of it, so that it keeps its sign."""
        columns = self._columns.roll(_JITTER_STRIDE * self._num_used)
        columns = columns.to(parameter.device, parameter.dtype)
        elements = parameter.view(-1) if parameter.is_contiguous() else parameter.flatten()
        for piece in elements.split(_JITTER_SERIES):  # As much as caches hold.
            row = self._rows[self._num_used % _JITTER_SERIES].item()
            self._num_used += 1
            share = torch.where(piece == 0, 1, piece)
            piece.addcmul_(columns[: len(piece)] + row, share)
        if not parameter.is_contiguous():
            parameter.copy_(elements.view(parameter.shape))


def _fill(parameter: torch.Tensor, value: torch.Tensor) -> None:
    if isinstance(parameter, DTensor):
        shape, offset = compute_local_shape_and_global_offset(
            parameter.shape, parameter.device_mesh, parameter.placements
        )
        for dim, (start, size) in enumerate(zip(offset, shape, strict=True)):
            value = value.narrow(dim, start if size else 0, size)
        parameter = parameter.to_local()
    parameter.copy_(value)
