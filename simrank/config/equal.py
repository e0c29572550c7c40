"""The YAML of layouts that are compared with the single program; start with `load_layouts`.

```yaml
layouts:
  - {dp: 4}
  - {dp: 2, tp: 2}          # the last axis is that of neighbouring ranks
steps: 2
dtype: float64
device: cuda               # where the model and the batch lie; cpu: with gloo
ignore: [layers.0.attn.rope]                 # modules that are not compared
rename: {model.layers: layers}               # a rank's names of modules: the single program's
allow: {moe.router: "its bias is drawn again"}  # may differ, for this reason
```
"""

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator

from simrank.config.model import Model, validate
from simrank.config.quantity import Count, reject
from simrank.config.yaml_source import Source, read_yaml

DTYPES = ("float64", "float32", "bfloat16", "float16", "declared")
DEVICES = ("cuda", "cpu")
_MAX_RANKS = 1024  # Assumed: more do not fit one machine's memory.


def _layouts(value: object) -> tuple[dict[str, int], ...]:
    """Validate a list of layouts: sizes by axis."""
    if not isinstance(value, list | tuple) or not value:
        raise reject("a list of layouts such as {dp: 2, tp: 2}")
    for index, layout in enumerate(value):
        if not isinstance(layout, Mapping) or not layout:
            raise reject("sizes by axis such as {dp: 2, tp: 2}", sub=(index,))
        for axis, size in layout.items():
            if not isinstance(axis, str) or not axis.isidentifier():
                raise reject("the name of an axis", sub=(index, axis))
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise reject("a whole number from 1", sub=(index, axis))
        if prod(layout.values()) > _MAX_RANKS:
            raise reject(f"at most {_MAX_RANKS} ranks", sub=(index,))
    return tuple(dict(layout) for layout in value)


def _names(value: object) -> tuple[str, ...]:
    """Validate names of modules."""
    items = value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(item, str) and item for item in items):
        raise reject("the name of a module, or a list of them")
    return tuple(items)


def _by_name(value: object) -> dict[str, str]:
    """Validate a mapping from a module's name to a text."""
    if not isinstance(value, Mapping) or not all(
        isinstance(each, str) and each for pair in value.items() for each in pair
    ):
        raise reject("a mapping from the name of a module to a text")
    return dict(value)


def _dtype(value: object) -> str:
    """Validate the name of a floating type."""
    if value not in DTYPES:
        raise reject(f"one of {', '.join(DTYPES)}")
    return str(value)


def _device(value: object) -> str | None:
    """Validate the type of a device."""
    if value is not None and value not in DEVICES:
        raise reject(f"one of {', '.join(DEVICES)}")
    return None if value is None else str(value)


Names = Annotated[tuple[str, ...], BeforeValidator(_names)]


class EqualConfig(Model):
    """The layouts of a program, and how they are compared.

    Attributes:
        layouts: For each the sizes of its axes, outermost first.
        steps: Training steps; from the second on optimizer states and buffers show.
        dtype: What the programs compute in; declared: in float64, and then in their own types.
        device: Where their models and batches lie; None: on cuda, or on cpu if the single program
            has tensors there.
        ignore: Modules whose tensors are not compared.
        rename: Names of modules on ranks, and those of the single program.
        allow: Modules that may differ, with the reason.
    """

    layouts: Annotated[tuple[Mapping[str, int], ...], BeforeValidator(_layouts)]
    steps: Count = 2
    dtype: Annotated[str, BeforeValidator(_dtype)] = "float64"
    device: Annotated[str | None, BeforeValidator(_device)] = None
    ignore: Names = ()
    rename: Annotated[Mapping[str, str], BeforeValidator(_by_name)] = {}
    allow: Annotated[Mapping[str, str], BeforeValidator(_by_name)] = {}


def load_layouts(path: str | Path) -> EqualConfig:
    """Read and check a file of layouts.

    Raises:
        ConfigError: The file is wrong.
    """
    return validate(EqualConfig, read_yaml(path))


def layouts_of(data: Mapping[str, Any], where: str) -> EqualConfig:
    """Check layouts that a program or a test gives.

    Args:
        data: The keys of a file.
        where: Where they stand, for messages.

    Raises:
        ConfigError: They are wrong.
    """
    return validate(EqualConfig, Source(where, data))
