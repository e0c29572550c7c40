"""The problem of an algorithm: one collective, its ranks and its sizes."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
)
GATHERED = ("gather", "scatter")  # Of lists on the root; no benchmark is made of them.
ROOTED = ("broadcast", "reduce", *GATHERED)
REDUCING = ("all_reduce", "reduce_scatter", "reduce")


@dataclass(frozen=True, slots=True)
class Problem:
    """One collective call as an algorithm sees it.

    Shapes: (n = world_size, m = count; elements on each rank)
        all_reduce, broadcast, reduce: input [m], output [m]
        all_gather (all_gather_into_tensor): input [m], output [n * m]
        reduce_scatter (reduce_scatter_tensor): input [n * m], output [m]
        all_to_all (all_to_all_single): input [n * m], output [n * m]; m goes to each peer
        gather: input [m], output [n * m] on the root; scatter: the other way round

    Attributes:
        collective: One of `COLLECTIVES` or `GATHERED`.
        world_size: Number of ranks.
        count: Elements, with the meaning above (the `count` of NCCL's call). With `splits`, 0.
        root: Root rank of those in `ROOTED`, 0 for the others.
        splits: Uneven sizes in elements. all_gather: input of each rank. reduce_scatter: output
            of each rank. all_to_all: row-major [n, n], row = sender, column = receiver.
        itemsize: Bytes of an element; algorithms choose pipeline chunks by it.
        node_size: Ranks per node, if each node has an equal run of consecutive ranks; 0 if not, or
            not known. Algorithms place their lanes by it.
        is_mesh: Whether every two ranks of a node have a link of their own.
    """

    collective: str
    world_size: int
    count: int
    root: int = 0
    splits: tuple[int, ...] | None = None
    itemsize: int = 4
    node_size: int = 0
    is_mesh: bool = False

    def __post_init__(self) -> None:
        """Check the fields against each other.

        Raises:
            ValueError: The collective is unknown, a number is out of range, or `splits` has the
                wrong length for the collective.
        """
        if self.collective not in (*COLLECTIVES, *GATHERED):
            choices = ", ".join((*COLLECTIVES, *GATHERED))
            raise ValueError(f"unknown collective {self.collective!r}; choices: {choices}")
        if self.world_size < 1 or self.count < 0 or self.itemsize < 1:
            raise ValueError(
                f"{self.collective}: world_size and itemsize must be at least 1 and count at least "
                f"0, got {self.world_size}, {self.itemsize} and {self.count}"
            )
        if not 0 <= self.root < self.world_size:
            raise ValueError(f"root {self.root} is not one of {self.world_size} ranks")
        if self.node_size < 0 or (self.node_size and self.world_size % self.node_size):
            raise ValueError(
                f"{self.world_size} ranks cannot stand on nodes of {self.node_size} each"
            )
        if self.splits is not None:
            self._check_splits(self.splits)

    @property
    def num_nodes(self) -> int:
        """Nodes that the ranks stand on; 1 if that is not known."""
        return self.world_size // self.node_size if self.node_size else 1

    def _check_splits(self, splits: tuple[int, ...]) -> None:
        lengths = {
            "all_gather": self.world_size,
            "reduce_scatter": self.world_size,
            "all_to_all": self.world_size**2,
        }
        if self.collective not in lengths:
            raise ValueError(f"{self.collective} takes no splits; choices: {', '.join(lengths)}")
        if len(splits) != lengths[self.collective] or min(splits) < 0:
            raise ValueError(
                f"{self.collective} on {self.world_size} ranks needs {lengths[self.collective]} "
                f"splits of at least 0 elements, got {len(splits)} with minimum {min(splits)}"
            )


def node_size_of(nodes: npt.NDArray[np.int64]) -> int:
    """Return the ranks per node if each node has an equal run of consecutive ranks, else 0.

    Shapes: (n ranks)
        nodes: [n] node of each rank
    """
    changes = np.flatnonzero(nodes[1:] != nodes[:-1])
    size = int(changes[0]) + 1 if len(changes) else len(nodes)
    if len(nodes) % size:
        return 0
    runs = nodes.reshape(-1, size)
    is_equal = bool((runs == runs[:, :1]).all()) and len(np.unique(runs[:, 0])) == len(runs)
    return size if is_equal else 0


def runs_of(nodes: npt.NDArray[np.int64]) -> list[int]:
    """Return the lengths of the runs of ranks that share a node, in the order of ranks.

    Shapes: (n ranks)
        nodes: [n] node of each rank
    """
    ends = np.flatnonzero(np.append(nodes[1:] != nodes[:-1], True)) + 1
    runs: list[int] = np.diff(ends, prepend=0).tolist()
    return runs
