"""The YAML of a program's benchmark: every combination of its parameters is one row.

```yaml
program: benches.tp_mlp.mlp        # a function(ctx, **parameters) that returns what is timed
clusters: [hgx_h100, hgx_b200]
num_ranks: tp_size                 # a number, or the parameter that says it
parameters: {tp_size: [1, 2, 4, 8], hidden: [4096, 8192]}
algorithms: [auto, ring, {all_reduce: tree}]  # of collectives; or not at all
```
"""

import sys
from collections.abc import Iterator, Mapping
from importlib.machinery import ModuleSpec, PathFinder
from itertools import product
from math import prod
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator

from simrank.config.bench import Iterations
from simrank.config.cluster import ClusterConfig
from simrank.config.load import cluster_from_source
from simrank.config.locate import is_file
from simrank.config.model import Model, validate
from simrank.config.quantity import Flag, Seed, Text, reject
from simrank.config.yaml_source import Source, read_yaml
from simrank.errors import ConfigError

MAX_RUNS = 10_000  # Assumed: more combinations are a typing error.
# Of a row, besides the parameters.
ALGORITHMS, ERROR = "algorithms", "error"
Forced = str | Mapping[str, str]  # A name, or names by collective.


def _lists(value: object) -> dict[str, tuple[Any, ...]]:
    """Validate parameters: for each a value, or a list of them."""
    if not isinstance(value, Mapping) or not value:
        raise reject("a mapping from parameter to a value or a list of values")
    items_by_name = {}
    for name, given in value.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise reject("the name of a parameter of the function", sub=(name,))
        if name in (ALGORITHMS, ERROR):
            raise reject("another name than a column has", sub=(name,))
        items = tuple(given) if isinstance(given, list | tuple) else (given,)
        if not items:
            raise reject("at least one value", sub=(name,))
        items_by_name[name] = items
    return items_by_name


def _algorithms(value: object) -> tuple[Forced, ...]:
    """Validate algorithms of collectives: for each a name, or names by collective."""
    items = tuple(value) if isinstance(value, list | tuple) else (value,)
    if not items:
        raise reject("at least one algorithm")
    for index, item in enumerate(items):
        words = list(item.items()) if isinstance(item, Mapping) else [("", item)]
        if not words or not all(isinstance(word, str) for pair in words for word in pair):
            expected = "the name of an algorithm, or a mapping from collective to name"
            raise reject(expected, sub=(index,) if isinstance(value, list | tuple) else ())
    return items


class Cell(NamedTuple):
    """One run of a benchmark.

    Attributes:
        cluster: On which it runs.
        chosen: Its parameters.
        forced: The algorithms of its collectives; None where the file does not speak of them.
    """

    cluster: ClusterConfig
    chosen: dict[str, Any]
    forced: Forced | None

    @property
    def columns(self) -> dict[str, Any]:
        """The first columns of the run's row."""
        if self.forced is None:
            return {"cluster": self.cluster.name, **self.chosen}
        named = self.forced
        if not isinstance(named, str):
            named = " ".join(f"{collective}={name}" for collective, name in named.items())
        return {"cluster": self.cluster.name, **self.chosen, ALGORITHMS: named}


class _Keys(Model):
    """The keys as written in YAML; see `SweepConfig`."""

    program: Text
    cluster: object = None
    clusters: object = None
    num_ranks: object = None
    parameters: Annotated[Mapping[str, tuple[Any, ...]], BeforeValidator(_lists)]
    algorithms: Annotated[tuple[Forced, ...] | None, BeforeValidator(_algorithms)] = None
    iterations: Iterations = Iterations(warmup=1, timed=1)
    data: Flag = False
    seed: Seed = 0


class SweepConfig(Model):
    """A checked benchmark of a program.

    Attributes:
        program: The function, with its module: `my_steps.mlp`.
        clusters: The clusters, read and checked.
        num_ranks: How many ranks run it, or the parameter that says it; None: all devices.
        parameters: For each parameter its values.
        algorithms: Of collectives, each run with all parameters; None: as NCCL or the links choose.
        iterations: How often what it returns is run, untimed and timed.
        data: Whether tensors have values; without, large ones are shapes only.
        seed: Seed of everything random.
        folder: Where the file lies, from which the module is imported.
        source: Where it was written, for messages.
    """

    program: str
    clusters: tuple[ClusterConfig, ...]
    num_ranks: int | str | None
    parameters: Mapping[str, tuple[Any, ...]]
    algorithms: tuple[Forced, ...] | None
    iterations: Iterations
    data: bool
    seed: int
    folder: Path | None
    source: Source

    def combinations(self) -> list[dict[str, Any]]:
        """Return every combination of parameters, the last one running fastest."""
        names = list(self.parameters)
        return [
            dict(zip(names, values, strict=True)) for values in product(*self.parameters.values())
        ]

    def cells(self) -> list[Cell]:
        """Return every run: clusters x parameters x algorithms, the last one running fastest."""
        algorithms = self.algorithms or (None,)
        return [Cell(*each) for each in product(self.clusters, self.combinations(), algorithms)]

    def ranks_for(self, cluster: ClusterConfig, chosen: Mapping[str, Any]) -> int:
        """Return on how many ranks a combination of parameters runs.

        Raises:
            ConfigError: The cluster has not so many devices.
        """
        asked = self.num_ranks
        num_ranks = chosen[asked] if isinstance(asked, str) else asked or cluster.num_devices
        if _is_count(num_ranks) and num_ranks <= cluster.num_devices:
            return int(num_ranks)
        expected = f"1 to {cluster.num_devices} ranks, the devices of {cluster.name}"
        got = self.source.describe((), num_ranks)
        raise ConfigError(self.source.problem(("num_ranks",), expected, got))


