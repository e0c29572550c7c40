"""Ports of simulated hosts and their holders; a port in use is an error.

A host is a node of the cluster. Stores take ports, and so do sockets that a rank binds. Port 0 is
the next one that is free; a port is free again once its socket is closed or its rank has ended.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from simrank.engine import user_site

if TYPE_CHECKING:
    from simrank.engine import CallSite, Task, TaskGroup
    from simrank.ranks.current import Program

FIRST_MASTER_PORT = 29500  # torchrun's default
# Source: the dynamic ports of IANA (RFC 6335, section 6).
_FIRST_EPHEMERAL, _LAST_PORT = 49152, 65535


class Holder:
    """The holder of a port.

    Attributes:
        task: The rank.
        what: What holds it: a store, a socket.
        site: The line that took it.
        shares: Whether another holder that shares may have it too.
        listens: Whether it answers, so that it is not shared.
        served: The table of a store, for connecting ranks: it is there until the last rank
            of the spawn has ended, as the first one would wait for the others at their meeting, or
            until the rank has let it go.
    """

    def __init__(self, task: Task, what: str, site: CallSite | None, *, shares: bool) -> None:
        self.task = task
        self.what = what
        self.site = site
        self.shares = shares
        self.listens = not shares
        self.served: Any = None

    @property
    def is_over(self) -> bool:
        """Whether all ranks that could use it have ended."""
        group = self.task.group
        if self.served is None or group is None or self.task not in group.tasks:
            return self.task.finished
        return all(task.finished for task in group.tasks)

    def __str__(self) -> str:
        """Return the rank and the source line."""
        where = "" if self.site is None else f" at {self.site.line()}"
        return f"{self.what} of rank {self.task.rank}{where}"


class Ports:
    """The ports of all hosts of one Context.

    Attributes:
        local: What those that serve at ports keep beside them.
    """

    def __init__(self) -> None:
        self.local: dict[str, Any] = {}
        self._holders: dict[tuple[int, str, int], list[Holder]] = {}
        self._next = _FIRST_EPHEMERAL
        self._masters: WeakKeyDictionary[TaskGroup, int] = WeakKeyDictionary()

    def take(
        self, program: Program, port: int, what: str, *, kind: str = "tcp", shares: bool = False
    ) -> tuple[int, Holder]:
        """Take a port of a rank's host, and return its number and its holder.

        Args:
            program: The rank.
            port: The number; 0: any that is free.
            what: What takes it, for messages.
            kind: "tcp" or "udp", which have ports of their own.
            shares: Whether it may be held with others that share.

        Raises:
            OSError: `EADDRINUSE`: the port is taken; the note names its owner.
        """
        task, node = program.task, node_of(program)
        assert task is not None, "it runs"
        assert program.rank is not None, "only ranks take ports"
        if port == 0:
            port = self._free(node, kind)
        elif program.context.faults is not None and program.context.faults.has_port(
            program.rank, port
        ):
            raise in_use(port, "a program outside of the simulation, by an injected fault")
        holders = self.holders(node, port, kind)
        for holder in holders:
            if not (shares and holder.shares) or holder.listens:
                raise in_use(port, str(holder))
        own = Holder(task, what, user_site(), shares=shares)
        holders.append(own)
        return port, own

    def holders(self, node: int, port: int, kind: str = "tcp") -> list[Holder]:
        """Return the holder of a port; a port of an ended rank is free."""
        held = self._holders.setdefault((node, kind, port), [])
        held[:] = [holder for holder in held if not holder.is_over]
        return held

    def release(self, node: int, port: int, holder: Holder, kind: str = "tcp") -> None:
        """Give a port back."""
        held = self.holders(node, port, kind)
        if holder in held:
            held.remove(holder)

    def _free(self, node: int, kind: str) -> int:
        """Return a free port number that was not given lately."""
        for _ in range(_FIRST_EPHEMERAL, _LAST_PORT + 1):
            port = self._next
            self._next = port + 1 if port < _LAST_PORT else _FIRST_EPHEMERAL
            if not self.holders(node, port, kind):
                return port
        raise OSError(errno.EADDRINUSE, "Address already in use")

    def master_port(self, group: TaskGroup) -> int:
        """Return MASTER_PORT as torchrun would set it: one port for each running spawn."""
        if group not in self._masters:
            for other in [g for g in self._masters if all(task.finished for task in g.tasks)]:
                del self._masters[other]
            port = FIRST_MASTER_PORT
            while port in self._masters.values():
                port += 1
            self._masters[group] = port
        return self._masters[group]


def ports_of(program: Program) -> Ports:
    """Return the ports of the hosts of a program's Context, made at first use."""
    while program.parent is not None:
        program = program.parent
    ports: Ports | None = program.local.get("ports")
    if ports is None:
        ports = program.local["ports"] = Ports()
    return ports


def node_of(program: Program) -> int:
    """Return the host of a rank."""
    return (program.started_rank or 0) // program.context.cluster.devices_per_node


def in_use(port: int, holder: str) -> OSError:
    """Return the system's error of a port in use, with a note that names the holder."""
    error = OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
    error.add_note(f"simrank: port {port} is held by {holder}")
    return error
