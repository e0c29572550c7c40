"""The table of algorithms: pure functions from a `Problem` to a `Schedule`.

To add one, write a file beside `ring.py` and add a line to `_TABLE`; code above this package (a
collective that is a kernel, say) calls `register_algorithm` instead.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import TypeAlias

from simrank.collectives.algorithms import (
    direct,
    gathered,
    halving_doubling,
    hierarchical,
    nvls,
    pairwise,
    ring,
    rooted,
    tree,
)
from simrank.collectives.problem import COLLECTIVES, GATHERED, Problem
from simrank.collectives.schedule import Schedule

Builder: TypeAlias = Callable[[Problem, Mapping[str, int]], Schedule]


def _any_world_size(_: int) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Algorithm:
    """A line of the table.

    Attributes:
        collective: What it computes.
        name: How users ask for it.
        build: Pure function from a problem and complete options to a schedule.
        options: Option names and their defaults; 0 means that the algorithm chooses.
        admits: Whether it can run on a number of ranks.
        admits_text: Which numbers of ranks it admits, for messages.
        max_auto_ranks: `auto` does not try it on more ranks; None is no limit.
        needs_library: Whether only the rules of a library choose it, which know what hardware and
            protocol it needs; `auto` without them does not.
        needs_equal_nodes: Whether it can only be run where the ranks of each node are together, and
            equally many.
    """

    collective: str
    name: str
    build: Builder
    options: Mapping[str, int]
    admits: Callable[[int], bool] = _any_world_size
    admits_text: str = "any number of ranks"
    max_auto_ranks: int | None = None
    needs_library: bool = False
    needs_equal_nodes: bool = False


_MAX_NAMED_RUNS = 4
_TABLE: dict[tuple[str, str], Algorithm] = {}


def register_algorithm(algorithm: Algorithm) -> None:
    """Add a line to the table.

    Raises:
        ValueError: The collective is unknown, or it already has an algorithm of that name.
    """
    key = (algorithm.collective, algorithm.name)
    known = (*COLLECTIVES, *GATHERED)
    if algorithm.collective not in known:
        raise ValueError(
            f"unknown collective {algorithm.collective!r}; choices: {', '.join(known)}"
        )
    if key in _TABLE:
        raise ValueError(f"{algorithm.collective} already has an algorithm {algorithm.name!r}")
    _TABLE[key] = algorithm


def algorithms_for(collective: str, world_size: int) -> list[str]:
    """Return the names of the algorithms that can run, in the order of the table."""
    return [
        line.name
        for line in _TABLE.values()
        if line.collective == collective and line.admits(world_size)
    ]


def collectives_with(name: str) -> list[str]:
    """Return the collectives that have an algorithm of a name."""
    return [line.collective for line in _TABLE.values() if line.name == name]


def auto_algorithms(collective: str, world_size: int, *, library: bool = False) -> list[str]:
    """Return the candidates of `auto`: algorithms that are fast to estimate.

    Args:
        collective: What is computed.
        world_size: Number of ranks.
        library: Whether the rules of a library choose.
    """
    able = [_TABLE[collective, name] for name in algorithms_for(collective, world_size)]
    if not library:
        able = [line for line in able if not line.needs_library]
    chosen = [
        line.name
        for line in able
        if line.max_auto_ranks is None or world_size <= line.max_auto_ranks
    ]
    return chosen or [line.name for line in able]


def build(
    problem: Problem, algorithm: str, *, options: Mapping[str, int] | None = None
) -> Schedule:
    """Return the schedule with which an algorithm solves a problem.

    Equal arguments give the same object: a schedule is frozen, and players keep what they worked
    out about one under its identity.

    Args:
        problem: The collective and its sizes.
        algorithm: A name that `algorithms_for` returns.
        options: Options that differ from the algorithm's defaults.

    Raises:
        ValueError: The algorithm or an option is unknown, or the world size is not admitted.
    """
    return _build(problem, algorithm, tuple(sorted((options or {}).items())))


def check_nodes(collective: str, algorithm: str, ranks_of_nodes: Sequence[int]) -> None:
    """Raise ValueError where an algorithm cannot run on ranks that stand on uneven nodes.

    Args:
        collective: What is computed.
        algorithm: Its name.
        ranks_of_nodes: Lengths of the runs of ranks that share a node, in the order of ranks.
    """
    line = _TABLE.get((collective, algorithm))
    if line is None or not line.needs_equal_nodes:
        return
    others = [
        name
        for name in algorithms_for(collective, sum(ranks_of_nodes))
        if not _TABLE[collective, name].needs_equal_nodes
    ]
    runs = ", ".join(map(str, ranks_of_nodes[:_MAX_NAMED_RUNS]))
    more = ", ..." if len(ranks_of_nodes) > _MAX_NAMED_RUNS else ""
    raise ValueError(
        f"{collective} {algorithm} runs on equally many ranks of each node, next to each other, "
        f"not on runs of {runs}{more} ranks per node; choices: auto, {', '.join(others)}"
    )


@lru_cache(maxsize=256)
def _build(problem: Problem, algorithm: str, options: tuple[tuple[str, int], ...]) -> Schedule:
    line = _TABLE.get((problem.collective, algorithm))
    if line is None:
        names = [name for collective, name in _TABLE if collective == problem.collective]
        raise ValueError(
            f"{problem.collective} has no algorithm {algorithm!r}; choices: {', '.join(names)}"
        )
    if not line.admits(problem.world_size):
        raise ValueError(
            f"{problem.collective} {algorithm} runs on {line.admits_text}, "
            f"not on {problem.world_size}"
        )
    return line.build(problem, _complete_options(line, dict(options)))


def _complete_options(line: Algorithm, given: dict[str, int]) -> Mapping[str, int]:
    """Return the options with defaults filled in, or raise ValueError naming the choices."""
    for name, value in given.items():
        if name not in line.options:
            choices = ", ".join(line.options) or "none"
            raise ValueError(
                f"{line.collective} {line.name} has no option {name!r}; choices: {choices}"
            )
        lowest = min(1, line.options[name])
        if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
            raise ValueError(
                f"{line.collective} {line.name}: option {name} must be an integer of at least "
                f"{lowest}, got {value!r}"
            )
    return MappingProxyType({**line.options, **given})


# Assumed: one NVLink domain; direct kernels do not exist beyond it.
MAX_AUTO_DIRECT_RANKS = 72
# Assumed: a chain of more ranks takes too many rounds to estimate, and is never the best.
MAX_AUTO_CHAIN_RANKS = 2048

_POWERS: tuple[Callable[[int], bool], str] = (halving_doubling.is_power_of_two, "powers of two")
_FEW: tuple[Callable[[int], bool], str, int] = (
    direct.admits,
    f"at most {direct.MAX_WORLD_SIZE} ranks",
    MAX_AUTO_DIRECT_RANKS,
)
for _line in (
    Algorithm("all_reduce", "ring", ring.all_reduce, ring.OPTIONS),
    Algorithm("all_reduce", "one_shot", direct.one_shot_all_reduce, direct.OPTIONS, *_FEW),
    Algorithm("all_reduce", "two_shot", direct.two_shot_all_reduce, direct.OPTIONS, *_FEW),
    Algorithm(
        "all_reduce", "halving_doubling", halving_doubling.all_reduce, halving_doubling.OPTIONS
    ),
    Algorithm("all_reduce", "tree", tree.all_reduce, tree.OPTIONS, needs_library=True),
    Algorithm("all_reduce", "nvls", nvls.all_reduce, nvls.OPTIONS, needs_library=True),
    Algorithm("all_reduce", "nvls_tree", nvls.tree_all_reduce, nvls.OPTIONS, needs_library=True),
    Algorithm(
        "all_reduce",
        "hierarchical",
        hierarchical.all_reduce,
        hierarchical.OPTIONS,
        needs_library=True,
        needs_equal_nodes=True,
    ),
    Algorithm("all_gather", "ring", ring.all_gather, ring.OPTIONS),
    Algorithm("all_gather", "direct", direct.all_gather, direct.OPTIONS, *_FEW),
    Algorithm(
        "all_gather",
        "halving_doubling",
        halving_doubling.all_gather,
        halving_doubling.OPTIONS,
        *_POWERS,
    ),
    Algorithm("reduce_scatter", "ring", ring.reduce_scatter, ring.OPTIONS),
    Algorithm("reduce_scatter", "direct", direct.reduce_scatter, direct.OPTIONS, *_FEW),
    Algorithm(
        "reduce_scatter",
        "halving_doubling",
        halving_doubling.reduce_scatter,
        halving_doubling.OPTIONS,
        *_POWERS,
    ),
    Algorithm("all_to_all", "pairwise", pairwise.all_to_all, pairwise.OPTIONS),
    Algorithm("all_to_all", "direct", pairwise.direct_all_to_all, pairwise.OPTIONS, *_FEW),
    Algorithm(
        "all_to_all",
        "hierarchical",
        hierarchical.all_to_all,
        hierarchical.OPTIONS,
        needs_library=True,
        needs_equal_nodes=True,
    ),
    Algorithm("broadcast", "binomial", rooted.binomial_broadcast, rooted.TREE_OPTIONS),
    Algorithm(
        "broadcast",
        "chain",
        rooted.chain_broadcast,
        rooted.CHAIN_OPTIONS,
        max_auto_ranks=MAX_AUTO_CHAIN_RANKS,
    ),
    Algorithm("reduce", "binomial", rooted.binomial_reduce, rooted.TREE_OPTIONS),
    Algorithm(
        "reduce",
        "chain",
        rooted.chain_reduce,
        rooted.CHAIN_OPTIONS,
        max_auto_ranks=MAX_AUTO_CHAIN_RANKS,
    ),
    Algorithm("gather", "direct", gathered.direct_gather, gathered.OPTIONS),
    Algorithm("scatter", "direct", gathered.direct_scatter, gathered.OPTIONS),
):
    register_algorithm(_line)
