"""Ring algorithms: every rank sends to the next one, once per round.

One ring in the order of ranks crosses between nodes on a single rail. So on several nodes there are
by default as many channels as a node has ranks, each with a share of every chunk and a ring of its
own; and on a node without a switch as many as there are rings that share no link.

Source:
    Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
    JPDC 69(2), 2009; order of hops as in NCCL 2.30 `src/device/all_reduce.h`, `all_gather.h` and
    `reduce_scatter.h`; one ring per rail as NCCL's graph search finds them (`src/graph/search.cc`).
"""

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from simrank.collectives.algorithms.layout import gathered_tables, local_only
from simrank.collectives.algorithms.ring_rounds import (
    MAX_CHANNELS,
    Rings,
    gather_rounds,
    num_rails,
    reduce_rounds,
    ring_orders,
)
from simrank.collectives.problem import Problem
from simrank.collectives.schedule import (
    Buffer,
    ChunkTable,
    Op,
    Round,
    Schedule,
    Tables,
)

OPTIONS = {"num_channels": 0, "num_loops": 1}
MAX_LOOPS = 65_536  # assumed: more would be steps of a few bytes, and rounds for hours


def _rings(problem: Problem, num_channels: int) -> Rings:
    """Return a ring through all ranks per channel; block r of each channel belongs to rank r."""
    orders = ring_orders(problem, num_channels)[:, None, :]
    return Rings(orders, orders * num_channels + np.arange(num_channels)[:, None, None])


def _complete(problem: Problem, options: Mapping[str, int]) -> dict[str, int]:
    """Return the options with the number of channels: by default one for each rail."""
    for name, most in (("num_channels", MAX_CHANNELS), ("num_loops", MAX_LOOPS)):
        if options[name] > most:
            raise ValueError(f"{name} may be at most {most}, got {options[name]}")
    num_channels = options["num_channels"] or min(num_rails(problem), MAX_CHANNELS)
    return {**options, "num_channels": num_channels}


def all_reduce(problem: Problem, options: Mapping[str, int]) -> Schedule:
    """Reduce-scatter around the ring, then all-gather around it.

    Rounds: 2 * (n - 1), each moving one chunk of count / n elements per rank.
    Buffers: those of `reduce_rounds`; OUTPUT is written once per chunk.
    """
    options = _complete(problem, options)
    num_ranks, num_channels = problem.world_size, options["num_channels"]
    table = ChunkTable.split(problem.count, num_ranks * num_channels)
    if num_ranks == 1:
        return local_only(problem, "ring", options, table=table)
    rings = _rings(problem, num_channels)

    def rounds() -> Iterator[Round]:
        yield from reduce_rounds(rings, first_shift=0, last=lambda chunk: chunk)
        yield from gather_rounds(rings, first_shift=-1)

    tables = Tables(table, table, rings.slot_table(table))
    return _schedule(problem, options, rings, rounds=rounds, tables=tables)


def reduce_scatter(problem: Problem, options: Mapping[str, int]) -> Schedule:
    """Send partial sums around the ring; the sum of chunk r ends on rank r.

    Rounds: n - 1, each moving one chunk of count elements per rank.
    Buffers: as in `all_reduce`; OUTPUT is written in the last round.
    """
    options = _complete(problem, options)
    num_ranks, num_channels = problem.world_size, options["num_channels"]
    whole, own = gathered_tables(problem, num_channels)
    if num_ranks == 1:
        return local_only(problem, "ring", options, table=whole)
    rings = _rings(problem, num_channels)

    def rounds() -> Iterator[Round]:
        yield from reduce_rounds(rings, first_shift=1, last=lambda _: rings.channel)

    tables = Tables(whole, own, rings.slot_table(whole))
    return _schedule(problem, options, rings, rounds=rounds, tables=tables)


def all_gather(problem: Problem, options: Mapping[str, int]) -> Schedule:
    """Pass each rank's input around the ring.

    Rounds: n - 1, each moving one chunk of count elements per rank; own chunks are copied locally.
    Buffers: no SCRATCH.
    """
    options = _complete(problem, options)
    num_ranks, num_channels = problem.world_size, options["num_channels"]
    whole, own = gathered_tables(problem, num_channels)
    if num_ranks == 1:
        return local_only(problem, "ring", options, table=whole)
    rings = _rings(problem, num_channels)

    def rounds() -> Iterator[Round]:
        yield _own_chunks(rings)
        yield from gather_rounds(rings, first_shift=0)

    return _schedule(problem, options, rings, rounds=rounds, tables=Tables(own, whole))


def _own_chunks(rings: Rings) -> Round:
    """Return the local round that puts each rank's input into its position in OUTPUT."""
    return Round(
        src=rings.src,
        dst=rings.src,
        src_buffer=rings.const(Buffer.INPUT),
        src_chunk=rings.channel,
        dst_buffer=rings.const(Buffer.OUTPUT),
        dst_chunk=rings.chunks(0),
        count=rings.const(1),
        op=rings.const(Op.COPY),
        channel=rings.channel,
    )


def _schedule(
    problem: Problem,
    options: Mapping[str, int],
    rings: Rings,
    *,
    rounds: Callable[[], Iterator[Round]],
    tables: Tables,
) -> Schedule:
    passes = 2 if problem.collective == "all_reduce" else 1
    phase = rings.phase(passes)
    return Schedule(
        collective=problem.collective,
        algorithm="ring",
        world_size=problem.world_size,
        rounds=rounds,
        num_rounds=phase.num_rounds,
        input=tables.input,
        output=tables.output,
        scratch=tables.scratch,
        num_loops=options["num_loops"],
        num_channels=options["num_channels"],
        phases=(phase,) if problem.splits is None else (),
        options=options,
    )
