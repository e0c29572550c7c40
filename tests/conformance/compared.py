"""The programs of this folder as functions of rank and world size, for `simrank compare`."""

import logging
import os
import sys
import warnings

import torch
import torch.distributed as dist

sys.path.append(os.path.dirname(__file__))
import c10d
import torch_programs


def _quiet(program):
    def run(rank, world):
        logging.getLogger("torch").setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return program(rank, world)

    return run


@_quiet
def c10d_table(rank, world):
    """Run the table of c10d, but for what one of the sides refuses."""
    table = [case for case in c10d.cases() if not _is_refused(case)]
    return c10d.run_table(dist, lambda v, d: torch.tensor(v, dtype=getattr(torch, d)), table)


def _is_refused(case):
    """Whether gloo lacks it (its recorder keeps such calls, too), or simulated torch does."""
    lacks = case.dtype == "int16" or case.reduce_op in ("AVG", "BAND", "BOR", "BXOR")
    lacks = lacks or case.op in ("wrong_arguments", "coalesced_mixed")
    return lacks or case.shape == "transposed"


NAMES = [name.replace(" ", "_") for name in torch_programs.PROGRAMS]
for _name, _program in torch_programs.PROGRAMS.items():
    globals()[_name.replace(" ", "_")] = _quiet(_program)
