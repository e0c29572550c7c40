"""Small jobs whose records the tests read."""

import simrank
import simrank.distributed as dist
from simrank.diagnose import diagnose, read_records
from simrank.distributed.flight_recorder import PREFIX, FlightRecorder
from simrank.errors import SimrankError


def records_of(folder, program, num_ranks=4):
    """Run a program to its failure or its end; return the records of its ranks."""

    def main(rank, ctx):
        ctx.cuda.set_device(rank)
        dist.init_process_group("nccl")
        program(rank, ctx)

    recorder = FlightRecorder(str(folder / PREFIX))
    try:
        with simrank.Context.for_ranks(
            num_ranks, flight_recorder=recorder, on_failure="continue"
        ) as ctx:
            ctx.multiprocessing.spawn(main, args=(ctx,), nprocs=num_ranks)
    except SimrankError:
        pass
    recorder.write()
    return read_records([folder])


def said(folder, program, num_ranks=4, *, replay=False):
    """Return the diagnosis of a program's records."""
    return diagnose(records_of(folder, program, num_ranks), replay=replay)