def is_sweep(path: str | Path) -> bool:
    """Return whether a file is a program's benchmark: it names a program."""
    target = Path(path)
    if target.suffix not in (".yaml", ".yml") or not is_file(target):
        return False
    data = read_yaml(target).data
    return isinstance(data, Mapping) and "program" in data


def load_sweep(path: str | Path) -> SweepConfig:
    """Read and check a program's benchmark.

    Raises:
        ConfigError: With every problem of the file, in file order.
    """
    source = read_yaml(path)
    keys = validate(_Keys, source)
    key = cluster_key(source)
    config = SweepConfig.model_construct(
        program=_program(source, keys.program),
        clusters=tuple(_clusters(source, key)),
        num_ranks=_num_ranks(source, keys),
        parameters=keys.parameters,
        algorithms=keys.algorithms,
        iterations=keys.iterations,
        data=keys.data,
        seed=keys.seed,
        folder=None if source.path is None else source.path.absolute().parent,
        source=source,
    )
    num_runs = len(config.clusters) * prod(map(len, config.parameters.values()))
    num_runs *= len(config.algorithms or (None,))
    if num_runs > MAX_RUNS:
        expected = f"at most {MAX_RUNS} combinations"
        raise ConfigError(source.problem(("parameters",), expected, f"{num_runs}"))
    _check_ranks(config)
    return config


def cluster_key(source: Source) -> str:
    """Return the key under which a file names its clusters: `cluster` or `clusters`.

    Raises:
        ConfigError: It has both, or neither.
    """
    assert isinstance(source.data, Mapping)
    given = [key for key in ("cluster", "clusters") if key in source.data]
    if len(given) != 1:
        got = "both" if given else "nothing"
        raise ConfigError(source.problem((*given[1:],), "either cluster or clusters", got))
    return given[0]


def _check_ranks(config: SweepConfig) -> None:
    """Raise ConfigError for invalid numbers of ranks, or more ranks than devices.

    Those that have too few beside others that do not are rows that say so.
    """
    too_many = []
    cells = config.cells()
    for cell in cells:
        try:
            config.ranks_for(cell.cluster, cell.chosen)
        except ConfigError as error:
            asked = config.num_ranks
            if isinstance(asked, str) and not _is_count(cell.chosen[asked]):
                raise
            too_many.append(error)
    if len(too_many) == len(cells):
        raise too_many[0]


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _clusters(source: Source, key: str) -> Iterator[ClusterConfig]:
    """Yield the clusters; `clusters` is a list of them."""
    assert isinstance(source.data, Mapping)
    listed = source.data[key]
    if key == "cluster":
        yield cluster_from_source(source, (key,))
        return
    if not isinstance(listed, list | tuple) or not listed:
        got = source.describe((key,), listed) if listed else "nothing"
        raise ConfigError(source.problem((key,), "a list of clusters", got))
    for index in range(len(listed)):
        yield cluster_from_source(source, (key, index))


def _program(source: Source, program: str) -> str:
    """Return the function's name, which has a module before it."""
    parts = program.split(".")
    if len(parts) > 1 and all(part.isidentifier() for part in parts):
        return program
    expected = "the name of a function with its module, such as my_steps.mlp"
    raise ConfigError(source.problem(("program",), expected, program))


def _num_ranks(source: Source, keys: _Keys) -> int | str | None:
    value = keys.num_ranks
    if value is None:
        return None
    if isinstance(value, str) and value in keys.parameters:
        return value
    if isinstance(value, int) and _is_count(value):
        return value
    expected = f"a whole number from 1, or one of {', '.join(keys.parameters)}"
    got = source.describe(("num_ranks",), value)
    raise ConfigError(source.problem(("num_ranks",), expected, got))


# ---- the code that a benchmark of a program would run, found without running it ----


def describe_program(config: SweepConfig) -> str:
    """Return the text of a benchmark's program: `mlp of step.py in /home/me`.

    Modules are looked for beside the file, in the current folder, and where Python looks.

    Raises:
        ConfigError: There is no such module.
    """
    function = config.program.rpartition(".")[2]
    file = program_file(config)
    if file is None:
        return f"{function} of {config.program.rpartition('.')[0]}"
    return f"{function} of {file.name} in {file.parent}"


def program_file(config: SweepConfig) -> Path | None:
    """Return the Python file that a benchmark imports first, or None.

    Raises:
        ConfigError: There is no such module.
    """
    module = config.program.rpartition(".")[0]
    beside = [] if config.folder is None else [str(config.folder)]
    spec = _spec(module, [*beside, str(Path.cwd()), *sys.path])
    if spec is None:
        expected = "the name of a function with its module, such as my_steps.mlp"
        got = f"{config.program} (no module {module})"
        raise ConfigError(config.source.problem(("program",), expected, got))
    return Path(spec.origin) if spec.origin and Path(spec.origin).is_file() else None


def _spec(module: str, folders: list[str]) -> ModuleSpec | None:
    """Find a module: packages around it are looked into, not imported."""
    if module in sys.builtin_module_names:
        return ModuleSpec(module, None)
    spec = None
    name = ""
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        spec = PathFinder.find_spec(name, folders)
        if spec is None:
            return None
        folders = list(spec.submodule_search_locations or [])
    return spec
