"""`simrank check`: recognise the kind of a file and list all of its problems."""

from collections.abc import Callable, Mapping
from pathlib import Path

from simrank.config.bench import bench_from_source
from simrank.config.calibration import calibration_from_source
from simrank.config.cluster import ClusterConfig
from simrank.config.faults import load_faults
from simrank.config.load import cluster_from_yaml, read_cluster
from simrank.config.locate import locate
from simrank.config.measured import load_measured, machine_from_source
from simrank.config.plan import is_plan, load_plan
from simrank.config.sweep import describe_program, load_sweep
from simrank.config.yaml_source import Source, read_text, read_yaml, uncollected
from simrank.errors import ConfigError


def check_file(path: str | Path) -> str:
    """Check any configuration file, with everything that it refers to.

    Args:
        path: A YAML file of a cluster, a benchmark, faults or a table's machine, a measured CSV,
            NCCL's topology XML, or the name of a built-in cluster.

    Returns:
        What the file is, in a few words.

    Raises:
        ConfigError: With every problem of the file, in file order.
    """
    path = Path(path)
    if len(path.parts) == 1 and not path.suffix and not path.exists():
        path = locate("clusters", str(path))
    if path.suffix == ".csv":
        return f"measured table with {len(load_measured(path))} rows"
    if path.suffix == ".xml":
        return _of_cluster(read_cluster(path))
    with uncollected():
        return _what_is(path)


def _of_cluster(cluster: ClusterConfig) -> str:
    return f"cluster {cluster.name}: {cluster.nodes} node(s) of {cluster.device.count} devices"


def _what_is(path: Path) -> str:
    source = read_yaml(path)
    assert isinstance(source.data, Mapping)
    if "program" in source.data:
        sweep = load_sweep(path)
        num_runs = len(sweep.cells())
        imported = describe_program(sweep)
        return f"benchmark of program {sweep.program}, {num_runs} runs; it imports {imported}"
    if is_plan(source.data):
        return f"plan of {len(load_plan(path).cells)} runs"
    found = _WORDS.get(kind_of(source))
    if found is not None:
        return found(path, source)
    bench = bench_from_source(source)
    for table in bench.measured:
        if table.suffix == ".csv":
            load_measured(table)
        else:
            read_text(table)  # Logs say what they are; running the benchmark reads them.
    clusters = ", ".join(cluster.name for cluster in bench.clusters)
    return f"benchmark of {', '.join(bench.collectives)} on {clusters}"


def _machine(_: Path, source: Source) -> str:
    machine = machine_from_source(source)
    return f"machine of a measured table: {machine.nodes} node(s) of {machine.cluster}"


_WORDS: Mapping[str, Callable[[Path, Source], str]] = {
    "faults": lambda path, _: f"faults: {len(load_faults(path))}",
    "cluster": lambda _, source: _of_cluster(cluster_from_yaml(source)),
    "calibration": lambda _, source: f"calibration of {calibration_from_source(source).cluster}",
    "measured": _machine,
}


def kind_of(source: Source) -> str:
    """Return the kind of a file by the keys at the top level: of `schemas.KINDS`.

    Raises:
        ConfigError: The keys are of neither.
    """
    assert isinstance(source.data, Mapping)
    keys = set(source.data)
    if keys == {"faults"}:
        return "faults"
    if keys & {"constants", "residuals"}:
        return "calibration"
    if keys & {"mode", "library"}:
        return "measured"
    if keys & {"cluster", "clusters", "collectives"} and not keys & {"device", "links"}:
        return "bench"
    if keys & {"device", "links", "switches", "fabric", "name"}:
        return "cluster"
    expected = "a cluster (with device and links) or a benchmark (with cluster and collectives)"
    got = "the keys " + ", ".join(sorted(keys)) if keys else "an empty mapping"
    raise ConfigError(source.problem((), expected, got))
