"""Pooled constants as files; start with `read_pool`.

`pooled.json` holds the source, the noises by kind of series, and for each effect the number of its
sites and its factors of NCCL's constants. Beside it a file `.npy` holds the lower triangle of the
covariance of the logarithms of all factors, row by row, in the order of the effects and of their
factors.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from simrank.collectives.nccl.laws import CONSTANTS
from simrank.collectives.nccl.pool import Pool, constants_in
from simrank.config.files import configs_dir, write_text, written_whole
from simrank.errors import ConfigError, ConfigProblem

if TYPE_CHECKING:
    from pathlib import Path

    from simrank.collectives.nccl.laws import Floats

_DIGITS = 4
_NOISES: Final = (
    "one_node",
    "several_nodes",
    "host_launches",
    "one_node_unseen",
    "several_nodes_unseen",
    "one_node_calibrated",
    "several_nodes_calibrated",
)


def pooled_path() -> Path:
    """Return the file of the pooled constants that simrank ships."""
    return configs_dir() / "calibrations" / "pooled.json"


def pooled_tables() -> list[str]:
    """Return the files of measured times that only the pooled constants are fitted to."""
    return [str(path) for path in sorted((configs_dir() / "calibrations" / "tables").glob("*.csv"))]


def write_pool(pool: Pool, path: Path) -> None:
    """Write the constants as JSON, and their covariance beside it.

    simrank reads them from `configs/calibrations/pooled.json`; a copy elsewhere is read by
    `read_pool` alone.
    """
    effects: dict[str, Any] = {
        name: {
            "sites": num_sites,
            "factors": {
                CONSTANTS[number]: float(f"{np.exp(value):.{_DIGITS}g}")
                for number, value in zip(constants_in(name), pool.effects[name], strict=True)
            },
        }
        for name, num_sites in pool.num_sites.items()
    }
    rows = [[float(f"{each:.2f}") for each in row] for row in pool.noises]
    data = {
        "source": pool.source,
        "noises": dict(zip(_NOISES, rows, strict=True)),
        "effects": effects,
    }
    packed = pool.covariance[np.tril_indices(len(pool.covariance))].astype(np.float32)
    with written_whole(path.with_suffix(".npy"), "wb") as file:
        np.save(file, packed)
    write_text(path, json.dumps(data, indent=1) + "\n")


def read_pool(path: Path | None = None) -> Pool:
    """Read pooled constants; None: those that simrank ships.

    Raises:
        ConfigError: A file is missing, or something in it is wrong.
    """
    path = pooled_path() if path is None else path
    try:
        found = json.loads(path.read_text())
        effects = {
            name: np.log([each["factors"][CONSTANTS[number]] for number in constants_in(name)])
            for name, each in found["effects"].items()
        }
        noises = np.array([found["noises"][name] for name in _NOISES])
        sites = {name: int(each["sites"]) for name, each in found["effects"].items()}
        source = str(found["source"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        expected, got = "pooled constants that `simrank calibrate --pool` wrote", repr(error)
        raise ConfigError(ConfigProblem(str(path), None, "", expected, got)) from None
    covariance = _covariance(path.with_suffix(".npy"), sum(len(each) for each in effects.values()))
    return Pool(effects, covariance, noises, sites, source)


def _covariance(path: Path, num: int) -> Floats:
    """Read the covariance of so many factors.

    Raises:
        ConfigError: It is missing, or of another number of factors.
    """
    try:
        packed = np.load(path)
    except (OSError, ValueError) as error:
        expected = "an array that numpy.save wrote"
        raise ConfigError(ConfigProblem(str(path), None, "", expected, str(error))) from None
    if packed.shape != (num * (num + 1) // 2,):
        expected = f"the lower triangle of {num} x {num} numbers"
        raise ConfigError(ConfigProblem(str(path), None, "", expected, str(packed.shape)))
    covariance: Floats = np.zeros((num, num))
    covariance[np.tril_indices(num)] = packed
    return covariance + np.tril(covariance, -1).T
