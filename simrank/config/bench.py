"""The YAML of a collective benchmark; start with `load_bench_config`.

The same keys come from the command line through `bench_config_from_mapping`. Which algorithms
exist, and which options each takes, is checked where the algorithms are.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from simrank import units
from simrank.config.cluster import ClusterConfig
from simrank.config.faults import FaultList, faults_from_source
from simrank.config.load import cluster_from_source
from simrank.config.locate import locate, located
from simrank.config.model import Model, custom_problem, in_file_order, validate
from simrank.config.quantity import (
    ALL,
    COLLECTIVE_ALIASES,
    COLLECTIVES,
    DTYPE_ALIASES,
    DTYPES,
    MAX_COUNT,
    REDOP_ALIASES,
    REDOPS,
    Count,
    CountOrZero,
    Factor,
    Flag,
    Seed,
    Size,
    one_of,
    read_size,
    reject,
    words_of,
)
from simrank.config.yaml_source import KeyPath, Source, read_yaml
from simrank.errors import ConfigError, ConfigProblem

DEFAULT_SIZES = tuple(2**power for power in range(3, 28))  # 8 B to 128 MiB.
AVERAGES = ("avg", "rank0", "min", "max")
MAX_SIZES = 10_000  # Assumed: a longer sweep is a typing error.


class SizeRange(Model):
    """A sweep over sizes, as nccl-tests' -b, -e, -f and -i.

    Attributes:
        first_bytes: The first size.
        last_bytes: No size is above this one.
        factor: Each size is the one before times this.
        step_bytes: Each size is the one before plus this, instead of `factor`.
    """

    first_bytes: Size = Field(default=8, alias="from")
    last_bytes: Size = Field(default=2**27, alias="to")
    factor: Factor | None = None
    step_bytes: Size | None = Field(default=None, alias="step")


def _sizes(value: object) -> object:
    """Validate a list of sizes; a range of them is left to `SizeRange`."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, list | tuple) and value:
        return tuple(dict.fromkeys(read_size(item, (index,)) for index, item in enumerate(value)))
    if isinstance(value, str):
        return (read_size(value, ()),)
    raise reject("a list of sizes, or a mapping with from, to and factor")


def _sweep(sizes: SizeRange) -> tuple[int, ...]:
    """Return the sizes of a range."""
    if sizes.last_bytes < sizes.first_bytes:
        raise reject(f"at least {units.format_size(sizes.first_bytes)}, as `from`", sub=("to",))
    if sizes.step_bytes is not None and sizes.factor is not None:
        raise reject("either factor or step", got="both", sub=("step",))
    if sizes.step_bytes is not None:
        if sizes.step_bytes == 0:
            raise reject("a size above 0 B", sub=("step",))
        num_sizes = (sizes.last_bytes - sizes.first_bytes) // sizes.step_bytes + 1
        if num_sizes > MAX_SIZES:
            raise reject(f"at most {MAX_SIZES} sizes", got=f"{num_sizes}", sub=("step",))
        return tuple(range(sizes.first_bytes, sizes.last_bytes + 1, sizes.step_bytes))
    if sizes.first_bytes == 0:
        raise reject("a size above 0 B, as sizes grow by a factor", sub=("from",))
    sizes_bytes = [sizes.first_bytes]
    while sizes_bytes[-1] * (sizes.factor or 2) <= sizes.last_bytes:
        sizes_bytes.append(sizes_bytes[-1] * (sizes.factor or 2))
    return tuple(sizes_bytes)


def _num_ranks(value: object) -> tuple[int, ...]:
    """Validate one number of ranks or a list of them."""
    items = value if isinstance(value, list | tuple) else [value]
    for index, item in enumerate(items):
        if isinstance(item, bool) or not isinstance(item, int) or item < 1:
            sub = (index,) if isinstance(value, list | tuple) else ()
            raise reject("a whole number from 1", sub=sub)
    if not items:
        raise reject("a whole number from 1, or a list of them")
    return tuple(dict.fromkeys(items))


def _algorithms(value: object) -> dict[str, Mapping[str, object]]:
    """Validate algorithm names, or a mapping from name to options.

    An entry with a `kernel` is a Triton kernel; it takes what it does not say from `defaults`.
    """
    if isinstance(value, str) and value:
        return {value: {}}
    if isinstance(value, list | tuple) and value:
        for index, item in enumerate(value):
            if not isinstance(item, str) or not item:
                raise reject("the name of an algorithm", sub=(index,))
        return {item: {} for item in value}
    if not isinstance(value, Mapping) or not value:
        raise reject("a list of algorithms such as [auto, ring], or a mapping name -> options")
    for name, options in value.items():
        if options is not None and not isinstance(options, Mapping):
            raise reject("a mapping from option to value", sub=(name,))
    defaults = dict(value.get("defaults") or {})
    options_by_name = {
        name: dict(options or {}) for name, options in value.items() if name != "defaults"
    }
    if not options_by_name:
        raise reject("an algorithm beside the defaults")
    return {
        name: {**defaults, **options} if "kernel" in options else options
        for name, options in options_by_name.items()
    }


