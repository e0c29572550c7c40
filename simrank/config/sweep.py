"""The YAML of a program's benchmark: every combination of its parameters is one row.

```yaml
program: benches.tp_mlp.mlp        # a function(ctx, **parameters) that returns what is timed
clusters: [hgx_h100, hgx_b200]
num_ranks: tp_size                 # a number, or the parameter that says it
parameters: {tp_size: [1, 2, 4, 8], hidden: [4096, 8192]}
```
"""

from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator

from simrank.config.bench import Iterations
from simrank.config.cluster import ClusterConfig
from simrank.config.load import cluster_from_source
from simrank.config.model import Model, validate
from simrank.config.quantity import Flag, Seed, Text, reject
from simrank.config.yaml_source import KeyPath, Source, read_yaml
from simrank.errors import ConfigError


def _lists(value: object) -> dict[str, tuple[Any, ...]]:
    """Validate parameters: for each a value, or a list of them."""
    if not isinstance(value, Mapping) or not value:
        raise reject("a mapping from parameter to a value or a list of values")
    items_by_name = {}
    for name, given in value.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise reject("the name of a parameter of the function", sub=(name,))
        items = tuple(given) if isinstance(given, list | tuple) else (given,)
        if not items:
            raise reject("at least one value", sub=(name,))
        items_by_name[name] = items
    return items_by_name


class _Keys(Model):
    """The keys as they are written; see `SweepConfig`."""

    program: Text
    cluster: object = None
    clusters: object = None
    num_ranks: object = None
    parameters: Annotated[Mapping[str, tuple[Any, ...]], BeforeValidator(_lists)]
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


def is_sweep(path: str | Path) -> bool:
    """Whether a file is a program's benchmark: it names a program."""
    target = Path(path)
    if target.suffix not in (".yaml", ".yml") or not target.is_file():
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
    assert isinstance(source.data, Mapping)
    given = [key for key in ("cluster", "clusters") if key in source.data]
    if len(given) != 1:
        got = "both" if given else "nothing"
        raise ConfigError(source.problem((*given[1:],), "either cluster or clusters", got))
    listed = source.data[given[0]]
    key_paths: list[KeyPath] = [(given[0],)]
    if isinstance(listed, list):
        key_paths = [(given[0], index) for index in range(len(listed))]
    clusters = [cluster_from_source(source, key_path) for key_path in key_paths]
    return SweepConfig.model_construct(
        program=keys.program,
        clusters=tuple(clusters),
        num_ranks=_num_ranks(source, keys),
        parameters=keys.parameters,
        iterations=keys.iterations,
        data=keys.data,
        seed=keys.seed,
        folder=None if source.path is None else source.path.absolute().parent,
        source=source,
    )


def _num_ranks(source: Source, keys: _Keys) -> int | str | None:
    value = keys.num_ranks
    if value is None:
        return None
    if isinstance(value, str) and value in keys.parameters:
        return value
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    expected = f"a whole number from 1, or one of {', '.join(keys.parameters)}"
    got = source.describe(("num_ranks",), value)
    raise ConfigError(source.problem(("num_ranks",), expected, got))
