"""The measured machine of a published table: a YAML file beside it; see `load_machine`.

```yaml
cluster: h200_ib      # a built-in cluster, or a file
nodes: 2
num_ranks: 16         # left out where the table has several
nics_used: 1          # of each node; left out: those beside the ranks
library: NCCL 2.28.7
gpus_per_thread: 8    # as nccl-tests -g 8: one host thread launches on eight GPUs; left out: 1
algorithms: [nvls]    # NCCL_ALGO; left out: NCCL chose
protocols: [Simple]   # NCCL_PROTO; left out: NCCL chose
cuda_graph: true      # nccl-tests -G: calls were launched as a graph; left out: they were not
in_place: true        # left out: out of place
site: azure           # tables of one site are left out together
mode: back_to_back    # or torch, xla: loops of a framework, with its overhead around each call
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from simrank.config.model import Model, validate
from simrank.config.names import NCCL_ALGORITHMS, NCCL_PROTOCOLS
from simrank.config.quantity import Count, Flag, Text, one_of, words_of
from simrank.config.yaml_source import read_yaml

if TYPE_CHECKING:
    from pathlib import Path

    from simrank.config.yaml_source import Source

MODES = ("back_to_back", "torch", "xla")


class MachineConfig(Model):
    """The machine and the method of a measured table.

    Attributes:
        cluster: The cluster that describes the machine.
        nodes: Nodes that took part.
        num_ranks: Ranks that took part; None: several numbers of them, each in its rows.
        nics_used: Network cards of a node that carried data; None: those beside the ranks.
        library: NCCL or RCCL with its version, as far as it was published.
        gpus_per_thread: GPUs that a host thread launches on, one after the other.
        mode: How calls followed each other: as nccl-tests', or in loops of a framework.
        site: Where it was measured; tables of one site are left out together.
        algorithms: What was forced (NCCL_ALGO); None: NCCL chose.
        protocols: Likewise (NCCL_PROTO).
        cuda_graph: Whether calls were launched as a CUDA graph, so that host launches cost nothing.
        in_place: Whether the results were written over the operands.
        remark: What else a reader of the errors has to know.
    """

    cluster: Text
    nodes: Count
    num_ranks: Count | None = None
    nics_used: Count | None = None
    gpus_per_thread: Count = 1
    library: Text
    mode: Annotated[str, one_of(MODES, {})]
    site: Text | None = None
    algorithms: Annotated[tuple[str, ...] | None, words_of(NCCL_ALGORITHMS, {}, example="ring")] = (
        None
    )
    protocols: Annotated[tuple[str, ...] | None, words_of(NCCL_PROTOCOLS, {}, example="Simple")] = (
        None
    )
    cuda_graph: Flag = False
    in_place: Flag = False
    remark: Text | None = None


def load_machine(table: Path) -> MachineConfig | None:
    """Read the machine file beside a table.

    Args:
        table: The CSV file of the table.

    Returns:
        None where no file stands beside it.

    Raises:
        ConfigError: With every problem of the file, in file order.
    """
    beside = table.with_suffix(".yaml")
    return machine_from_source(read_yaml(beside)) if beside.is_file() else None


def machine_from_source(source: Source) -> MachineConfig:
    """Return the machine of a table, from the data of its file.

    Raises:
        ConfigError: With every problem of the file, in file order.
    """
    return validate(MachineConfig, source)
