"""Pooled constants of NCCL's laws, with their variance at an unknown site.

The logarithm of each constant is a sum of effects: one of all machines, of the platform, of the
network, of the size of a group on one node, of the operation, of the block of both; of the site and
of the series that was measured. Each has a normal prior around 0, so that what no table tells apart
stays as NCCL has it. A prediction for another site leaves out the last two effects and adds their
variance.

Start with `Pool.constants`; `pool_fit` fits one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from simrank.collectives.nccl.constants import MOST_OF_A_BOARD
from simrank.collectives.nccl.laws import CONSTANTS, UNCALIBRATED, Calibration
from simrank.config.files import configs_dir, write_text, written_whole
from simrank.errors import ConfigError, ConfigProblem

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from simrank.collectives.nccl.laws import Communicator, Floats, NominalTimes
    from simrank.hardware.spec import NcclSpec

NUM: Final = len(CONSTANTS)
NCCL_LOGS: Final = np.log([getattr(UNCALIBRATED, name) for name in CONSTANTS])

ALL, PLATFORM, NETWORK, SPAN, GROUP, OPERATION, BLOCK, SITE, SERIES = (
    "all", "platform", "network", "span", "group", "operation", "block", "site", "series",
)  # fmt: skip
# By how much a constant may differ from NCCL's: standard deviations of its logarithm. Assumed;
# with these, cross-validated tables are predicted best.
PRIOR_SIGMAS = {
    "launch_us": 1.0,
    "hop_intra": 0.5,
    "hop_net": 0.8,
    "bandwidth_intra": 0.12,
    "bandwidth_net": 0.15,
    "ramp": 0.7,
    "latency_ll128": 0.3,
    "latency_simple": 0.3,
    "bandwidth_ll": 0.3,
}
_ON_NODES = ("hop_intra", "bandwidth_intra", "ramp", "latency_ll128", "latency_simple")
# The rate of network cards is the cluster's own: with a factor of other sites large messages are
# predicted worse (left-out sites from 128 MiB on: 16 % instead of 12 %).
_BUT_CARDS = tuple(name for name in CONSTANTS if name != "bandwidth_net")
# By kind of effect: what multiplies `PRIOR_SIGMAS`, and the constants that it changes. Assumed;
# with these factors, left-out sites are predicted best.
KINDS: Final[Mapping[str, tuple[float, tuple[str, ...]]]] = {
    ALL: (1.0, _BUT_CARDS),
    PLATFORM: (0.25, ("launch_us", *_ON_NODES, "bandwidth_ll")),
    NETWORK: (0.35, _BUT_CARDS),
    SPAN: (0.3, ("hop_net", "ramp")),
    GROUP: (0.5, ("launch_us", *_ON_NODES, "bandwidth_ll")),
    OPERATION: (0.3, ("launch_us", "hop_net", *_ON_NODES, "bandwidth_ll")),
    BLOCK: (0.5, ("bandwidth_intra", "ramp", "latency_ll128", "latency_simple", "bandwidth_ll")),
    SITE: (0.35, CONSTANTS),
    SERIES: (0.2, CONSTANTS),
}  # fmt: skip
_ALIKE: Final = {"all_to_all_v": "all_to_all"}  # Of uneven messages: the same kernels.
_MESSAGES: Final = ("all_to_all", "sendrecv", "gather", "scatter")
ONE, NODES, RACKS = "one node", "several nodes", "racks"
_ONE_SITE_WIDTH: Final = 1.5  # Of the noise where one site has such tables. Assumed.
FIT, NOISE = "fit", "noise"
UNKNOWN: Final = "unknown"
# Rows of `Pool.noises`: kinds of series. Unseen: no table of another site has the operation over
# such a span, the platform, the number of ranks on its node, or the network; calibrated: one small
# size was measured.
ONE_NODE, SEVERAL_NODES, HOST_LAUNCHES, ONE_NODE_UNSEEN, SEVERAL_NODES_UNSEEN = range(5)
ONE_NODE_CALIBRATED, SEVERAL_NODES_CALIBRATED, MESSAGES_BETWEEN_NODES, OVER_RACKS = 5, 6, 7, 8
CALIBRATED: Final = {ONE_NODE: ONE_NODE_CALIBRATED, SEVERAL_NODES: SEVERAL_NODES_CALIBRATED}
NUM_KINDS: Final = 9
NORMAL_90: Final = 1.645  # 90 % of a normal distribution are within so many sigmas.


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
        span: What the ranks are on: one node, several nodes or racks.
    """

    platform: str
    network: str | None
    group: str | None
    operation: str
    site: str = ""
    series: str = ""
    span: str = ONE

    @property
    def effects(self) -> tuple[str, ...]:
        """The names of the effects whose sum the constants are, without those of the site."""
        named = [ALL, f"{PLATFORM} {self.platform}", f"{OPERATION} {self.operation}"]
        if self.group is not None:
            named.append(f"{GROUP} {self.platform} {self.group}")
            named.append(f"{BLOCK} {self.operation} {self.group}")
        if self.network is not None:
            named.append(f"{NETWORK} {self.network}")
            named.append(f"{SPAN} {self._sends} over {self.span}")
        return tuple(named)

    @property
    def is_of_messages(self) -> bool:
        """Whether messages between pairs run it."""
        return self.operation in _MESSAGES

    @property
    def _sends(self) -> str:
        return "messages" if self.is_of_messages else "collectives"

    @property
    def evidence(self) -> tuple[str, ...]:
        """The names that its tables are counted by: operation, platform and network on its span."""
        over = f"{self.operation} on {self.span}"
        found = over, f"{PLATFORM} {self.platform} on {self.span}"
        return found if self.network is None else (*found, f"{over} over {self.network}")

    @property
    def site_effect(self) -> str:
        """The name of the effect of the site."""
        return f"{SITE} {self.site}"


