"""`simrank explain`: the terms of a predicted time, NCCL's candidates, and crossovers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from simrank.calibration.accuracy import DIRECT, builtin_tables, table_series
from simrank.calibration.hold_outs import observed_of, without_its_site
from simrank.collectives.bounds import busbw_factor
from simrank.collectives.nccl import constants, laws, plugin, tuner
from simrank.collectives.nccl.pool import NORMAL_90
from simrank.collectives.nccl.prediction import considered
from simrank.collectives.nccl.size_classes import errors_by_class
from simrank.config.foreign.nccl_topology import keys_of, read_graph, with_graph
from simrank.config.load import load_cluster_config
from simrank.config.locate import locate
from simrank.config.measured import load_machine
from simrank.config.project import AUTO
from simrank.config.tuner import load_tuner
from simrank.hardware import load_cluster
from simrank.pages import Curve, Point, chart, document, notes, pictures, section, table
from simrank.pages.chart import sizes_axis, time_text, times_axis
from simrank.planning.predict import collective_of, forecast, shape_of_ranks
from simrank.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from simrank.calibration.accuracy import TableSeries
    from simrank.collectives.nccl import Communicator
    from simrank.collectives.nccl.laws import Floats
    from simrank.collectives.nccl.machine import GroupShape
    from simrank.collectives.nccl.pool import Constants
    from simrank.config.cluster import ClusterConfig
    from simrank.config.foreign.nccl_topology import TopologyKey
    from simrank.config.load import ClusterRef
    from simrank.config.tuner import TunerRow
    from simrank.hardware import Cluster
    from simrank.pages.document import Markup


@dataclass(frozen=True, slots=True)
class Option:
    """One algorithm and protocol for one size; times in microseconds.

    Attributes:
        algorithm: ring, tree, nvls, nvls_tree or p2p.
        protocol: LL, LL128 or Simple.
        estimate: What NCCL's tuner thinks that it takes; the least is chosen.
        launch: L.
        base: What NCCL sets up.
        latency: D, of all steps that follow each other.
        transfer: W, of the busiest link.
        ramp: k sqrt(D W).
    """

    algorithm: str
    protocol: str
    estimate: float
    launch: float
    base: float
    latency: float
    transfer: float
    ramp: float

    @property
    def total(self) -> float:
        """The predicted time."""
        return self.launch + self.base + self.latency + self.transfer + self.ramp


@dataclass(frozen=True, slots=True)
class Constant:
    """A number of a prediction.

    Attributes:
        name: What it is.
        value: With its unit.
        source: Where it comes from.
    """

    name: str
    value: str
    source: str


class Uncertainty(NamedTuple):
    """A part of a prediction's variance.

    Attributes:
        what: Where it comes from.
        share: Its share of the variance.
        half_width: Half the 90 % interval if it were the only part, as a share of the time.
    """

    what: str
    share: float
    half_width: float


# Parts of a variance in words; unknown effects have their own names.
UNCERTAIN = {
    "fit": "constants: what the measured tables leave open",
    "site": "site: another machine of this kind",
    "series": "series: another operation, run or version",
    "noise": "noise: what the law does not model, and repeated runs",
}


class Replaced(NamedTuple):
    """A number of the cluster that NCCL's graph knows better.

    Attributes:
        key: Its name in the cluster's block `nccl`.
        value: What the graph says.
        source: Where it says so.
        before: What the cluster says.
        before_source: Where that comes from.
    """

    key: str
    value: str
    source: str
    before: str
    before_source: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """One prediction, taken apart.

    Attributes:
        cluster: The cluster's name.
        collective: For example all_reduce.
        size_bytes: The size S of nccl-tests.
        shape: Which ranks take part.
        options: What NCCL considers; the chosen one first, then by estimate.
        steps: Words for D of the chosen one.
        volume: Words for W of the chosen one.
        constants: The numbers that the chosen one's time follows from.
        busbw_GBps: Its bus bandwidth.
        spread: Half-width of the 90% interval, as a share.
        uncertainties: What its variance consists of, the largest part first.
        rests_on: What the constants rest on.
        takes_fastest: Whether the fastest was chosen; else the least estimate.
        reason: Why the chosen one was: `as tuner.csv:3 says`, for example.
        replaced: Numbers that a graph has instead of the cluster's own, and what those were.
    """

    cluster: str
    collective: str
    size_bytes: int
    shape: GroupShape
    options: tuple[Option, ...]
    steps: str
    volume: str
    constants: tuple[Constant, ...]
    busbw_GBps: float  # noqa: N815 - the name, as everywhere in nccl-tests
    spread: float
    uncertainties: tuple[Uncertainty, ...]
    rests_on: str
    takes_fastest: bool
    reason: str
    replaced: tuple[Replaced, ...] = ()


def explain(  # noqa: PLR0913 - as `predict`
    collective: str,
    size_bytes: int,
    num_ranks: int | None = None,
    cluster: ClusterRef = "hgx_h100",
    *,
    nodes: int | None = None,
    ranks: Sequence[int] | None = None,
    nccl_tuner: str | Path | None = None,
    nccl_graph: str | Path | None = None,
    calibration: str | None = AUTO,
) -> Explanation:
    """Take the prediction of one size apart.

    Args:
        collective: For example all_reduce.
        size_bytes: The size S of nccl-tests, in bytes.
        num_ranks: Ranks that fill one node after the other; None: all devices.
        cluster: A built-in name, a file, a mapping or a configuration.
        nodes: Nodes, instead of those that the cluster states.
        ranks: Devices of the group, instead of `num_ranks`, as for `simrank.predict`.
        nccl_tuner: As for `simrank.predict`.
        nccl_graph: What NCCL's search found (its graph XML), instead of the cluster's numbers.
        calibration: Likewise.

    Raises:
        ValueError: An argument is none of what it may be.
        UnsupportedError: The cluster says nothing of NCCL, or nothing of a network.
        ConfigError: The cluster or a file is wrong.
    """
    name = collective_of(collective)
    config = load_cluster_config(cluster, nodes)
    found = {} if nccl_graph is None else keys_of(read_graph(nccl_graph))
    built = load_cluster(with_graph(config, found) if found else config)
    shape = shape_of_ranks(built, ranks, num_ranks)
    sizes = np.array([size_bytes])
    cast = forecast(name, sizes, built, shape, calibration)
    comm = cast.comm
    options = sorted(
        (_option(name, candidate, sizes, comm) for candidate in considered(name, sizes, comm)),
        key=lambda option: option.total if comm.calibration.takes_fastest else option.estimate,
    )
    rows = () if nccl_tuner is None else load_tuner(nccl_tuner)
    offered = [(option.algorithm, option.protocol) for option in options]
    row, ignored = plugin.deciding(size_bytes, offered, plugin.matching(rows, name, shape))
    if row is not None:
        wish = row.algorithm, row.protocol
        options.sort(key=lambda option: (option.algorithm, option.protocol.lower()) != wish)
    best = options[0]
    work = laws.work(name, best.algorithm, best.protocol, sizes, comm)
    spread = float(cast.constants.half_widths(work, cast.classes)[0])
    algbw = size_bytes / best.total / 1e3
    return Explanation(
        built.name,
        name,
        size_bytes,
        shape,
        tuple(options),
        _steps_text(name, best, comm),
        _volume_text(name, best, comm),
        tuple(_constants(built, best, comm, cast.constants) + _fitted(cast.constants)),
        algbw * busbw_factor(name, shape.num_ranks),
        spread,
        _uncertainties(cast.constants, work, cast.classes),
        cast.constants.source or "NCCL's own constants, not fitted to a machine",
        comm.calibration.takes_fastest,
        _reason(row, ignored, comm, nccl_tuner),
        tuple(_replaced(config, found)),
    )


def _uncertainties(
    known: Constants, work: laws.NominalTimes, classes: npt.NDArray[np.int64]
) -> tuple[Uncertainty, ...]:
    """Return the parts of the variance, the largest first."""
    parts = known.variances(work, classes)
    total = sum(float(each[0]) for each in parts.values())
    found = []
    for name, each in parts.items():
        share = float(each[0])
        is_rate = name.endswith("is assumed")
        what = UNCERTAIN.get(name, name if is_rate else f"{name}: no measured table")
        width = float(np.expm1(NORMAL_90 * np.sqrt(share)))
        found.append(Uncertainty(what, share / total if total else 0.0, width))
    return tuple(sorted(found, key=lambda part: -part.share))


def _replaced(config: ClusterConfig, found: Mapping[str, TopologyKey]) -> Iterator[Replaced]:
    """Yield the values of a graph beside the cluster's."""
    nccl = config.nccl
    if nccl is None:
        return
    for key, each in found.items():
        name = next(n for n, field in type(nccl).model_fields.items() if key in (n, field.alias))
        value, source = getattr(nccl, name), nccl.source
        shown = f"{value / 1e9:g} GB/s" if name != key and value else str(value or "none")
        said = source.get(key, source.get("others", ""))
        yield Replaced(key, str(each.value), each.source, shown, said)


