"""Provenance of a cluster's numbers: calibrated, sourced or assumed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simrank.config.calibration import CONSTANTS, load_calibration
from simrank.config.cluster import BOOST, given_keys
from simrank.config.project import NO_CALIBRATION, POOLED
from simrank.config.wires import ASSUMED, CALIBRATED, SOURCED, Provenance

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from simrank.config.cluster import ClusterConfig, Sourced


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