def labels_of(collective: str, comm: Communicator) -> Labels:
    """Return the labels of a collective at an unknown site."""
    return labels_in(comm.spec, collective, comm.shape.num_ranks, comm.shape.num_nodes)


def labels_in(spec: NcclSpec, collective: str, num_ranks: int, num_nodes: int) -> Labels:
    """Return the labels of a collective of some ranks on some nodes at an unknown site."""
    platform = spec.architecture
    if spec.mesh_links:
        platform = "mesh"
    elif spec.wire == "pci":
        platform = "pcie"
    operation = _ALIKE.get(collective, collective)
    if num_nodes > 1:
        span = RACKS if num_ranks > num_nodes * MOST_OF_A_BOARD else NODES
        return Labels(platform, spec.network or UNKNOWN, None, operation, span=span)
    group = next((str(most) for most in (2, 4, 8) if num_ranks <= most), "more")
    return Labels(platform, None, group, operation)


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
class Constants:
    """Constants for one kind of machine, group and operation, and how well they are known.

    Attributes:
        calibration: The most probable constants.
        covariances: Of the logarithms of the constants [9, 9], by what they are of: `fit` (what
            was fitted), `site` and `series` (of another one), and unknown effects by their names.
        noises: [4] What else is uncertain, by class of size, as a standard deviation of the
            logarithm of a time.
        source: What they rest on, in words; None: they are NCCL's own.
        unknown: The effects that no table tells.
    """

    calibration: Calibration
    covariances: Mapping[str, Floats]
    noises: Floats
    source: str | None = None
    unknown: tuple[str, ...] = ()

    def variances(self, work: NominalTimes, classes: npt.ArrayLike) -> dict[str, Floats]:
        """Return the variance of the logarithm of a time [m], by what it is of.

        Args:
            work: What a call does, one entry per size.
            classes: [m] The class of each size.
        """
        slopes = work.slopes(self.calibration)
        found = {
            name: np.einsum("cm,cd,dm->m", slopes, covariance, slopes)
            for name, covariance in self.covariances.items()
        }
        return found | {NOISE: self.noises[np.asarray(classes)] ** 2}

    def half_widths(self, work: NominalTimes, classes: npt.ArrayLike) -> Floats:
        """Return half the width of the 90 % interval [m], as a share of the time."""
        variance = np.sum(list(self.variances(work, classes).values()), axis=0)
        widths: Floats = np.expm1(NORMAL_90 * np.sqrt(variance))
        return widths