def _reason(
    row: TunerRow | None,
    ignored: Sequence[TunerRow],
    comm: Communicator,
    nccl_tuner: str | Path | None,
) -> str:
    """Return why the first option is taken, and which rows of a tuner plugin are ignored."""
    own = "lowest predicted time" if comm.calibration.takes_fastest else "lowest estimate"
    if nccl_tuner is not None:
        own += f", no entry in {nccl_tuner} applies"
    said = [own if row is None else f"set by {row.file}:{row.line}"]
    said += [
        f"{each.file}:{each.line} ({each.algorithm} {each.protocol}) is ignored: "
        "NCCL does not offer it here, or simrank does not model it"
        for each in ignored
    ]
    return "; ".join(said)


def _option(
    collective: str, candidate: tuner.Candidate, sizes: laws.Floats, comm: Communicator
) -> Option:
    parts = laws.terms(collective, candidate.algorithm, candidate.protocol, sizes, comm)
    return Option(
        candidate.algorithm,
        candidate.protocol,
        float(candidate.estimate_us[0]),
        parts.launch,
        parts.base,
        parts.latency,
        float(parts.transfer[0]),
        float(parts.ramp[0]),
    )


def _steps_text(collective: str, option: Option, comm: Communicator) -> str:
    if option.algorithm == constants.P2P:
        return (
            f"{laws.P2P_PEER_US:g} us per further peer in the node, "
            f"{laws.P2P_REMOTE_PEER_US:g} us per peer on another node"
        )
    inside, between = laws.step_counts(collective, option.algorithm, comm.shape)
    times = laws.step_us(option.algorithm, option.protocol, comm)
    text = f"{inside} step{'s' if inside != 1 else ''} x {times[0]:g} us inside nodes"
    return text + (f" + {between} x {times[1]:g} us between" if between else "")


