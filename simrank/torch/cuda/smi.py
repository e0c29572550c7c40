"""`nvidia-smi` of a rank: the list of its simulated devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from simrank.errors import UnsupportedError
from simrank.torch.cuda import switch

if TYPE_CHECKING:
    from collections.abc import Sequence

_LISTS = ("--list-gpus", "-L")


def answer(command: Sequence[str]) -> str | None:
    """Return the output of `nvidia-smi` on a rank; None: the rank has no simulated devices.

    Raises:
        UnsupportedError: It asks for more than the list of devices.
    """
    num_devices = torch.cuda.device_count()
    if not num_devices or not switch.is_enabled():
        return None
    if len(command) != 2 or command[1] not in _LISTS:
        raise UnsupportedError(
            f"{' '.join(command)}: of nvidia-smi's questions a rank may ask for the list of its "
            "simulated devices\n"
            "  to fix: ask nvidia-smi --list-gpus, or torch.cuda.get_device_properties"
        )
    devices = [torch.cuda.get_device_properties(i) for i in range(num_devices)]
    return "".join(
        f"GPU {number}: {each.name} (UUID: GPU-{each.uuid})\n"
        for number, each in enumerate(devices)
    )