@dataclass(frozen=True)
class Pool:
    """Pooled constants.

    Attributes:
        effects: The logarithms of each effect's factors, as `constants_in` has them, by name.
        covariance: [p, p] Of all of them, one effect after the other.
        noises: [7, 4] What else is uncertain, as a standard deviation of the logarithm of a time,
            by kind of series (`ONE_NODE` and the following) and class of size.
        num_sites: Sites that each effect was seen at, by its name.
        source: What it was fitted to.
        evidence: Sites with tables of an operation on a span, and over a network, by these words.
    """

    effects: Mapping[str, Floats]
    covariance: Floats
    noises: Floats
    num_sites: Mapping[str, int]
    source: str
    evidence: Mapping[str, int]

    @cached_property
    def _starts(self) -> dict[str, int]:
        lengths = np.cumsum([0, *(len(each) for each in self.effects.values())])
        return dict(zip(self.effects, lengths.tolist(), strict=False))

    def constants(self, labels: Labels) -> Constants:
        """Return the constants of a machine, group and operation at a site that is not known.

        On one node NCCL is taken to choose the fastest; between nodes, by its own estimates.
        """
        logs = NCCL_LOGS.copy()
        columns: list[int] = []
        rows: list[int] = []
        covariances = {name: prior_covariance(name) for name in (SITE, SERIES)}
        unknown = []
        for effect in labels.effects:
            if effect not in self.effects:
                unknown.append(effect)
                covariances[effect] = prior_covariance(effect)
                continue
            changed = constants_in(effect)
            logs[changed] += self.effects[effect]
            rows += changed
            columns += range(self._starts[effect], self._starts[effect] + len(changed))
        num_sites = self.evidence.get(labels.evidence[0], 0)
        unknown += [name for name in labels.evidence[:2] if name not in self.evidence]
        sums = np.zeros((NUM, len(rows)))
        sums[rows, np.arange(len(rows))] = 1.0
        covariances[FIT] = sums @ self.covariance[np.ix_(columns, columns)] @ sums.T
        calibration = replace(calibration_of(logs), takes_fastest=labels.network is None)
        noises = self.noises[row_of(labels, unknown)] * (_ONE_SITE_WIDTH if num_sites == 1 else 1)
        source = self._words(labels, unknown)
        return Constants(calibration, covariances, noises, source, tuple(unknown))

    def _words(self, labels: Labels, unknown: Sequence[str]) -> str:
        """Return the evidence for constants in words."""
        counts = [(name, self.evidence.get(name, 0)) for name in labels.evidence]
        parts = [f"{name}: {count} site{'s' * (count != 1)}" for name, count in counts if count]
        missing = [name for name, count in counts if not count]
        missing += [name for name in unknown if kind_of(name) in (NETWORK, GROUP)]
        parts += [f"no table of {name}" for name in missing]
        return f"{self.source} ({'; '.join(parts)})"


def row_of(labels: Labels, unknown: Sequence[str]) -> int:
    """Return the row of a pool's noises for a series with unknown effects, or without a table."""
    unseen = (PLATFORM, NETWORK, GROUP)
    missing = labels.evidence[:2]
    is_seen = all(kind_of(name) not in unseen and name not in missing for name in unknown)
    if labels.network is None:
        return ONE_NODE if is_seen else ONE_NODE_UNSEEN
    if not is_seen:
        return SEVERAL_NODES_UNSEEN
    if labels.span == RACKS:
        return OVER_RACKS
    return MESSAGES_BETWEEN_NODES if labels.is_of_messages else SEVERAL_NODES


def calibration_of(logs: Floats) -> Calibration:
    """Return the constants of their logarithms [9], or [9, m] for arrays."""
    return Calibration(**dict(zip(CONSTANTS, np.exp(logs), strict=True)))


def logs_of(calibration: Calibration) -> Floats:
    """Return the logarithms of constants [9]."""
    return np.log([getattr(calibration, name) for name in CONSTANTS])


def prior_covariance(effect: str) -> Floats:
    """Return the prior covariance of an effect on the constants [9, 9]."""
    covariance = np.zeros((NUM, NUM))
    changed = constants_in(effect)
    covariance[changed, changed] = prior_sigmas(effect) ** 2
    return covariance


# ---- pooled constants as files; start with `read_pool` ----

_DIGITS = 4
_NOISES: Final = (
    "one_node",
    "several_nodes",
    "host_launches",
    "one_node_unseen",
    "several_nodes_unseen",
    "one_node_calibrated",
    "several_nodes_calibrated",
    "messages_between_nodes",
    "over_racks",
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
        "evidence": dict(sorted(pool.evidence.items())),
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
        evidence = {str(name): int(count) for name, count in found["evidence"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        expected, got = "pooled constants that `simrank calibrate --pool` wrote", repr(error)
        raise ConfigError(ConfigProblem(str(path), None, "", expected, got)) from None
    covariance = _covariance(path.with_suffix(".npy"), sum(len(each) for each in effects.values()))
    return Pool(effects, covariance, noises, sites, source, evidence)


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
