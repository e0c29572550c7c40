"""Kinds of the large blocks of torch's tensors: parameters, gradients, activations, ...

A block's kind comes from the phase of the training step in which it was allocated, and from what it
lives through: what forward has allocated and an optimizer's step finds there are parameters (and
buffers), what backward has left are gradients, what a step leaves are the optimizer's states. What
a collective sends or receives is a communication buffer.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from simrank.engine import CallSite

PARAMETERS, GRADIENTS, STATES = "parameters", "gradients", "optimizer states"
BUFFERS, ACTIVATIONS, TEMPORARIES = "communication buffers", "activations", "backward's temporaries"
KINDS = (PARAMETERS, GRADIENTS, STATES, ACTIVATIONS, BUFFERS, TEMPORARIES)
_AT_FIRST = {
    "forward": ACTIVATIONS,
    "recomputation": ACTIVATIONS,
    "backward": TEMPORARIES,
    "optimizer": STATES,
}
_BEFORE_STEP = {ACTIVATIONS: PARAMETERS, TEMPORARIES: GRADIENTS}


class Held:
    """A large block that is allocated.

    Attributes:
        owner: The number of the rank that has allocated it.
        device: The cluster's index of its device.
        size_bytes: Its size.
        site: The call site of the tensor's allocation.
        kind: One of `KINDS`.
        number: How many large blocks its device had allocated before.
    """

    __slots__ = ("device", "kind", "number", "owner", "site", "size_bytes")

    def __init__(
        self, owner: int, device: int, size_bytes: int, site: CallSite | None, phase: str
    ) -> None:
        self.owner = owner
        self.device = device
        self.size_bytes = size_bytes
        self.site = site
        self.kind = _AT_FIRST[phase]
        self.number = 0


class DeviceKinds:
    """Sums of a device's large blocks by kind, now and where they were most.

    Attributes:
        at_peak: The sums where all large blocks together were most.
        totals_bytes: The sum of all after each allocation and each free, as torch's memory
            viewer numbers them.
    """

    def __init__(self) -> None:
        self.totals_bytes = array("q")
        self._now = dict.fromkeys(KINDS, 0)
        self._total = self._peak = self._number = self._peak_number = 0
        self._has_stepped = False
        self.at_peak = dict(self._now)

    def add(self, held: Held) -> None:
        """Add a block that is allocated."""
        self._number += 1
        held.number = self._number
        self._now[held.kind] += held.size_bytes
        self._total += held.size_bytes
        if self._total > self._peak:
            self._peak, self._peak_number = self._total, self._number
            self.at_peak = dict(self._now)
        self.totals_bytes.append(self._total)

    def remove(self, held: Held) -> None:
        """Remove a block that is freed."""
        self._now[held.kind] -= held.size_bytes
        self._total -= held.size_bytes
        self.totals_bytes.append(self._total)

    def change(self, held: Held, kind: str) -> None:
        """Change a block's kind: at the peak too, if it was there already."""
        sums = [self._now, self.at_peak] if held.number <= self._peak_number else [self._now]
        for each in sums:
            each[held.kind] -= held.size_bytes
            each[kind] += held.size_bytes
        held.kind = kind

    def text(self) -> str:
        """Return the sums of now as text: `parameters 14.96 GiB, gradients 14.96 GiB`."""
        now = dict(self._now)
        if not self._has_stepped:  # Nothing tells them apart yet.
            now["parameters and activations"] = now.pop(ACTIVATIONS)
        parts = sorted(now.items(), key=lambda part: -part[1])
        return ", ".join(f"{kind} {size / 2**30:.2f} GiB" for kind, size in parts if size)

    def begin_step(self, blocks: Iterable[Held], gradients: Iterable[Held]) -> None:
        """Set the kinds of the blocks that live as an optimizer's step begins.

        Args:
            blocks: Of the rank that steps, on this device.
            gradients: Those of them in which the optimizer's gradients are.
        """
        self._has_stepped = True
        for held in blocks:
            if (kind := _BEFORE_STEP.get(held.kind)) is not None:
                self.change(held, kind)
        for held in gradients:
            self.change(held, GRADIENTS)

    def exchange(self, held: Held) -> None:
        """Note that a collective sends or receives a block."""
        if held.kind in (ACTIVATIONS, TEMPORARIES):
            self.change(held, BUFFERS)
