"""`simrank check` and `simrank schema`: kinds of files, their problems, JSON Schemas.

What pydantic knows of the models is what they hold; where a key may be written in other ways (one
word or a list of them, a name for a cluster), `_WRITTEN` says how.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic.json_schema import models_json_schema

from simrank.config import bench, plan, sweep
from simrank.config.bench import bench_from_source
from simrank.config.calibration import (
    CONSTANTS,
    CalibrationConfig,
    FittedConfig,
    ResidualConfig,
    calibration_from_source,
)
from simrank.config.cluster import (
    BOOST,
    CLOCKS,
    ClusterConfig,
    CollectivesConfig,
    DeviceConfig,
    FabricConfig,
    LinkConfig,
    NcclConfig,
    Sourced,
)
from simrank.config.decoder import DecoderConfig, load_decoder
from simrank.config.faults import (
    Deactivate,
    DelayArrivals,
    DropLink,
    Kill,
    PortConflict,
    Slow,
    SlowLink,
    _FaultsFile,
    load_faults,
)
from simrank.config.load import cluster_from_yaml, read_cluster
from simrank.config.locate import locate
from simrank.config.measured import (
    LAUNCHES,
    MODES,
    MachineConfig,
    load_measured,
    machine_from_source,
)
from simrank.config.plan import is_plan, load_plan
from simrank.config.quantity import (
    ALL,
    COLLECTIVE_ALIASES,
    COLLECTIVES,
    DTYPE_ALIASES,
    DTYPES,
    NCCL_ALGORITHM_ALIASES,
    NCCL_ALGORITHMS,
    NCCL_ARCHITECTURES,
    NCCL_HOSTS,
    NCCL_NETWORKS,
    NCCL_PROTOCOL_ALIASES,
    NCCL_PROTOCOLS,
    NCCL_WIRES,
    REDOP_ALIASES,
    REDOPS,
)
from simrank.config.sweep import describe_program, load_sweep
from simrank.config.yaml_source import Source, read_text, read_yaml, uncollected
from simrank.errors import ConfigError

if TYPE_CHECKING:
    from simrank.config.model import Model


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
        return _kind_of(path)


def _of_cluster(cluster: ClusterConfig) -> str:
    return f"cluster {cluster.name}: {cluster.nodes} node(s) of {cluster.device.count} devices"


def _kind_of(path: Path) -> str:
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
    "model": lambda path, _: f"model of {load_decoder(path).num_parameters} parameters",
}


def kind_of(source: Source) -> str:
    """Return the kind of a file by the keys at the top level: of `KINDS`.

    Raises:
        ConfigError: The keys are of neither.
    """
    assert isinstance(source.data, Mapping)
    keys = set(source.data)
    if keys == {"faults"}:
        return "faults"
    if keys & {"constants", "residuals"}:
        return "calibration"
    if keys & {"layers", "hidden", "kv_heads"}:
        return "model"
    if keys & {"mode", "library"}:
        return "measured"
    if keys & {"cluster", "clusters", "collectives"} and not keys & {"device", "links"}:
        return "bench"
    if keys & {"device", "links", "switches", "fabric", "name"}:
        return "cluster"
    expected = "a cluster (with device and links) or a benchmark (with cluster and collectives)"
    got = "the keys " + ", ".join(sorted(keys)) if keys else "an empty mapping"
    raise ConfigError(source.problem((), expected, got))


# ---- JSON Schemas of the YAML forms, for editors; start with `schema` ----

Json = dict[str, Any]

_OF_MODELS = re.compile(r", in (picoseconds|bytes)( of simulated time)?|; or$")
_TEXT: Json = {"type": "string"}
_WHOLE: Json = {"type": "integer"}
_FAULTS: tuple[type[Model], ...] = (
    Kill,
    Deactivate,
    Slow,
    DelayArrivals,
    PortConflict,
    DropLink,
    SlowLink,
)
_CLUSTER: tuple[type[Model], ...] = (
    ClusterConfig,
    DeviceConfig,
    LinkConfig,
    FabricConfig,
    CollectivesConfig,
    NcclConfig,
)
# Per kind: the model of the whole file, whose docstring says what its keys mean, and its parts.
_KINDS: dict[str, tuple[type[Model], type[Model], tuple[type[Model], ...]]] = {
    "cluster": (ClusterConfig, ClusterConfig, _CLUSTER),
    "bench": (
        bench._BenchKeys,  # noqa: SLF001 - the keys are the benchmark's own affair elsewhere
        bench.BenchConfig,
        (bench.SizeRange, bench.Iterations, *_CLUSTER, *_FAULTS),
    ),
    "sweep": (sweep._Keys, sweep.SweepConfig, (bench.Iterations, *_CLUSTER)),  # noqa: SLF001
    "plan": (plan._Keys, plan.PlanConfig, ()),  # noqa: SLF001
    "model": (DecoderConfig, DecoderConfig, ()),
    "faults": (_FaultsFile, _FaultsFile, _FAULTS),
    "measured": (MachineConfig, MachineConfig, ()),
    "calibration": (CalibrationConfig, CalibrationConfig, (ResidualConfig, FittedConfig)),
}
KINDS = tuple(_KINDS)


def schema(kind: str) -> Json:
    """Return the JSON Schema of one kind of YAML file.

    Args:
        kind: One of `KINDS`.
    """
    root, documented, parts = _KINDS[kind]
    models = {model.__name__: model for model in (root, *parts)}
    _, made = models_json_schema([(model, "validation") for model in models.values()])
    definitions = made["$defs"]
    for name, model in models.items():
        _as_written(model, definitions[name])
    whole = definitions.pop(root.__name__)
    _describe(documented, root, whole)
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"simrank {kind}",
    }
    used = {name: definitions[name] for name in sorted(_reached(whole, definitions))}
    return {**head, **whole} | ({"$defs": used} if used else {})


def _reached(part: object, definitions: Json) -> set[str]:
    """Return the names of definitions that a part of a schema refers to."""
    names: set[str] = set()
    left = [part]
    while left:
        for name in set(re.findall(r"'\$ref': '#/\$defs/(\w+)'", str(left.pop()))) - names:
            names.add(name)
            left.append(definitions[name])
    return names


def _as_written(model: type[Model], definition: Json) -> None:
    """Convert pydantic's schema of a model to the schema of its YAML."""
    definition.pop("title", None)
    for name, field in model.model_fields.items():
        key = field.alias or name
        written = next((_WRITTEN[m, key] for m in model.__mro__ if (m, key) in _WRITTEN), None)
        shown = dict(definition["properties"][key])
        shown.pop("title", None)
        default = shown.pop("default", None)
        if written is None and _is_of_type(default, shown.get("type")):
            shown["default"] = default
        definition["properties"][key] = shown if written is None else dict(written)
    definition |= _NEEDED.get(model, {})
    _describe(model, model, definition)


