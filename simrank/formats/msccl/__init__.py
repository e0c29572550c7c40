"""Algorithms of MSCCL: its XML read, proved, run and written.

Reading order: `program` (the data), `read`, `order` (which rank waits for which), `races`, `lower`
(to the rounds of a schedule), `algorithm` (into the table of algorithms), `write`.
"""

from simrank.formats.msccl.algorithm import (
    SUFFIX,
    forced_algorithms,
    program_problem,
    prove_program,
    register_msccl,
    schedule_of,
)
from simrank.formats.msccl.read import parse_msccl, read_msccl
from simrank.formats.msccl.write import program_of, xml_of

__all__ = [
    "SUFFIX",
    "forced_algorithms",
    "parse_msccl",
    "program_of",
    "program_problem",
    "prove_program",
    "read_msccl",
    "register_msccl",
    "schedule_of",
    "xml_of",
]
