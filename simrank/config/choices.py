"""Settings of a run that are one of a few words."""

from __future__ import annotations

# Constants of NCCL's laws: those that a cluster's file names, NCCL's own, those of many sites.
AUTO, NO_CALIBRATION, POOLED = "auto", "none", "pooled"
CHOICES: dict[str, tuple[str, ...]] = {
    "precision": ("ieee", "hardware"),
    "on_failure": ("abort", "continue"),
    "compute_time": ("roofline", "none"),
    "cuda_devices": ("simulated", "real"),
}


def checked_choice(name: str, value: str) -> str:
    """Return the value of a setting.

    Raises:
        ValueError: It is none of the choices; the text names them.
    """
    if value not in CHOICES[name]:
        raise ValueError(f"{name}={value!r}; choices: {', '.join(CHOICES[name])}")
    return value