def _volume_text(collective: str, option: Option, comm: Communicator) -> str:
    if option.algorithm == constants.P2P:
        return "bytes of a rank, over its port and over shared network cards"
    carried = laws.volumes(collective, option.algorithm, np.array([1.0]), comm)
    rate = laws.port_bytes_per_us(option.algorithm, option.protocol, comm) / 1e3
    if option.protocol == constants.LL:
        rate = min(rate, laws.ll_max_bytes_per_us(comm) / 1e3)
    text = f"{carried.port[0]:.4g} S over {rate:.4g} GB/s of a GPU's port"
    if comm.shape.num_nodes > 1:
        nic = comm.spec.nic_bytes_per_s / 1e9 * laws.PROTOCOL_FACTOR[option.protocol]
        text += (
            f", or {carried.nic[0]:.4g} S over {nic:.4g} GB/s of a network card, the longer of both"
        )
    return text


def _constants(
    cluster: Cluster, option: Option, comm: Communicator, known: Constants
) -> list[Constant]:
    """Return the numbers of one option, each with its source."""
    shape, spec = comm.shape, comm.spec
    tables = constants.SOURCE
    own, source = comm.calibration, _short(known.source)
    launch = source or "assumed: 2 to 5 us per launch"
    found = [Constant("launch L", f"{own.launch_us:.4g} us", launch)]
    if option.algorithm == constants.P2P:
        found.append(Constant("base", f"{option.base:g} us", "fitted to b200x8_vultr_sendrecv"))
    else:
        found.append(
            Constant(f"base of {option.algorithm} {option.protocol}", f"{option.base:g} us", tables)
        )
        inside, between = laws.step_us(option.algorithm, option.protocol, comm)
        found.append(Constant(f"step over {spec.wire}", f"{inside:g} us", tables))
        if shape.num_nodes > 1:
            between -= laws.nic_latency_us(option.protocol, spec)
            found.append(Constant("step between nodes", f"{between:g} us", tables))
    if option.protocol == constants.LL:
        most = laws.ll_max_bytes_per_us(comm) / 1e3
        found.append(Constant("maximum rate of LL", f"{most:g} GB/s", tables))
    if option.algorithm in (constants.NVLS, constants.NVLS_TREE):
        efficiency = constants.NVLS_EFFICIENCY[spec.architecture]
        found.append(Constant("efficiency of NVLS", f"{efficiency:g}", tables))
    ramp = source or "fitted to configs/measured"
    found.append(Constant("ramp k", f"{own.ramp:.4g}, with Simple", ramp))
    return found + _constants_of_cluster(cluster, option, comm)


