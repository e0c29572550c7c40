"""The programs of this folder as functions of rank and world size, for `simrank compare`."""

import logging
import os
import sys
import warnings

import torch
import torch.distributed as dist

sys.path.append(os.path.dirname(__file__))
import c10d  # noqa: E402 - beside this file
import torch_programs  # noqa: E402 - beside this file


def c10d_table(rank, world):
    """Run the whole table of c10d."""
    return c10d.run_table(dist, lambda v, d: torch.tensor(v, dtype=getattr(torch, d)), c10d.cases())


def _quiet(program):
    def run(rank, world):
        logging.getLogger("torch").setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return program(rank, world)

    return run


NAMES = [name.replace(" ", "_") for name in torch_programs.PROGRAMS]
for _name, _program in torch_programs.PROGRAMS.items():
    globals()[_name.replace(" ", "_")] = _quiet(_program)
