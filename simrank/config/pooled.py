"""Pooled constants of NCCL's laws as files; start with `load_pooled`.

```yaml
source: 82 series of 25 sites
noises: {one_node: [0.05, 0.05, 0.06, 0.08], several_nodes: [0.05, 0.3, 0.25, 0.12],
         host_launches: [0.4, 0.3, 0.1, 0.05]}
effects:
  platform hopper: {sites: 9, factors: {launch_us: 0.6, hop_intra: 0.8}}
```

Beside it a file of the same name and `.npy` holds the lower triangle of the covariance of the
logarithms of all factors, row by row, in the order of the effects and of their factors.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator

from simrank.config.calibration import CONSTANTS, Positive
from simrank.config.folders import configs_dir
from simrank.config.model import Model, validate
from simrank.config.quantity import Text, choice_text, reject
from simrank.config.yaml_source import read_yaml


def _known(value: object) -> object:
    """Validate the names of constants."""
    for key in value if isinstance(value, Mapping) else ():
        if key not in CONSTANTS:
            raise reject(choice_text(CONSTANTS), got=f"the unknown key `{key}`", sub=(str(key),))
    return value


class EffectConfig(Model):
    """One effect on the constants.

    Attributes:
        sites: Sites at which it was seen.
        factors: What it multiplies each constant by.
    """

    sites: int
    factors: Annotated[Mapping[str, Positive], BeforeValidator(_known)]


class NoisesConfig(Model):
    """Residual noise: standard deviations of a time's logarithm.

    Attributes:
        one_node: By class of size, of groups on one node.
        several_nodes: Likewise of groups on several.
        host_launches: Likewise where a host thread launches on several devices (nccl-tests -g).
    """

    one_node: tuple[Positive, ...]
    several_nodes: tuple[Positive, ...]
    host_launches: tuple[Positive, ...]


class PooledConfig(Model):
    """Pooled constants.

    Attributes:
        source: What they were fitted to.
        noises: What else is uncertain.
        effects: The effects by name, for example `platform hopper`.
    """

    source: Text
    noises: NoisesConfig
    effects: Mapping[str, EffectConfig]


def pooled_path() -> Path:
    """Return the file of the pooled constants that simrank ships."""
    return configs_dir() / "pooled" / "collectives.yaml"


def load_pooled(path: Path) -> PooledConfig:
    """Read pooled constants, without their covariance.

    Raises:
        ConfigError: The file is missing, or something in it is wrong.
    """
    return validate(PooledConfig, read_yaml(path))


def pooled_tables() -> list[str]:
    """Return the files of measured times that only the pooled constants are fitted to."""
    return [str(path) for path in sorted((configs_dir() / "pooled" / "tables").glob("*.csv"))]