def _short(source: str | None) -> str:
    """Return the source of constants without the sites of each effect."""
    return (source or "").partition(" (")[0]


def _fitted(known: Constants) -> list[Constant]:
    """Return the factors by which a calibration changes the numbers above."""
    if known.source is None:
        return []
    return [
        Constant(
            f"calibrated {name}", f"x {getattr(known.calibration, name):.4g}", _short(known.source)
        )
        for name in laws.CONSTANTS
        if name not in ("launch_us", "ramp")  # Those are shown themselves.
    ]


def _constants_of_cluster(cluster: Cluster, option: Option, comm: Communicator) -> list[Constant]:
    shape, spec = comm.shape, comm.spec
    is_nvls = option.algorithm in (constants.NVLS, constants.NVLS_TREE)
    port = "nvls_bandwidth" if is_nvls else "ring_bandwidth"
    rate = spec.nvls_bytes_per_s if is_nvls else spec.ring_bytes_per_s
    values = {port: f"{rate / 1e9:g} GB/s"}
    if not is_nvls and shape.num_local <= spec.mesh_links:
        values[port] += f", of which {max(shape.num_local - 1, 1)} of {spec.mesh_links} rings"
    if shape.num_nodes > 1:
        values["nic_bandwidth"] = f"{spec.nic_bytes_per_s / 1e9:g} GB/s"
    if shape.num_nodes > 1 and spec.nic_latency_ps:
        values["nic_latency"] = f"{laws.nic_latency_us(option.protocol, spec):g} us of each step"
    left = {"algorithms": spec.algorithms, "protocols": spec.protocols}
    values |= {key: ", ".join(names) for key, names in left.items() if names}
    sources = {each.key: each.text for each in cluster.provenance}
    return [
        Constant(f"{key} of {cluster.name}", value, sources[f"nccl.{key}"])
        for key, value in values.items()
    ]


# ---- crossovers of NCCL's algorithms and protocols over size; start with `crossover` ----

SIZES_BYTES = tuple(2**power for power in range(10, 34))  # 1 KiB to 8 GiB.


@dataclass(frozen=True, slots=True)
class MeasuredTimes:
    """Published times of the same collective, ranks and cluster.

    Attributes:
        table: The table's name.
        published_by: The measured machine, and where its times were published.
        size_bytes: [k] The sizes S of nccl-tests, of those that are shown.
        time_us: [k] What was measured, in microseconds.
        error: Mean absolute error by class of size in words, by constants without the site of the
            table.
    """

    table: str
    published_by: str
    size_bytes: npt.NDArray[np.int64]
    time_us: Floats
    error: str