def _root(value: object) -> int | None:
    if value == ALL:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_COUNT:
        raise reject("a rank, or all")
    return value


_ROOT_SCHEMA = WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, {"const": ALL}]})


def _in_place(value: object) -> tuple[bool, ...]:
    if value == "both":
        return (False, True)
    if not isinstance(value, bool):
        raise reject("both, true or false")
    return (value,)


def _files(value: object) -> tuple[str, ...]:
    """Validate one file name or a list of them."""
    if isinstance(value, str | Path) and str(value):
        return (str(value),)
    if isinstance(value, list | tuple) and all(isinstance(item, str | Path) for item in value):
        return tuple(str(item) for item in value)
    raise reject("the name of a measured table, a CSV file, or a list of them")


class Iterations(Model):
    """Numbers of warm-up and timed calls per collective, as nccl-tests' -w and -n.

    Attributes:
        warmup: Iterations before the clock starts.
        timed: Iterations that are timed, back to back.
        blocking: Whether each is waited for before the next is issued, as nccl-tests' -z 1.
    """

    warmup: CountOrZero = 1
    timed: Count = 20
    blocking: Flag = False


class _BenchKeys(Model):
    """The keys of a benchmark besides its clusters; see `BenchConfig`."""

    cluster: object = None
    clusters: object = None
    num_ranks: Annotated[tuple[int, ...] | None, BeforeValidator(_num_ranks)] = None
    collectives: Annotated[
        tuple[str, ...], words_of(COLLECTIVES, COLLECTIVE_ALIASES, example="all_reduce")
    ]
    algorithms: Annotated[Mapping[str, Mapping[str, object]], BeforeValidator(_algorithms)] = Field(
        default_factory=lambda: {"auto": {}}
    )
    dtypes: Annotated[
        tuple[str, ...], words_of(DTYPES, DTYPE_ALIASES, example="float32", has_all=True)
    ] = ("float32",)
    redops: Annotated[
        tuple[str, ...], words_of(REDOPS, REDOP_ALIASES, example="sum", has_all=True)
    ] = ("sum",)
    root: Annotated[int | None, BeforeValidator(_root), _ROOT_SCHEMA] = 0
    sizes: Annotated[object, BeforeValidator(_sizes)] = DEFAULT_SIZES
    iterations: Iterations = Iterations()
    average: Annotated[str, one_of(AVERAGES, {})] = "avg"
    in_place: Annotated[tuple[bool, ...], BeforeValidator(_in_place)] = (False, True)
    measured: Annotated[tuple[str, ...], BeforeValidator(_files)] = ()
    check: Flag = True
    seed: Seed = 0
    faults: object = ()


class BenchConfig(Model):
    """A checked benchmark: every combination of its lists is one row.

    Attributes:
        clusters: The clusters, read and checked.
        num_ranks: Numbers of ranks, or None for all devices of each cluster.
        collectives: Names such as all_reduce.
        algorithms: For each algorithm its options.
        dtypes: Names of dtypes, torch's spelling.
        redops: Reduce operations; used by the collectives that reduce.
        root: Root of the collectives that have one; None: every rank in turn.
        sizes_bytes: nccl-tests sizes, in bytes.
        iterations: Warm-up and timed iterations.
        average: Which of the ranks' times counts: their mean, rank 0's, the least or the largest.
        in_place: (False, True), (True,) or (False,).
        measured: Measured tables to set beside the results.
        check: Whether results are checked against a float64 reference.
        seed: Seed of the data and of every tie.
        faults: Injected faults.
        source: Where the benchmark was written, for messages.
    """

    clusters: tuple[ClusterConfig, ...]
    num_ranks: tuple[int, ...] | None
    collectives: tuple[str, ...]
    algorithms: Mapping[str, Mapping[str, object]]
    dtypes: tuple[str, ...]
    redops: tuple[str, ...]
    root: int | None
    sizes_bytes: tuple[int, ...]
    iterations: Iterations
    average: str
    in_place: tuple[bool, ...]
    measured: tuple[Path, ...]
    check: bool
    seed: int
    faults: FaultList
    source: Source


