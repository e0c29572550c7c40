"""What an algorithm has to solve: one collective, its ranks and its sizes."""

from dataclasses import dataclass

COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
)
ROOTED = ("broadcast", "reduce")
REDUCING = ("all_reduce", "reduce_scatter", "reduce")


@dataclass(frozen=True, slots=True)
class Problem:
    """One collective call as an algorithm sees it.

    Shapes: (n = world_size, m = count; elements on each rank)
        all_reduce, broadcast, reduce: input [m], output [m]
        all_gather (all_gather_into_tensor): input [m], output [n * m]
        reduce_scatter (reduce_scatter_tensor): input [n * m], output [m]
        all_to_all (all_to_all_single): input [n * m], output [n * m]; m goes to each peer

    Attributes:
        collective: One of `COLLECTIVES`.
        world_size: Number of ranks.
        count: Elements, with the meaning above (the `count` of NCCL's call). With `splits`, 0.
        root: Root rank of broadcast and reduce, 0 for the others.
        splits: Uneven sizes in elements. all_gather: input of each rank. reduce_scatter: output
            of each rank. all_to_all: row-major [n, n], row = sender, column = receiver.
        itemsize: Bytes of an element; algorithms choose pipeline chunks by it.
    """

    collective: str
    world_size: int
    count: int
    root: int = 0
    splits: tuple[int, ...] | None = None
    itemsize: int = 4

    def __post_init__(self) -> None:
        """Check the fields against each other.

        Raises:
            ValueError: The collective is unknown, a number is out of range, or `splits` has the
                wrong length for the collective.
        """
        if self.collective not in COLLECTIVES:
            choices = ", ".join(COLLECTIVES)
            raise ValueError(f"unknown collective {self.collective!r}; choices: {choices}")
        if self.world_size < 1 or self.count < 0 or self.itemsize < 1:
            raise ValueError(
                f"{self.collective}: world_size and itemsize must be at least 1 and count at least "
                f"0, got {self.world_size}, {self.itemsize} and {self.count}"
            )
        if not 0 <= self.root < self.world_size:
            raise ValueError(f"root {self.root} is not one of {self.world_size} ranks")
        if self.splits is not None:
            self._check_splits(self.splits)

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
