"""Pooled constants of NCCL's laws, with their variance at an unknown site.

The logarithm of each constant is a sum of effects: one of all machines, of the platform, of the
network, of the size of a group on one node, of the operation; of the site and of the series that
was measured. Each has a normal prior around 0, so that what no table tells apart stays as NCCL has
it. A prediction for another site leaves out the last two effects and adds their variance.

Start with `Pool.constants`; `pool_fit` fits one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from simrank.collectives.nccl.fitting import PRIOR_SIGMAS
from simrank.collectives.nccl.laws import CONSTANTS, UNCALIBRATED, Calibration

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from simrank.collectives.nccl.laws import Communicator, Floats, Work

NUM: Final = len(CONSTANTS)
NCCL_LOGS: Final = np.log([getattr(UNCALIBRATED, name) for name in CONSTANTS])

ALL, PLATFORM, NETWORK, GROUP, OPERATION, SITE, SERIES = (
    "all", "platform", "network", "group", "operation", "site", "series",
)  # fmt: skip
_ON_NODES = ("hop_intra", "bandwidth_intra", "ramp", "latency_ll128", "latency_simple")
# By kind of effect: what multiplies `PRIOR_SIGMAS`, and the constants that it changes. Assumed;
# with these factors, left-out sites are predicted best.
KINDS: Final[Mapping[str, tuple[float, tuple[str, ...]]]] = {
    ALL: (1.0, CONSTANTS),
    PLATFORM: (0.7, ("launch_us", *_ON_NODES, "bandwidth_ll")),
    NETWORK: (0.7, CONSTANTS),
    GROUP: (0.5, ("launch_us", *_ON_NODES, "bandwidth_ll")),
    OPERATION: (0.5, ("launch_us", "hop_net", *_ON_NODES, "bandwidth_ll")),
    SITE: (0.35, CONSTANTS),
    SERIES: (0.2, CONSTANTS),
}  # fmt: skip
UNKNOWN: Final = "unknown"
ONE_NODE, SEVERAL_NODES, HOST_LAUNCHES = range(3)
NORMAL_90: Final = 1.645  # Nine of ten values of a normal distribution are within so many sigmas.


class Labels(NamedTuple):
    """Platform, network, group, operation and site of a series.

    Attributes:
        platform: What joins the devices of a node: an architecture of NVLink, `pcie` or `mesh`.
        network: The kind of network between nodes; `unknown`: the cluster does not say; None: the
            ranks are of one node.
        group: How many ranks of one node, 2, 4, 8 or more; None: of several nodes.
        operation: For example all_reduce.
        site: Where it was measured; "": not known.
        series: Which series of it; "": not known.
    """

    platform: str
    network: str | None
    group: str | None
    operation: str
    site: str = ""
    series: str = ""

    @property
    def effects(self) -> tuple[str, ...]:
        """The names of the effects whose sum the constants are, without those of the site."""
        named = [ALL, f"{PLATFORM} {self.platform}", f"{OPERATION} {self.operation}"]
        if self.group is not None:
            named.append(f"{GROUP} {self.platform} {self.group}")
        if self.network is not None:
            named.append(f"{NETWORK} {self.network}")
        return tuple(named)

    @property
    def own_effects(self) -> tuple[str, str]:
        """The names of the effects of site and series."""
        return f"{SITE} {self.site}", f"{SERIES} {self.series}"


def labels_of(collective: str, comm: Communicator) -> Labels:
    """Return the labels of a collective at an unknown site."""
    spec, shape = comm.spec, comm.shape
    platform = spec.architecture
    if spec.mesh_links:
        platform = "mesh"
    elif spec.wire == "pci":
        platform = "pcie"
    if shape.num_nodes > 1:
        return Labels(platform, spec.network or UNKNOWN, None, collective)
    group = next((str(most) for most in (2, 4, 8) if shape.num_ranks <= most), "more")
    return Labels(platform, None, group, collective)


def kind_of(effect: str) -> str:
    """Return the kind of an effect."""
    return effect.partition(" ")[0]


def constants_in(effect: str) -> list[int]:
    """Return the numbers of the constants that an effect changes."""
    return [CONSTANTS.index(name) for name in KINDS[kind_of(effect)][1]]


def prior_sigmas(effect: str) -> Floats:
    """Return the prior standard deviations of an effect on the constants that it changes."""
    factor, names = KINDS[kind_of(effect)]
    return factor * np.array([PRIOR_SIGMAS[name] for name in names])


@dataclass(frozen=True, slots=True)
class PooledConstants:
    """Constants for one kind of machine, group and operation.

    Attributes:
        calibration: The most probable constants.
        covariances: Of the logarithms of the constants [9, 9], by what they are of: `fit` (what
            was fitted), `site` and `series` (of another one), and unknown effects by their names.
        unknown: The effects that no table tells.
    """

    calibration: Calibration
    covariances: Mapping[str, Floats]
    unknown: tuple[str, ...]

    def variances(self, work: Work) -> dict[str, Floats]:
        """Return the variance of the logarithm of a time [m], by what it is of."""
        slopes = work.slopes(self.calibration)
        return {
            name: np.einsum("cm,cd,dm->m", slopes, covariance, slopes)
            for name, covariance in self.covariances.items()
        }


@dataclass(frozen=True)
class Pool:
    """Pooled constants.

    Attributes:
        effects: The logarithms of each effect's factors, as `constants_in` has them, by name.
        covariance: [p, p] Of all of them, one effect after the other.
        noises: [3, 4] What else is uncertain, as a standard deviation of the logarithm of a time,
            by class of size: on one node, on several, and where a host thread launches on several
            devices (`ONE_NODE`, `SEVERAL_NODES`, `HOST_LAUNCHES`).
        num_sites: Sites that each effect was seen at, by its name.
        source: What it was fitted to.
    """

    effects: Mapping[str, Floats]
    covariance: Floats
    noises: Floats
    num_sites: Mapping[str, int]
    source: str

    @cached_property
    def _starts(self) -> dict[str, int]:
        lengths = np.cumsum([0, *(len(each) for each in self.effects.values())])
        return dict(zip(self.effects, lengths.tolist(), strict=False))

    def constants(self, labels: Labels) -> PooledConstants:
        """Return the constants of a machine, group and operation at a site that is not known."""
        logs = NCCL_LOGS.copy()
        columns: list[int] = []
        rows: list[int] = []
        covariances = {name: _prior_covariance(name) for name in (SITE, SERIES)}
        unknown = []
        for effect in labels.effects:
            if effect not in self.effects:
                unknown.append(effect)
                covariances[effect] = _prior_covariance(effect)
                continue
            changed = constants_in(effect)
            logs[changed] += self.effects[effect]
            rows += changed
            columns += range(self._starts[effect], self._starts[effect] + len(changed))
        sums = np.zeros((NUM, len(rows)))
        sums[rows, np.arange(len(rows))] = 1.0
        covariances["fit"] = sums @ self.covariance[np.ix_(columns, columns)] @ sums.T
        return PooledConstants(calibration_of(logs), covariances, tuple(unknown))

    def words(self, found: PooledConstants, labels: Labels) -> str:
        """Return the evidence for constants in words."""
        seen = [name for name in labels.effects[1:] if name not in found.unknown]
        parts = [f"{name}: {self.num_sites[name]} sites" for name in seen]
        parts += [f"{name}: not known" for name in found.unknown]
        return f"{self.source} ({'; '.join(parts)})"

    def half_widths(self, variance: Floats, classes: npt.ArrayLike, kind: int) -> Floats:
        """Return half the width of the 90 % interval [m], as a share of the time.

        Args:
            variance: [m] Of the logarithm of each time.
            classes: [m] The class of size of each.
            kind: The row of `noises`.
        """
        noise = self.noises[kind][np.asarray(classes)]
        widths: Floats = np.expm1(NORMAL_90 * np.sqrt(variance + noise**2))
        return widths


def calibration_of(logs: Floats) -> Calibration:
    """Return the constants of their logarithms [9], or [9, m] for arrays."""
    return Calibration(**dict(zip(CONSTANTS, np.exp(logs), strict=True)))


def _prior_covariance(effect: str) -> Floats:
    covariance = np.zeros((NUM, NUM))
    changed = constants_in(effect)
    covariance[changed, changed] = prior_sigmas(effect) ** 2
    return covariance