def load_bench_config(path: str | Path) -> BenchConfig:
    """Read and check a benchmark.

    Args:
        path: A YAML file, or the name of a built-in benchmark.

    Raises:
        ConfigError: With every problem of the file, in file order.
    """
    return bench_from_source(read_yaml(locate("bench", str(path))))


def bench_config_from_mapping(
    mapping: Mapping[str, object], source: str = "command line"
) -> BenchConfig:
    """Check a benchmark that was not read from a file.

    Args:
        mapping: The keys of the YAML form, with values as YAML would give them.
        source: What messages name as the file.

    Raises:
        ConfigError: With every problem.
    """
    return bench_from_source(Source(source, dict(mapping)))


def bench_from_source(source: Source) -> BenchConfig:
    """Check the benchmark that is the whole of a source."""
    problems: list[ConfigProblem] = []
    clusters = _clusters(source, problems)
    sizes = _swept_sizes(source, problems)
    try:
        keys = validate(_BenchKeys, source)
    except ConfigError as error:
        raise ConfigError(*in_file_order([*problems, *error.problems])) from None
    measured = _measured(source, keys.measured, problems)
    problems += _ranks_that_do_not_fit(source, keys, clusters)
    faults = _faults(source, problems)
    if problems:
        raise ConfigError(*in_file_order(problems))
    rest = {name: getattr(keys, name) for name in _BenchKeys.model_fields}
    rest |= {"clusters": tuple(clusters), "measured": tuple(measured), "source": source}
    rest["faults"] = faults
    rest["sizes_bytes"] = rest.pop("sizes") if sizes is None else sizes
    del rest["cluster"]
    return BenchConfig.model_construct(**rest)


def _clusters(source: Source, problems: list[ConfigProblem]) -> list[ClusterConfig]:
    """Return the clusters of a benchmark, and collect their problems."""
    data = source.data
    assert isinstance(data, Mapping)
    given = [key for key in ("cluster", "clusters") if key in data]
    if len(given) != 1:
        got = "both" if given else "nothing"
        key_path: KeyPath = ("clusters",) if given else ("cluster",)
        problems.append(source.problem(key_path, "either cluster or clusters", got))
        return []
    key_paths: list[KeyPath] = [("cluster",)]
    if given == ["clusters"]:
        value = data["clusters"]
        if not isinstance(value, list | tuple) or not value:
            got = source.describe(("clusters",), value) if value else "nothing"
            problems.append(source.problem(("clusters",), "a list of clusters", got))
            return []
        key_paths = [("clusters", index) for index in range(len(value))]
    clusters = []
    for key_path in key_paths:
        try:
            clusters.append(cluster_from_source(source, key_path))
        except ConfigError as error:
            problems.extend(error.problems)
    return clusters


def _swept_sizes(source: Source, problems: list[ConfigProblem]) -> tuple[int, ...] | None:
    """Return the sizes of a range; None for a list of sizes."""
    data = source.data
    assert isinstance(data, Mapping)
    if not isinstance(data.get("sizes"), Mapping):
        return None
    try:
        return _sweep(validate(SizeRange, source, ("sizes",)))
    except ConfigError as error:
        problems.extend(error.problems)
    except PydanticCustomError as error:
        problems.append(custom_problem(source, ("sizes",), error))
    return None


def _faults(source: Source, problems: list[ConfigProblem]) -> FaultList:
    """Return the faults of a benchmark, and collect their problems."""
    try:
        return faults_from_source(source)
    except ConfigError as error:
        problems.extend(error.problems)
        return FaultList.of((), source)


def _measured(source: Source, words: tuple[str, ...], problems: list[ConfigProblem]) -> list[Path]:
    """Return the measured tables of a benchmark, and collect missing ones."""
    paths = []
    for word in words:
        try:
            paths.append(located("measured", word, source, ("measured",)))
        except ConfigError as error:
            problems += error.problems
    return paths


def _ranks_that_do_not_fit(
    source: Source, keys: _BenchKeys, clusters: list[ClusterConfig]
) -> list[ConfigProblem]:
    """Return a problem for each cluster that has too few devices, and for a root outside."""
    problems = []
    for cluster in clusters:
        largest = max(keys.num_ranks or (0,))
        if largest > cluster.num_devices:
            expected = f"at most {cluster.num_devices}, the devices of {cluster.name}"
            problems.append(source.problem(("num_ranks",), expected, str(largest)))
        smallest = min(keys.num_ranks or (cluster.num_devices,))
        if keys.root is not None and keys.root >= smallest:
            expected = f"a rank from 0 to {smallest - 1}"
            problems.append(source.problem(("root",), expected, str(keys.root)))
    return problems
