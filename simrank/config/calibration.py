"""Constants of NCCL's laws, fitted to measured times, and where numbers are from.

```yaml
cluster: h100_efa
source: fitted to h100x16_aws_p5_efa_allreduce
library: NCCL 2.28
takes_fastest: false     # whether the fastest is chosen; else NCCL's tuner chooses
constants: {launch_us: 41.2, hop_net: 1.5}     # those that are left out are NCCL's
residuals:               # what the fit leaves, per class of size
  - {up_to: 32 KiB, error_pct: 8.6, interval_pct: 14.2}
```
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

from pydantic import BeforeValidator, Field

from simrank.config.cluster import BOOST, given_keys
from simrank.config.locate import locate
from simrank.config.model import Model, validate
from simrank.config.project import NO_CALIBRATION, POOLED
from simrank.config.quantity import CollectiveName, Count, Flag, Size, Text, choice_text, reject
from simrank.config.wires import ASSUMED, CALIBRATED, SOURCED, Provenance
from simrank.config.yaml_source import Source, read_yaml
from simrank.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from simrank.config.cluster import ClusterConfig, Sourced

CONSTANTS = (
    "launch_us",
    "hop_intra",
    "hop_net",
    "bandwidth_intra",
    "bandwidth_net",
    "ramp",
    "latency_ll128",
    "latency_simple",
    "bandwidth_ll",
)


_LEAST, _MOST = 1e-6, 1e6  # Assumed: what is beyond is a typing error.


def _number(value: object, sub: tuple[str, ...] = ()) -> float:
    is_flag = isinstance(value, bool)
    if isinstance(value, int | float) and not is_flag and _LEAST <= value <= _MOST:
        return float(value)
    raise reject(f"a number from {_LEAST:g} to {_MOST:g}", sub=sub)


def _constants(value: object) -> Mapping[str, float]:
    """Validate the names and values of fitted constants."""
    if not isinstance(value, Mapping):
        raise reject("a mapping from constants to numbers")
    for key in value:
        if key not in CONSTANTS:
            raise reject(choice_text(CONSTANTS), got=f"the unknown key `{key}`", sub=(key,))
    return {key: _number(each, (key,)) for key, each in value.items()}


Positive = Annotated[float, BeforeValidator(_number)]


class ResidualConfig(Model):
    """Residual errors of a fit in one size class.

    Attributes:
        up_to_bytes: The largest size of the class; None: all that are larger.
        error_pct: Mean error without sign, in percent; None: no such size was measured.
        interval_pct: 90 % of measured times are between the prediction over, and times, one
            more than this, were the constants exact; in percent.
    """

    up_to_bytes: Size | None = Field(default=None, alias="up_to")
    error_pct: Positive | None = None
    interval_pct: Positive


class FittedConfig(Model):
    """The measured system of a calibration.

    Attributes:
        collective: For example all_reduce.
        num_ranks: Ranks that took part.
        num_nodes: Nodes that they lay on.
    """

    collective: CollectiveName
    num_ranks: Count
    num_nodes: Count


class CalibrationConfig(Model):
    """Fitted constants, with the measured system and the residual errors.

    Attributes:
        cluster: The cluster that they are of.
        platform: What joins its devices: an architecture of NVLink, `pcie` or `mesh`.
        network: The kind of network between its nodes; None: of one node, or not known.
        source: The tables that they were fitted to.
        library: NCCL or RCCL with its version, as far as it is known.
        takes_fastest: Whether the fastest algorithm is chosen, as where a tuner plugin overrides
            NCCL; else NCCL's own estimates choose.
        constants: Factors of NCCL's constants; launch_us and ramp are themselves.
        residuals: Classes of size, the smallest first.
        covariance: Of the logarithms of all constants, in the order of `CONSTANTS`: the lower
            triangle, row by row; empty: the constants are taken as exact.
        fitted: What was fitted. Constants of other collectives and numbers of ranks differ from
            those of the first as pooled constants do.
    """

    cluster: Text
    platform: Text | None = None
    network: Text | None = None
    source: Text
    library: Text
    takes_fastest: Flag = False
    constants: Annotated[Mapping[str, float], BeforeValidator(_constants)]
    residuals: tuple[ResidualConfig, ...]
    covariance: tuple[float, ...] = ()
    fitted: tuple[FittedConfig, ...] = ()


def load_calibration(word: str) -> CalibrationConfig:
    """Read a calibration.

    Args:
        word: A YAML file.

    Raises:
        ConfigError: It is missing, or something in it is wrong.
    """
    return calibration_from_source(read_yaml(locate("calibrations", word)))


def calibration_from_source(source: Source) -> CalibrationConfig:
    """Return the calibration that a source holds.

    Raises:
        ConfigError: With every problem of the file, in file order.
    """
    found = validate(CalibrationConfig, source)
    ends = [each.up_to_bytes for each in found.residuals]
    known = [end for end in ends[:-1] if end is not None]
    if not ends or ends[-1] is not None or len(known) < len(ends) - 1 or known != sorted(known):
        expected = "classes of size, the smallest first, the last without up_to"
        raise ConfigError(source.problem(("residuals",), expected, f"{len(ends)} others"))
    return found


# ---- provenance of a cluster's numbers: calibrated, sourced or assumed ----


def provenance_of(config: ClusterConfig) -> tuple[Provenance, ...]:
    """Return the provenance of each number that counts in a configuration, in its order."""
    provenances = []
    for name, block in _blocks(config):
        keys, given = type(block).keys(), given_keys(block)
        if block is config.device and config.device.clocks == BOOST:
            given.discard("sustained_clock")
        if block is config.device and config.device.power_limit_w is None:
            given -= {"rated_power", "idle_power"}
        for key in [each for each in keys if each in given]:
            texts = (block.source.get(key), block.source.get("others"))
            whole = (config.source.get(key), config.source.get("others"))
            text = next((text for text in (*texts, *whole) if text is not None), None)
            if text is not None:
                provenances.append(Provenance(f"{name}.{key}", _kind(text), " ".join(text.split())))
    return (*provenances, *_calibrated(config))


def _calibrated(config: ClusterConfig) -> Iterator[Provenance]:
    """Yield the constants of the calibration that a cluster takes."""
    if config.nccl is None or config.calibration == NO_CALIBRATION:
        return
    names: Sequence[str] = CONSTANTS
    source = "pooled over many sites: configs/calibrations/pooled.json"
    if config.calibration not in (None, POOLED):
        found = load_calibration(config.calibration)
        names, source = tuple(found.constants), found.source
    for name in names:
        yield Provenance(f"calibration.{name}", CALIBRATED, source)


def _blocks(config: ClusterConfig) -> Iterator[tuple[str, Sourced]]:
    yield "device", config.device
    links = [*config.links, *(config.fabric.links if config.fabric is not None else ())]
    for link in links:
        yield f"link {link.between[0]} - {link.between[1]}", link
    if config.fabric is not None and config.fabric.pods is not None:
        yield "pods", config.fabric.pods
    yield "collectives", config.collectives
    if config.nccl is not None:
        yield "nccl", config.nccl


def _kind(text: str) -> str:
    first = text.split(maxsplit=1)[0].strip(",.;:").lower()
    return first if first in (CALIBRATED, ASSUMED) else SOURCED
