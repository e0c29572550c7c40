"""The section `[tool.simrank]` of a project, and settings of a run that are a few words."""

from __future__ import annotations

import tomllib
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from simrank.errors import ConfigError, ConfigProblem

# ---- settings of a run that are one of a few words ----

# Constants of NCCL's laws: those that a cluster's file names, NCCL's own, those of many sites.
AUTO, NO_CALIBRATION, POOLED = "auto", "none", "pooled"
ANY = -1  # In a tuner's file: any number of nodes, ranks or operations.
SIMULATED, REAL = "simulated", "real"
CHOICES: dict[str, tuple[str, ...]] = {
    "precision": ("ieee", "hardware"),
    "on_failure": ("abort", "continue"),
    "compute_time": ("roofline", "none"),
    "cuda_devices": (SIMULATED, REAL),
}


def checked_choice(name: str, value: str) -> str:
    """Return the value of a setting.

    Raises:
        ValueError: It is none of the choices; the text names them.
    """
    if value not in CHOICES[name]:
        raise ValueError(f"{name}={value!r}; choices: {', '.join(CHOICES[name])}")
    return value


# ---- the section `[tool.simrank]` of a project's `pyproject.toml` ----


class ProjectSettings(NamedTuple):
    """Settings of a project for all of its runs.

    Attributes:
        private: Packages and modules that each rank executes for itself.
        devices: What "cuda" means to torch, "simulated" or "real"; None: commands simulate, a
            Context and pytest take the GPUs that torch sees.
    """

    private: tuple[str, ...] = ()
    devices: str | None = None


def project_settings() -> ProjectSettings:
    """Return the settings of the project that the current folder belongs to.

    Raises:
        ConfigError: The section has unknown keys.
    """
    folder = Path.cwd()
    for place in (folder, *folder.parents):
        file = place / "pyproject.toml"
        if file.is_file():
            return _read(str(file), file.stat().st_mtime_ns)
    return ProjectSettings()


@lru_cache(maxsize=16)
def _read(file: str, changed_ns: int) -> ProjectSettings:
    del changed_ns  # Part of the key.
    try:
        document = tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError):
        return ProjectSettings()  # Other tools say so.
    section = document.get("tool", {}).get("simrank", {})
    unknown = sorted(section.keys() - set(ProjectSettings._fields))
    if unknown:
        expected = f"one of {', '.join(ProjectSettings._fields)}"
        raise ConfigError(ConfigProblem(file, None, "tool.simrank", expected, unknown[0]))
    private = section.get("private", [])
    if not isinstance(private, list) or not all(isinstance(name, str) for name in private):
        expected = "a list of names of packages"
        raise ConfigError(ConfigProblem(file, None, "tool.simrank.private", expected, str(private)))
    devices = section.get("devices")
    if devices not in (None, *CHOICES["cuda_devices"]):
        expected = f"one of {', '.join(CHOICES['cuda_devices'])}"
        raise ConfigError(ConfigProblem(file, None, "tool.simrank.devices", expected, str(devices)))
    return ProjectSettings(tuple(private), devices)
