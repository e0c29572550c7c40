"""What is left for NCCL to choose from: by the reduction, and by NCCL's variables.

A communicator reads the variables of the process that makes it: here those of the rank whose call
is timed first. Source: NVIDIA/nccl v2.30.7, the user guide's environment variables.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from simrank.collectives.nccl.forced import parse_algorithms, parse_protocols
from simrank.collectives.nccl.level import ANY, NO_SWITCH, Tuning
from simrank.collectives.nccl.tuner import nvls_reduces

if TYPE_CHECKING:
    from simrank.config.tuner import TunerRow

ALGORITHMS, PROTOCOLS, TUNER_FILE = "NCCL_ALGO", "NCCL_PROTO", "NCCL_TUNER_CONFIG_FILE"
NCCL_VARIABLES = (ALGORITHMS, PROTOCOLS, TUNER_FILE)


class Wishes(NamedTuple):
    """Values of the variables that choose; None where one is not set.

    Attributes:
        algorithms: NCCL_ALGO.
        protocols: NCCL_PROTO.
        tuner_file: NCCL_TUNER_CONFIG_FILE.
    """

    algorithms: str | None
    protocols: str | None
    tuner_file: str | None

    @classmethod
    def of_environment(cls) -> Wishes:
        """Return those of the running rank, `NO_WISHES` if none is set; an empty value is none."""
        found = cls(*(os.environ.get(name) or None for name in NCCL_VARIABLES))
        return NO_WISHES if found == NO_WISHES else found


NO_WISHES = Wishes(None, None, None)


def tuning_of(
    collective: str, dtype: str, reduce_op: str | None, wishes: Wishes = NO_WISHES
) -> Tuning:
    """Return what NCCL may choose from for a call.

    Args:
        collective: For example all_reduce.
        dtype: torch's name of the dtype.
        reduce_op: How elements are combined: not every reduction fits into a switch. None: nothing
            is reduced.
        wishes: What the user asks for.

    Raises:
        ConfigError: A variable's value is none of NCCL's, or the tuner's file is wrong.
    """
    base = ANY if reduce_op is None or nvls_reduces(dtype, reduce_op) else NO_SWITCH
    if wishes == NO_WISHES:
        return base
    algorithms = base.algorithms
    named = wishes.algorithms and parse_algorithms(wishes.algorithms, collective)
    protocols = wishes.protocols and parse_protocols(wishes.protocols, collective)
    if named:
        algorithms = named if algorithms is None else named & algorithms
    rows = () if wishes.tuner_file is None else _tuner_rows(wishes.tuner_file)
    return Tuning(algorithms, protocols or None, rows)


@lru_cache(maxsize=8)
def _tuner_rows(path: str) -> tuple[TunerRow, ...]:
    from simrank.config.tuner import load_tuner  # noqa: PLC0415 - it is slow to import

    return load_tuner(path)