def _is_of_type(value: object, kind: object) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    return (isinstance(value, int) and kind == "integer") or (
        isinstance(value, str) and kind == "string" and bool(value)
    )


def _describe(documented: type[Model], model: type[Model], definition: Json) -> None:
    """Give a definition and its keys the words of a docstring."""
    text = inspect.cleandoc(documented.__doc__ or "")
    summary, _, attributes = text.partition("Attributes:")
    if summary:
        definition["description"] = " ".join(summary.split())
    said = re.findall(r"^    (\w+): (.*(?:\n        .*)*)", attributes, re.MULTILINE)
    # Not in which unit the model holds a quantity, which is written with its own.
    words = {name: _OF_MODELS.sub("", " ".join(text.split())) for name, text in said}
    for name, field in model.model_fields.items():
        known = words.get(name) or words.get(f"{name}_bytes")
        if known is not None:
            definition["properties"][field.alias or name].setdefault("description", known)


def _either(*choices: Json) -> Json:
    return {"anyOf": list(choices)}


def _list_of(items: Json) -> Json:
    return {"type": "array", "items": items, "minItems": 1}


def _or_list(items: Json) -> Json:
    return _either(items, _list_of(items))


def _ref(model: type[Model]) -> Json:
    return {"$ref": f"#/$defs/{model.__name__}"}