@dataclass(frozen=True, slots=True)
class Crossover:
    """Times of everything that NCCL has to choose from.

    Attributes:
        size_bytes: [m] Sizes, one per power of two.
        choices: [c] Pairs of an algorithm and a protocol.
        times_us: [c, m] The predicted time of each.
        chosen: [m] Which of them each size takes.
        spread: [m] Half-width of the 90% interval, as a share of the chosen time.
        measured: Times of the built-in tables, if there are any.
    """

    size_bytes: npt.NDArray[np.int64]
    choices: tuple[tuple[str, str], ...]
    times_us: Floats
    chosen: npt.NDArray[np.int64]
    spread: Floats
    measured: tuple[MeasuredTimes, ...]


def crossover(  # noqa: PLR0913 - as `predict`
    collective: str,
    num_ranks: int | None = None,
    cluster: ClusterRef = "hgx_h100",
    *,
    nodes: int | None = None,
    ranks: Sequence[int] | None = None,
    nccl_tuner: str | Path | None = None,
    calibration: str | None = AUTO,
) -> Crossover:
    """Predict all sizes from 1 KiB to 8 GiB by everything that NCCL has for a collective.

    Args:
        collective: For example all_reduce.
        num_ranks: As for `simrank.predict`; so are the others.
        cluster: Likewise.
        nodes: Likewise.
        ranks: Likewise.
        nccl_tuner: Likewise.
        calibration: Likewise.

    Raises:
        ValueError: An argument is none of what it may be.
        UnsupportedError: The cluster says nothing of NCCL, or nothing of a network.
        ConfigError: The cluster or a file is wrong.
    """
    name, built = collective_of(collective), load_cluster(cluster, nodes)
    shape = shape_of_ranks(built, ranks, num_ranks)
    sizes = np.array(SIZES_BYTES)
    rows = () if nccl_tuner is None else load_tuner(nccl_tuner)
    cast = forecast(name, sizes, built, shape, calibration, tuner_rows=rows)
    found = cast.found
    times = [laws.terms(name, *choice, sizes, cast.comm).total for choice in found.choices]
    return Crossover(
        sizes,
        found.choices,
        np.stack(times),
        found.chosen,
        cast.spread,
        _measured(name, shape, built.name),
    )


def _measured(collective: str, shape: GroupShape, cluster: str) -> tuple[MeasuredTimes, ...]:
    """Return the built-in tables of the same calls, without tables of framework loops."""
    found = []
    for name in builtin_tables():
        machine = load_machine(Path(locate("measured", name)))
        if machine is None or machine.cluster != cluster or machine.mode != DIRECT:
            continue
        for each in table_series(name):
            of = each.measured
            if (of.collective, of.comm.shape) == (collective, shape):
                shown = (of.size_bytes >= SIZES_BYTES[0]) & (of.size_bytes <= SIZES_BYTES[-1])
                times = of.size_bytes[shown], of.time_us[shown]
                error = _left_out_error(each)
                found.append(MeasuredTimes(name, each.published_by, *times, error))
    return tuple(found)


def _left_out_error(series: TableSeries) -> str:
    """Return the error of a series by constants without its site, in words."""
    left = without_its_site(observed_of(series))
    errors_pct = 100 * np.expm1(left.errors)
    by_class = errors_by_class(zip(left.observed.size_bytes.tolist(), errors_pct, strict=True))
    return f"with site '{left.unit}' left out of the calibration {by_class}"


# ---- an explained prediction as a page: terms, numbers, and NCCL's choices over size ----

_TERMS = ("time", "NCCL's estimate", "L", "base", "D", "W", "ramp")


def explain_page(found: Explanation, sizes: Crossover) -> str:
    """Return the page; equal predictions give equal text.

    Args:
        found: The size that was asked for.
        sizes: The same call over size.
    """
    curves = [*_candidates(sizes), _chosen(sizes), *map(_measured_curve, sizes.measured)]
    return document(
        f"simrank explain: {found.collective} of {format_size(found.size_bytes)}",
        list(_facts(found)),
        [
            section("Terms", _options(found), notes(_words(found))),
            section("Time over size", _picture(curves), notes(_remarks(sizes))),
            section("Uncertainty", _uncertainties_table(found)),
            section("Constants and sources", _constants_table(found)),
        ],
        num_curves=len(curves),
    )


