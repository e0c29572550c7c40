"""The port at which the ranks of a program meet: no rank waits there, but nobody else may have it.

Rank 0 holds it from `init_process_group` until it destroys the group, or ends.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from urllib.parse import urlparse

from simrank.errors import DistNetworkError
from simrank.ranks.current import of_process
from simrank.ranks.ports import node_of, ports_of

if TYPE_CHECKING:
    from simrank.ranks import Program

_KEY = of_process("port of the rendezvous")


def take_port(program: Program, init_method: str | None) -> None:
    """Take the port of a rendezvous by `tcp://` or `env://`, on rank 0.

    Raises:
        DistNetworkError: Another program of this host has it, or a store or socket of this one.
    """
    if program.rank != 0:
        return
    port = port_of(init_method)
    if port is None:
        return
    try:
        _, holder = ports_of(program).take(program, port, "the rendezvous")
    except OSError as error:
        raise cannot_listen(program, port, error) from None
    program.local[_KEY] = (port, holder)


def port_of(init_method: str | None) -> int | None:
    """Return the port of a rendezvous; None where it has none, or any will do."""
    if init_method is None or init_method.startswith("env:"):
        return int(os.environ["MASTER_PORT"]) if "MASTER_PORT" in os.environ else None
    return urlparse(init_method).port or None


def give_port_back(program: Program) -> None:
    """Let others have the port of the rendezvous."""
    held = program.local.pop(_KEY, None)
    if held is not None:
        ports_of(program).release(node_of(program), *held)


def cannot_listen(program: Program, port: int, error: OSError) -> DistNetworkError:
    """Return torch's error of a port that is in use, with the note of who holds it."""
    made = DistNetworkError(program.engine.now_ps, port)
    for note in getattr(error, "__notes__", ()):
        made.add_note(note)
    return made