def _words(choices: tuple[str, ...], aliases: dict[str, str]) -> Json:
    return _or_list({"enum": [*choices, *aliases]})


def _by_direction(example: str, description: str) -> Json:
    one = {**_TEXT, "examples": [example]}
    both: Json = {
        "type": "object",
        "properties": {"forward": one, "backward": one},
        "required": ["forward", "backward"],
        "additionalProperties": False,
    }
    return {**_either(one, both), "description": description}


_QUANTITY = {**_TEXT, "examples": ["8 MiB"]}
_NAMED_CLUSTER: Json = {
    "type": "object",
    "properties": {
        "name": _TEXT,
        "nodes": _WHOLE,
        "cost_level": {"enum": ["nccl", "schedule"], "default": "nccl"},
        "device": {"type": "object"},
        "nccl": {"type": "object"},
    },
    "required": ["name"],
    "additionalProperties": False,
}
_ONE_CLUSTER = _either(_TEXT, _NAMED_CLUSTER, _ref(ClusterConfig))
_SOURCE = _either(_TEXT, {"type": "object", "additionalProperties": _TEXT})
_RANKS = _either({"const": "all"}, {"type": "integer", "minimum": 0}, _list_of(_WHOLE))
_LINK = {
    **_TEXT,
    "description": "In one direction, or in both.",
    "examples": ["gpu3 -> nvswitch", "node 0: gpu3 <-> nvswitch"],
}
_FAULT_LIST: Json = {"type": "array", "items": _either(*map(_ref, _FAULTS))}
_OPTIONS: Json = {"type": ["object", "null"]}
_BENCH, _SWEEP, _PLAN = (_KINDS[kind][0] for kind in ("bench", "sweep", "plan"))
_EXPRESSION = _either(_TEXT, {"type": "number"})
_WRITTEN: dict[tuple[type, str], Json] = {
    (Sourced, "source"): _SOURCE,
    (ClusterConfig, "source"): _SOURCE,
    (CalibrationConfig, "constants"): {
        "type": "object",
        "properties": {name: {"type": "number"} for name in CONSTANTS},
        "additionalProperties": False,
    },
    (CalibrationConfig, "takes_fastest"): {"type": "boolean", "default": False},
    (ResidualConfig, "error_pct"): {"type": "number"},
    (ResidualConfig, "interval_pct"): {"type": "number"},
    (MachineConfig, "mode"): {"enum": [*MODES]},
    (MachineConfig, "launch"): {"enum": [*LAUNCHES]},
    (NcclConfig, "architecture"): {"enum": [*NCCL_ARCHITECTURES]},
    (NcclConfig, "wire"): {"enum": [*NCCL_WIRES], "default": "nvlink"},
    (NcclConfig, "host"): {"enum": [*NCCL_HOSTS], "default": "intel"},
    (NcclConfig, "network"): {"enum": [*NCCL_NETWORKS]},
    (NcclConfig, "algorithms"): _words(NCCL_ALGORITHMS, NCCL_ALGORITHM_ALIASES),
    (NcclConfig, "protocols"): _words(NCCL_PROTOCOLS, NCCL_PROTOCOL_ALIASES),
    (DeviceConfig, "clocks"): {"enum": [*CLOCKS], "default": BOOST},
    (LinkConfig, "bandwidth"): _by_direction("450 GB/s", "Rate, per direction."),
    (LinkConfig, "latency"): _by_direction("1 us", "Time that the first byte takes."),
    (_BENCH, "cluster"): _ONE_CLUSTER,
    (_BENCH, "clusters"): _list_of(_ONE_CLUSTER),
    (_BENCH, "num_ranks"): _or_list({"type": "integer", "minimum": 1}),
    (_BENCH, "collectives"): _words(COLLECTIVES, COLLECTIVE_ALIASES),
    (_BENCH, "algorithms"): _either(
        _TEXT, _list_of(_TEXT), {"type": "object", "additionalProperties": _OPTIONS}
    ),
    (_BENCH, "dtypes"): _either({"const": ALL}, _words(DTYPES, DTYPE_ALIASES)),
    (_BENCH, "redops"): _either({"const": ALL}, _words(REDOPS, REDOP_ALIASES)),
    (_BENCH, "average"): {"enum": [*bench.AVERAGES], "default": "avg"},
    (_BENCH, "sizes"): _either(_QUANTITY, _list_of(_QUANTITY), _ref(bench.SizeRange)),
    (_BENCH, "in_place"): {"enum": ["both", True, False]},
    (_BENCH, "measured"): _either(_TEXT, {"type": "array", "items": _TEXT}),
    (_BENCH, "faults"): _FAULT_LIST,
    (_SWEEP, "cluster"): _ONE_CLUSTER,
    (_SWEEP, "clusters"): _either(_ONE_CLUSTER, _list_of(_ONE_CLUSTER)),
    (_SWEEP, "num_ranks"): _either(_TEXT, {"type": "integer", "minimum": 1}),
    (_SWEEP, "parameters"): {"type": "object", "minProperties": 1},
    (_SWEEP, "algorithms"): _or_list(
        _either(_TEXT, {"type": "object", "additionalProperties": _TEXT})
    ),
    (_PLAN, "cluster"): _TEXT,
    (_PLAN, "clusters"): _list_of(_TEXT),
    (_PLAN, "parameters"): {"type": "object", "minProperties": 1},
    (_PLAN, "layouts"): _list_of({"type": "object", "minProperties": 1}),
    (_PLAN, "derived"): {"type": "object", "additionalProperties": _EXPRESSION},
    (_PLAN, "where"): _either(_TEXT, {"type": "boolean"}),
    (_PLAN, "tokens_per_step"): _EXPRESSION,
    (_FaultsFile, "faults"): _FAULT_LIST,
    (Kill, "kill"): _RANKS,
    (Deactivate, "deactivate"): _RANKS,
    (Slow, "slow"): _RANKS,
    (DelayArrivals, "delay_arrivals"): _RANKS,
    (PortConflict, "port_conflict"): _RANKS,
    (PortConflict, "port"): {"type": "integer", "minimum": 1},
    (DropLink, "drop_link"): _LINK,
    (SlowLink, "slow_link"): _LINK,
}
_LIKE: Json = {"properties": {"device": {"required": ["like"]}}, "required": ["device"]}
_CLUSTERS: Json = {"oneOf": [{"required": ["cluster"]}, {"required": ["clusters"]}]}
# What must be given: not what a built-in cluster gives, and one of two keys.
_NEEDED: dict[type, Json] = {
    ClusterConfig: {
        "required": ["name", "device", "links"],
        "anyOf": [{"required": ["collectives"]}, _LIKE],
    },
    DeviceConfig: {
        "required": [],
        "anyOf": [
            {"required": ["like"]},
            {
                "required": [
                    field.alias or name
                    for name, field in DeviceConfig.model_fields.items()
                    if field.is_required()
                ]
            },
        ],
    },
    _BENCH: _CLUSTERS,
    _SWEEP: _CLUSTERS,
    _PLAN: _CLUSTERS,
    Kill: {"oneOf": [{"required": ["at"]}, {"required": ["at_collective"]}]},
    DelayArrivals: {"oneOf": [{"required": ["by"]}, {"required": ["up_to"]}]},
}