def _facts(found: Explanation) -> Iterable[tuple[str, str]]:
    shape, best = found.shape, found.options[0]
    low, high = best.total / (1 + found.spread), best.total * (1 + found.spread)
    yield "ranks", f"{shape.num_ranks} on {shape.num_nodes} node(s) of {found.cluster}"
    yield "predicted", f"{time_text(best.total)}, {found.busbw_GBps:.4g} GB/s bus bandwidth"
    yield "90% interval", f"{time_text(low)} to {time_text(high)}"
    yield "constants", found.rests_on
    yield "NCCL's choice", f"{best.algorithm} {best.protocol}: {found.reason}"


def _options(found: Explanation) -> Markup:
    rows = []
    for each in found.options:
        terms = (each.launch, each.base, each.latency, each.transfer, each.ramp)
        numbers = (each.total, each.estimate, *terms)
        name = f"{each.algorithm} {each.protocol}"
        rows.append([name, *(f"{number:.2f}" for number in numbers)])
    columns = ["algorithm, protocol", *(f"{name} (us)" for name in _TERMS)]
    return table("Terms per candidate, NCCL's choice first", columns, rows, "rows named")


def _words(found: Explanation) -> Iterable[str]:
    yield "First row: NCCL's choice. time = L + base + D + W + ramp, ramp = k sqrt(D W)"
    yield "L: launch; base: set-up per algorithm and protocol"
    yield f"D, sequential steps: {found.steps}"
    yield f"W, bytes on the busiest link: {found.volume}"


def _uncertainties_table(found: Explanation) -> Markup:
    rows = [
        [each.what, f"{100 * each.share:.0f} %", f"{100 * each.half_width:.1f} %"]
        for each in found.uncertainties
    ]
    columns = ["part", "share of the variance", "alone, half the 90% interval"]
    return table("Parts of the interval, the largest first", columns, rows, "rows texts")


def _constants_table(found: Explanation) -> Markup:
    rows = [[each.name, each.value, each.source] for each in found.constants]
    columns = ["constant", "value", "source"]
    return table("Constants of the prediction, with sources", columns, rows, "rows texts")


def _picture(curves: list[Curve]) -> Markup:
    points = [point for curve in curves for point in curve.points]
    values = [v for p in points for v in (p.y, p.low, p.high) if v is not None]
    axes = sizes_axis(point.x for point in points), times_axis(values)
    title = "Candidates, NCCL's choice and measured times"
    return pictures(curves, chart(title, axes, curves))


def _remarks(sizes: Crossover) -> Iterable[str]:
    yield "Below the axis: NCCL's choice by size. The band is the 90% interval."
    if not sizes.measured:
        yield "No built-in table has this call on this cluster."
    for each in sizes.measured:
        yield (
            f"Measured: {each.table} ({each.published_by}). "
            f"Mean absolute error of pooled constants {each.error}"
        )


def _candidates(sizes: Crossover) -> Iterable[Curve]:
    for index, choice in enumerate(sizes.choices):
        name = " ".join(choice)
        rows = zip(sizes.size_bytes.tolist(), sizes.times_us[index].tolist(), strict=True)
        points = (Point(x, y, f"{format_size(x)}: {time_text(y)} by {name}") for x, y in rows)
        yield Curve(name, tuple(points), index)


def _chosen(sizes: Crossover) -> Curve:
    points = []
    for column, size in enumerate(sizes.size_bytes.tolist()):
        index, spread = int(sizes.chosen[column]), float(sizes.spread[column])
        time_us, name = float(sizes.times_us[index, column]), " ".join(sizes.choices[index])
        low, high = time_us / (1 + spread), time_us * (1 + spread)
        text = f"{format_size(size)}: NCCL chooses {name}, {time_text(time_us)}"
        points.append(Point(size, time_us, text, low, high, name))
    return Curve("NCCL's choice", tuple(points), None)


def _measured_curve(found: MeasuredTimes) -> Curve:
    rows = zip(found.size_bytes.tolist(), found.time_us.tolist(), strict=True)
    points = (Point(x, y, f"{format_size(x)}: measured {time_text(y)}") for x, y in sorted(rows))
    return Curve(f"measured: {found.table}", tuple(points), None, is_measured=True)
