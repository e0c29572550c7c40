"""State of a rank's process outside of its variables: what the ranks' isolation keeps apart.

All that one rank sets and others do not see is kept somewhere, to be swapped at its turns: settings
of torch, patches of modules and classes, loggers, filters of warnings. So it need not be looked for
in libraries.

It does not cover globals of libraries that all ranks share, nor of the interpreter (`sys.path`).
"""

from __future__ import annotations

import os
import random  # noqa: TID251 - its state is read, not drawn from
import sys
from typing import TYPE_CHECKING, Any

from simrank.isolation import diagnostics, exits, libraries, mock_patches, process_state
from simrank.ranks.current import rank_program
from simrank.timings.places import digest_of
from simrank.timings.values import Inspection

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simrank.ranks import Program


def state_of_process() -> tuple[bytes, bool]:
    """Return a hash of the running rank's process, and whether all of it could be looked into."""
    program, torch = rank_program(), sys.modules.get("torch")
    drawn = [hash(random.getstate())]
    # Of thousands of bytes at each call: Python's own hash of them is enough.
    if torch is not None:
        drawn.append(hash(torch.get_rng_state().numpy().tobytes()))
    if program is None:
        return digest_of(drawn), True
    of_numpy = program.local.get(process_state.NUMPY_KEY)
    if of_numpy is not None:
        drawn.append(hash(repr(of_numpy.get_state(legacy=False))))
    environment = program.local.get("environ")
    if environment is not None:
        drawn.append(hash(tuple(environment.items())))
    look = Inspection()
    return digest_of(drawn, [look.at(each) for each in _set_by(program)]), look.is_sure


def _set_by(program: Program) -> Iterator[Any]:
    """Yield what a rank has set, with the names of the places."""
    yield os.getcwd()
    yield from diagnostics.set_by(program)
    yield from exits.set_by(program)
    yield from process_state.handlers_of(program)
    if program.task is not None:
        yield from mock_patches.set_by(program.task)
    yield from libraries.set_by(program)
