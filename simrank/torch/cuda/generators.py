"""`torch.cuda.default_generators` of the rank that asks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import torch

from simrank.torch.cuda.native import native


class DefaultGenerators(Sequence[torch.Generator]):
    """One generator per visible device; each rank has its own."""

    def __len__(self) -> int:
        """Return the number of visible devices."""
        return int(native().simrank_num_devices())

    @overload
    def __getitem__(self, index: int) -> torch.Generator: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[torch.Generator, ...]: ...
    def __getitem__(self, index: int | slice) -> torch.Generator | tuple[torch.Generator, ...]:
        """Return the generator of a device."""
        if isinstance(index, slice):
            return tuple(self[device] for device in range(len(self))[index])
        device = range(len(self))[index]
        generator: torch.Generator = torch.ops.simrank_cuda.default_generator(device)
        return generator
