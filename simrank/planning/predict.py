"""`simrank.predict`, `predict_gemm`, `predict_attention`: times on a cluster, without a run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import exp
from reprlib import repr as shortened
from typing import TYPE_CHECKING, Any

import numpy as np

from simrank import units
from simrank.collectives.bounds import busbw_factor
from simrank.collectives.nccl import Communicator, GroupShape, predict_times
from simrank.collectives.nccl.evidence import communicator_on
from simrank.collectives.nccl.machine import shape_on, spec_of
from simrank.collectives.nccl.prediction import work_of_choice
from simrank.collectives.nccl.size_classes import ENDS_BYTES
from simrank.collectives.problem import REDUCING
from simrank.config.project import AUTO
from simrank.config.quantity import (
    COLLECTIVE_ALIASES,
    COLLECTIVES,
    DTYPE_ALIASES,
    DTYPES,
    REDOP_ALIASES,
    REDOPS,
    choice_text,
    hint,
)
from simrank.distributed.planner import NcclOverrides, tuning_of
from simrank.errors import UnsupportedError
from simrank.hardware import load_cluster
from simrank.hardware.attention import (
    PHASES,
    attention_class,
    attention_us,
    least_read_us,
    read_attention_fits,
    read_attention_widths,
    residual_log,
)
from simrank.hardware.gemm_model import NO_RELATIVE, OWN, SIBLING, product_model
from simrank.hardware.gemm_rows import ANY, measured_devices
from simrank.hardware.spec import START_US

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from simrank.collectives.nccl.laws import Floats, NominalTimes
    from simrank.collectives.nccl.pool import Constants
    from simrank.collectives.nccl.prediction import Prediction
    from simrank.config.load import ClusterRef
    from simrank.hardware import Cluster
    from simrank.hardware.gemm_model import ProductModel
    from simrank.hardware.spec import DeviceSpec


@dataclass(frozen=True, slots=True)
class Predicted:
    """Predictions for one collective; every array has one entry per size.

    Attributes:
        cluster: The cluster's name.
        collective: For example all_reduce.
        num_ranks: Ranks that take part.
        size_bytes: The sizes S of nccl-tests.
        time_us: Time of one call in a loop of calls, in microseconds.
        algbw_GBps: size / time, in 10^9 bytes per second.
        busbw_GBps: algbw times nccl-tests' factor of the collective.
        algorithm: What NCCL chooses: ring, tree, nvls, nvls_tree; p2p for messages between pairs.
        protocol: LL, LL128 or Simple.
        low_us: Lower end of the 90 % prediction interval, of a machine that was not measured; of
            that machine, where the constants are fitted to it (`simrank calibrate`).
        high_us: Its upper end.
        calibration: What the constants rest on; None: they are NCCL's own.
        unknown: What no measured table tells: of a network, for example, or of a platform. The
            interval has the range of all networks, or platforms, instead.
    """

    cluster: str
    collective: str
    num_ranks: int
    size_bytes: npt.NDArray[np.int64]
    time_us: Floats
    algbw_GBps: Floats  # noqa: N815 - the name, as everywhere in nccl-tests
    busbw_GBps: Floats  # noqa: N815
    algorithm: npt.NDArray[np.str_]
    protocol: npt.NDArray[np.str_]
    low_us: Floats
    high_us: Floats
    calibration: str | None
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Forecast:
    """A prediction with the constants that it rests on.

    Attributes:
        comm: The ranks, with the constants.
        found: Times and choices.
        constants: The constants, and how well they are known.
        work: [m] What the chosen algorithms do.
        classes: [m] The class of each size.
    """

    comm: Communicator
    found: Prediction
    constants: Constants
    work: NominalTimes
    classes: npt.NDArray[np.int64]

    @property
    def spread(self) -> Floats:
        """Half-width of the 90 % interval [m], as a share of the time."""
        return self.constants.half_widths(self.work, self.classes)

    @property
    def variances(self) -> dict[str, Floats]:
        """Variance of the logarithm of each time [m], by what it is of."""
        return self.constants.variances(self.work, self.classes)


def predict(  # noqa: PLR0913 - nccl-tests' own options
    collective: str,
    sizes: Any,  # noqa: ANN401 - a size, several, an array
    num_ranks: int | None = None,
    cluster: ClusterRef = "hgx_h100",
    *,
    nodes: int | None = None,
    ranks: Sequence[int] | None = None,
    dtype: str = "float32",
    redop: str = "sum",
    nccl_algo: str | None = None,
    nccl_proto: str | None = None,
    nccl_tuner: str | Path | None = None,
    calibration: str | None = AUTO,
) -> Predicted:
    """Predict nccl-tests' times by NCCL's constants and its tuner's choices.

    Nothing runs: 100,000 sizes take less than a second.

    Args:
        collective: For example all_reduce.
        sizes: The sizes S of nccl-tests: bytes, or texts such as "16 MiB"; one or several.
        num_ranks: Ranks that fill one node after the other; None: all devices.
        cluster: A built-in name, a file, a mapping or a configuration.
        nodes: Nodes, instead of those that the cluster states.
        ranks: Devices of the group, instead of `num_ranks`: `range(0, 64, 8)` is one rank per node
            of eight, as in a data-parallel group of a tensor-parallel model.
        dtype: Of the elements; the switches of NVLink (NVLS) do not reduce all of them.
        redop: sum, prod, min, max or avg; likewise.
        nccl_algo: What to choose from, as a value of NCCL_ALGO: "Ring,Tree" or "^NVLS".
        nccl_proto: Likewise of NCCL_PROTO.
        nccl_tuner: A file of NCCL's example tuner plugin, which says what to take for which sizes;
            a row that asks for what NCCL does not offer is ignored, as the plugin does.
        calibration: Constants: "auto" for the file that the cluster's names, else "pooled":
            fitted to many sites, with the interval of another site; a file that `simrank
            calibrate` wrote; None: NCCL's own.

    Raises:
        ValueError: An argument is none of what it may be; the text says what may stand there.
        UnsupportedError: The cluster says nothing of NCCL, or nothing of a network.
        ConfigError: The cluster, a file, `nccl_algo` or `nccl_proto` is wrong, or leaves nothing.
    """
    name = collective_of(collective)
    built = load_cluster(cluster, nodes)
    size_bytes = _sizes(sizes)
    shape = shape_of_ranks(built, ranks, num_ranks)
    overrides = NcclOverrides(
        nccl_algo, nccl_proto, None if nccl_tuner is None else str(nccl_tuner)
    )
    operation = _named("redop", redop, REDOPS, REDOP_ALIASES)
    reduced = operation if name in REDUCING else None
    tuning = tuning_of(name, _named("dtype", dtype, DTYPES, DTYPE_ALIASES), reduced, overrides)
    cast = forecast(
        name,
        size_bytes,
        built,
        shape,
        calibration,
        algorithms=tuning.algorithms,
        protocols=tuning.protocols,
        tuner_rows=tuning.tuner_rows,
    )
    return _predicted(built.name, name, size_bytes, cast)


def _predicted(
    cluster: str, collective: str, size_bytes: npt.NDArray[np.int64], cast: Forecast
) -> Predicted:
    found, spread, num_ranks = cast.found, cast.spread, cast.comm.shape.num_ranks
    algbw = size_bytes / found.times_us / 1e3
    return Predicted(
        cluster,
        collective,
        num_ranks,
        size_bytes,
        found.times_us,
        algbw,
        algbw * busbw_factor(collective, num_ranks),
        np.array([algorithm for algorithm, _ in found.choices])[found.chosen],
        np.array([protocol for _, protocol in found.choices])[found.chosen],
        found.times_us / (1 + spread),
        found.times_us * (1 + spread),
        cast.constants.source,
        cast.constants.unknown,
    )


def forecast(
    collective: str,
    size_bytes: npt.NDArray[np.int64],
    cluster: Cluster,
    shape: GroupShape,
    calibration: str | Constants | None = AUTO,
    **left: Any,  # noqa: ANN401 - algorithms, protocols and rows of a tuner, as `predict_times`
) -> Forecast:
    """Predict times with their uncertainty; arguments as of `predict` and `predict_times`."""
    comm, constants = communicator_on(
        cluster, collective, shape, spec_of(cluster, shape), calibration
    )
    found = predict_times(collective, size_bytes, comm, **left)
    work = work_of_choice(collective, size_bytes, comm, found)
    return Forecast(comm, found, constants, work, np.searchsorted(ENDS_BYTES, size_bytes))


def shape_of(cluster: Cluster, num_ranks: int | None) -> GroupShape:
    """Return the shape of ranks that fill one node after the other; None: of all devices.

    Raises:
        ValueError: There are fewer devices, or no ranks.
    """
    ranks = cluster.num_devices if num_ranks is None else num_ranks
    if not 2 <= ranks <= cluster.num_devices:
        raise ValueError(
            f"num_ranks={ranks}: expected 2 to {cluster.num_devices}, the devices of {cluster.name}"
        )
    return GroupShape.packed(ranks, cluster.devices_per_node)


def shape_of_ranks(
    cluster: Cluster, ranks: Sequence[int] | None, num_ranks: int | None = None
) -> GroupShape:
    """Return the shape of the group of some devices; None: of `num_ranks` that fill nodes.

    Raises:
        ValueError: A device is missing or repeated, there are fewer than two, or `num_ranks`
            is given too.
        UnsupportedError: The devices are of several pods.
    """
    if ranks is None:
        return shape_of(cluster, num_ranks)
    devices, most = list(ranks) if isinstance(ranks, Iterable) else [], cluster.num_devices
    is_right = all(
        isinstance(each, int | np.integer) and not isinstance(each, bool) and 0 <= each < most
        for each in devices
    )
    if not is_right or len(devices) < 2 or len(set(devices)) < len(devices):
        expected = f"two or more different devices from 0 to {most - 1}, those of {cluster.name}"
        raise ValueError(f"ranks={shortened(ranks)}: expected {expected}")
    if num_ranks is not None:
        raise ValueError(
            f"num_ranks={num_ranks} and ranks={shortened(ranks)}: expected one of them"
        )
    nodes = cluster.node_of(np.array(devices))
    if cluster.topology.pods is not None and cluster.spans_pods(nodes):
        raise UnsupportedError(
            f"ranks={shortened(ranks)} are of several pods of cluster {cluster.name}, and closed "
            "forms do not model what shares an uplink\n  to fix: take devices of one pod, or "
            "simulate it"
        )
    return shape_on(nodes)


def collective_of(name: str) -> str:
    """Return the collective of a name, also of torch's or nccl-tests' names.

    Raises:
        ValueError: It is unknown.
    """
    return _named("collective", name, COLLECTIVES, COLLECTIVE_ALIASES)


def _named(what: str, name: str, names: Sequence[str], aliases: Mapping[str, str]) -> str:
    """Return a name without its aliases.

    Raises:
        ValueError: It is none of the names.
    """
    known = aliases.get(name, name)
    if known not in names:
        to_fix = hint(name, names)
        text = f"{what}={name!r}: expected {choice_text(names)}"
        raise ValueError(text if to_fix is None else f"{text}\n  to fix: {to_fix}")
    return known


_MAX_SIZE_BYTES = 1 << 62


def _sizes(sizes: Any) -> npt.NDArray[np.int64]:  # noqa: ANN401 - see `predict`
    is_one = isinstance(sizes, str | bytes) or not isinstance(sizes, Iterable)
    several = [sizes] if is_one else sizes
    if not isinstance(several, np.ndarray):
        several = [units.parse_size(each) if isinstance(each, str) else each for each in several]
    found = np.asarray(several)
    is_whole = found.ndim == 1 and found.dtype.kind in "iu" and found.size > 0
    if not is_whole or (found <= 0).any() or (found > _MAX_SIZE_BYTES).any():
        raise ValueError(f"sizes={sizes!r}: expected sizes above 0, in whole bytes or as '16 MiB'")
    return found.astype(np.int64)


# ---- `simrank.predict_gemm`: times of single kernels on a cluster's device, with intervals ----

# What a caller writes -> the kind of product.
GEMM_DTYPES = {
    "bfloat16": "bfloat16",
    "float16": "bfloat16",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
    "fp8_block": "fp8_block",
    "nvfp4": "nvfp4",
}
_MAX_EXTENT = 1 << 31


@dataclass(frozen=True, slots=True)
class KernelPrediction:
    """The predicted time of one kernel.

    Attributes:
        time_us: Time in a CUDA graph, one kernel after the other, in microseconds.
        low_us: Lower end of the 90% prediction interval.
        high_us: Upper end of it.
        tflops: Rate at `time_us`, in 10^12 operations per second.
        launch_us: Start of a kernel that is launched alone, in addition to `time_us`.
        basis: `own`: measured rows of the device; `sibling`: those of a device of its architecture,
            scaled by peaks and bandwidths; `no relative`: a rule alone.
        source: The measured rows, or the constants of the rule, in words.
    """

    time_us: float
    low_us: float
    high_us: float
    tflops: float
    launch_us: float
    basis: str
    source: str


def predict_gemm(
    cluster: ClusterRef,
    m: int,
    n: int,
    k: int,
    batch: int = 1,
    dtype: str = "bfloat16",
) -> KernelPrediction:
    """Predict the time of a library's matrix product, m x k by k x n.

    It is the time in a CUDA graph at boost clock, the weights of a few layers in turn. fp8 and
    nvfp4 include quantising the bfloat16 activations, as in serving; results are bfloat16.

    Args:
        cluster: A built-in name, a file, a mapping or a configuration.
        m: Rows of the activations (tokens).
        n: Columns of the weights.
        k: Length of the sums.
        batch: Products in one kernel. The rows that were measured have one, but for MI355X.
        dtype: bfloat16, float16, float8_e4m3fn or float8_e5m2 (one scale per tensor), fp8_block
            (DeepSeek's scales per block of 128) or nvfp4.

    Raises:
        ValueError: A size is not a whole number above 0, or the dtype is unknown.
        UnsupportedError: The device does not compute products of this dtype.
        ConfigError: The cluster is wrong.
    """
    if dtype not in GEMM_DTYPES:
        raise ValueError(_unknown("dtype", dtype, tuple(GEMM_DTYPES)))
    for name, value in (("m", m), ("n", n), ("k", k), ("batch", batch)):
        check_extent(name, value)
    kind = GEMM_DTYPES[dtype]
    spec = load_cluster(cluster).device
    model = product_model(spec, kind)
    if model is None:
        raise UnsupportedError(
            f"products of {dtype} on {spec.name}: the device has no such units, or no peak for them"
            f"\n  to fix: take another dtype, or state the peak in device.peak_flops"
        )
    least_us = 2.0 * batch * m * n * k / model.machine.peak_flops * 1e6
    time_us = max(model.time_us((batch, m, n, k)), least_us)
    width = model.half_width((batch, m, n, k))
    return KernelPrediction(
        time_us,
        max(time_us * exp(-width), least_us),
        time_us * exp(width),
        2.0 * batch * m * n * k / time_us / 1e6,
        START_US,
        model.relation,
        _words(spec, model),
    )


def predict_attention(  # noqa: PLR0913 - the shape of an attention
    cluster: ClusterRef,
    heads: int,
    head_dim: int,
    length: int,
    batch: int = 1,
    *,
    kv_heads: int | None = None,
    phase: str = "prefill",
) -> KernelPrediction:
    """Predict the time of a serving framework's attention kernel, in bfloat16.

    It is the time in a CUDA graph of the fastest of FlashAttention-2 and -3, FlashInfer and
    TensorRT-LLM; torch's own SDPA differs, and simulated programs are charged for that.

    Args:
        cluster: A built-in name, a file, a mapping or a configuration.
        heads: Heads of queries.
        head_dim: Width of a head.
        length: Tokens of each sequence; of its keys for decode.
        batch: Sequences.
        kv_heads: Heads of keys and values; None: as many as of queries.
        phase: prefill (causal, writes the KV cache), full (no mask) or decode (one query).

    Raises:
        ValueError: A size is not a whole number above 0, or `phase` is unknown.
        UnsupportedError: No attention was measured on the device or one of its architecture.
        ConfigError: The cluster is wrong.
    """
    if phase not in PHASES:
        raise ValueError(_unknown("phase", phase, PHASES))
    kv_heads = heads if kv_heads is None else kv_heads
    numbers = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
    for name, value in {**numbers, "length": length, "batch": batch}.items():
        check_extent(name, value)
    if heads % kv_heads:
        raise ValueError(f"kv_heads={kv_heads}: expected a divisor of heads={heads}")
    spec = load_cluster(cluster).device
    model = product_model(spec, "bfloat16")
    if model is None or (phase, model.basis) not in read_attention_fits():
        known = sorted(device for its, device in read_attention_fits() if its == phase)
        raise UnsupportedError(
            f"{phase} attention on {spec.name}: none was measured on a device of its architecture\n"
            f"  to fix: name one in device.measured_as: {choice_text(known)}"
        )
    shape = np.array([heads, kv_heads, head_dim, length, batch], dtype=np.float64)
    constants = read_attention_fits()[phase, model.basis]
    time_us = float(attention_us(model.machine, shape[None], phase, constants)[0])
    if model.donor is not None:
        measured = measured_devices()[model.donor].machine
        log = residual_log(phase, model.donor, measured, shape, model.machine.num_sms)
        time_us *= exp(log)
    device = model.basis if model.relation == OWN else ANY
    widths = read_attention_widths()
    by_class = widths.get((phase, model.relation, device), widths[phase, NO_RELATIVE, ANY])
    width = by_class.get(int(attention_class(shape[None], phase)[0]), max(by_class.values()))
    pairs = float(length) * (1 if phase == "decode" else length / (2 if phase == "prefill" else 1))
    flops = 4.0 * heads * batch * head_dim * pairs
    least_us = max(flops / model.machine.peak_flops * 1e6, least_read_us(model.machine, shape))
    time_us = max(time_us, least_us)
    return KernelPrediction(
        time_us,
        max(time_us * exp(-width), least_us),
        time_us * exp(width),
        flops / time_us / 1e6,
        START_US,
        model.relation,
        f"measured {phase} attention on {model.basis}, {model.relation}",
    )


def check_extent(name: str, value: object) -> None:
    """Check a size of a kernel.

    Raises:
        ValueError: It is not a whole number from 1 to 2^31.
    """
    is_whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not is_whole or not 1 <= value <= _MAX_EXTENT:  # type: ignore[operator]
        raise ValueError(f"{name}={value!r}: expected a whole number from 1 to 2^31")


def _unknown(name: str, given: object, known: tuple[str, ...]) -> str:
    text = f"{name}={given!r}: expected {choice_text(known)}"
    to_fix = hint(str(given), known)
    return text if to_fix is None else f"{text}\n  to fix: {to_fix}"


def _words(spec: DeviceSpec, model: ProductModel) -> str:
    """Return the source of a prediction in words."""
    of = f"products of {model.kind}"
    if model.relation == OWN:
        return f"measured {of} on {model.basis}"
    if model.relation == SIBLING:
        return f"measured {of} on {model.basis}, scaled to the peak and the memory of {spec.name}"
    if model.donor is not None:
        return f"measured {of} on {model.basis}, of another architecture than {spec.name}"
    devices = "all measured devices" if model.basis == ANY else model.basis
    return f"a rule with constants of {devices}; nothing was measured on {spec.name} or a sibling"
