"""Sockets that a rank binds: the port is one of its simulated host's.

Helpers that look for a free port, and never serve on it, touch nothing real: they find the same
numbers in every run. A socket that goes on to listen, connect or send is bound for real then, at
the same number where the machine has it free.
"""

from __future__ import annotations

import _socket as socket  # The module that programs know may not be loaded.
import functools
import weakref
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from simrank.isolation import blocking_calls
from simrank.ranks.current import rank_program, running_task
from simrank.ranks.ports import node_of, ports_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from simrank.isolation.blocking_calls import Patches
    from simrank.ranks.ports import Holder

_KINDS = {socket.SOCK_STREAM: "tcp", socket.SOCK_DGRAM: "udp"}
_FAMILIES = (socket.AF_INET, socket.AF_INET6)
_ANY = {socket.AF_INET: "0.0.0.0", socket.AF_INET6: "::"}


class _Bound:
    """A socket that a rank has bound.

    Attributes:
        address: As given, with the simulated number.
        asked: The number as given; 0: any.
        holder: The port's.
        release: Gives the port back, once.
    """

    def __init__(self, address: tuple[Any, ...], asked: int, holder: Holder, release: Any) -> None:  # noqa: ANN401 - a finalizer
        self.address = address
        self.asked = asked
        self.holder = holder
        self.release = release


_waiting: WeakKeyDictionary[Any, _Bound] = WeakKeyDictionary()  # Not bound for real.
_bound: WeakKeyDictionary[Any, _Bound] = WeakKeyDictionary()


def of_socket(module: ModuleType) -> Patches:
    """Return patches that take simulated ports, and bound what a socket waits."""
    kind: Any = module.__dict__["socket"]
    own = [
        (kind, "bind", _bind(kind.bind)),
        (kind, "getsockname", _getsockname(kind.getsockname)),
        (kind, "close", _close(kind.close)),
    ]
    names = ("listen", "connect", "connect_ex", "sendto", "recvfrom", "recvfrom_into", "detach")
    first: dict[str, Any] = {name: getattr(kind, name) for name in names}
    bounded = blocking_calls.of_socket(module)
    first |= {name: patch for _, name, patch in bounded if name in names}
    bind = kind.bind
    realised = [(kind, name, _realised(first[name], bind)) for name in names]
    return [*[each for each in bounded if each[1] not in names], *own, *realised]


@functools.lru_cache(maxsize=32)
def _bind(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def bind(self: Any, address: Any) -> None:  # noqa: ANN401 - a socket; its own
        program = rank_program()
        kind = _KINDS.get(self.type)
        if program is None or running_task() is None or self.family not in _FAMILIES or not kind:
            original(self, address)
            return
        host, asked, *rest = address
        ports, node = ports_of(program), node_of(program)
        flags = (socket.SO_REUSEADDR, getattr(socket, "SO_REUSEPORT", socket.SO_REUSEADDR))
        shares = any(self.getsockopt(socket.SOL_SOCKET, flag) for flag in flags)
        port, holder = ports.take(program, asked, "a socket", kind=kind, shares=shares)
        holder.listens = False
        release = weakref.finalize(self, ports.release, node, port, holder, kind)
        shown = (host or _ANY[self.family], port, *rest)
        _bound[self] = _waiting[self] = _Bound(shown, asked, holder, release)

    return bind


@functools.lru_cache(maxsize=32)
def _getsockname(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def getsockname(self: Any) -> Any:  # noqa: ANN401 - a socket; its own
        waiting = _waiting.get(self)
        if waiting is None:
            return original(self)
        return (*waiting.address, 0, 0)[: 4 if self.family == socket.AF_INET6 else 2]

    return getsockname


@functools.lru_cache(maxsize=32)
def _close(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def close(self: Any) -> None:  # noqa: ANN401 - a socket
        _waiting.pop(self, None)
        bound = _bound.pop(self, None)
        if bound is not None:
            bound.release()
        original(self)

    return close


@functools.lru_cache(maxsize=256)
def _realised(original: Callable[..., Any], bind: Callable[..., None]) -> Callable[..., Any]:
    """Bind a socket for real before it does what needs that."""

    @functools.wraps(original)
    def use(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - a socket; its own
        waiting = _waiting.pop(self, None)
        if waiting is not None:
            try:
                bind(self, waiting.address)
            except OSError:
                if waiting.asked != 0:  # The number matters: another process has it.
                    raise
                bind(self, (waiting.address[0], 0, *waiting.address[2:]))
        if original.__name__ == "listen" and self in _bound:
            _bound[self].holder.listens = True
        return original(self, *args, **kwargs)

    return use
