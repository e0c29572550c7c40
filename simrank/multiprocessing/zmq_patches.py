"""Patches of pyzmq for ranks: their sockets have a model in place of connections.

The real socket is there, too, and is never connected: it has the options, checks them, and knows
whether it is closed.
"""

from __future__ import annotations

import functools
import sys
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from simrank.engine import NamedWait, limits
from simrank.engine.collector import is_looking
from simrank.errors import UnsupportedError
from simrank.isolation import finalizers
from simrank.isolation.locks import catch_up
from simrank.multiprocessing.zmq_sockets import PS_PER_MS, ModelSocket, wait_for, zmq_error
from simrank.ranks.current import rank_program, running_task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import ModuleType

    from simrank.engine import Task
    from simrank.ranks.current import Program

    Patches = list[tuple[Any, str, Any]]

_models: dict[int, ModelSocket] = {}  # By the address of the real socket.
# Options that act on messages, and that libzmq does not tell.
_ACTING = ("CONFLATE", "REQ_RELAXED", "ROUTER_MANDATORY", "XPUB_NODROP", "XPUB_VERBOSE")
_REFUSED = (
    "HELLO_MSG", "IMMEDIATE", "ONLY_FIRST_SUBSCRIBE", "PROBE_ROUTER", "REQ_CORRELATE", "ROUTER_RAW",
    "XPUB_MANUAL", "XPUB_MANUAL_LAST_VALUE", "XPUB_VERBOSER",
)  # fmt: skip


def _model_of(socket: Any) -> ModelSocket | None:  # noqa: ANN401 - a socket
    return _models.get(socket.underlying or 0) if _models else None


def of_socket(module: ModuleType) -> Patches:
    """Return patches of zmq's sockets."""
    kind: Any = vars(module)["Socket"]
    functions: dict[str, Callable[..., Any]] = {
        "bind": _bind, "connect": _connect, "unbind": _unbind, "disconnect": _disconnect,
        "send": _send, "recv": _recv, "recv_into": _recv_into, "monitor": _refuse_monitor,
        "set": _set(kind.set), "setsockopt": _set(kind.set),
        "get": _get(kind.get), "getsockopt": _get(kind.get),
    }  # fmt: skip
    return [
        (kind, "__init__", _init(kind.__init__, kind.get)),
        (kind, "close", _close(kind.close)),
        *((kind, name, _modelled(getattr(kind, name), call)) for name, call in functions.items()),
    ]


def _modelled(original: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """Call a function with the model of a socket that has one."""

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the original's
        model = _model_of(self)
        if model is None:
            return original(self, *args, **kwargs)
        return function(self, model, *args, **kwargs)

    return call


def _zmq() -> Any:  # noqa: ANN401 - a module without types here
    return sys.modules["zmq"]


def _init(original: Callable[..., None], get: Callable[..., Any]) -> Callable[..., None]:
    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - a socket
        original(self, *args, **kwargs)
        program = rank_program()
        if program is None or running_task() is None or self._shadow:
            return
        itself = weakref.ref(self)

        def ask(name: str) -> Any:  # noqa: ANN401 - an option's value
            return get(itself(), getattr(_zmq(), name))

        kind = _zmq().SocketType(get(self, _zmq().TYPE)).name
        try:
            _models[self.underlying] = ModelSocket(program, kind, id(self.context), ask)
        except UnsupportedError:
            self.close()  # Its context would wait for it.
            raise
        _contexts_of(program).append(self.context)

    return init


def _contexts_of(program: Program) -> list[Any]:
    """Return the contexts that a rank has used; they end with it, as those of a process do."""
    contexts: list[Any] | None = program.local.get("zmq contexts")
    if contexts is None:
        contexts = program.local["zmq contexts"] = []
        finalizers.at_end(program, functools.partial(_end_all, contexts))
    return contexts


def _end_all(contexts: list[Any]) -> None:
    for context in contexts:
        for model in _open_of(context):
            if model.is_closed:  # A process ends without waiting for a peer.
                model.give_up(only_early=True)
        context._warn_destroy_close = False  # noqa: SLF001 - no program's fault
        context.destroy()
    contexts.clear()


def _close(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def close(self: Any, linger: int | None = None) -> None:  # noqa: ANN401 - a socket
        model = _models.pop(self.underlying, None) if _models and not self.closed else None
        if model is not None:
            model.close(model.option("LINGER") if linger is None else linger)
            if model.pipes:
                _lingering().append(model)
        original(self, linger)

    return close


def _bind(self: Any, model: ModelSocket, addr: str | bytes) -> Any:  # noqa: ANN401 - pyzmq's
    with _naming(addr):
        model.bind(_text(addr))
    return self._bind_cm(addr)


def _connect(self: Any, model: ModelSocket, addr: str | bytes) -> Any:  # noqa: ANN401 - pyzmq's
    with _naming(addr):
        model.connect(_text(addr))
    return self._connect_cm(addr)


def _unbind(self: object, model: ModelSocket, addr: str | bytes) -> None:
    del self
    model.unbind(_text(addr))


def _disconnect(self: object, model: ModelSocket, addr: str | bytes) -> None:
    del self
    model.disconnect(_text(addr))


@contextmanager
def _naming(addr: str | bytes) -> Iterator[None]:
    try:
        yield
    except _zmq().ZMQError as error:
        error.strerror += f" (addr={addr!r})"
        raise


def _text(addr: str | bytes) -> str:
    return addr.decode() if isinstance(addr, bytes) else addr


def _send(
    self: object,
    model: ModelSocket,
    data: Any,  # noqa: ANN401 - bytes, a frame or a buffer
    flags: int = 0,
    copy: bool = True,
    track: bool = False,
    **kwargs: object,
) -> Any:  # noqa: ANN401 - a tracker or None
    del self
    zmq = _zmq()
    if any(value is not None for value in kwargs.values()):
        raise UnsupportedError(f"zmq: send({', '.join(kwargs)}=...) of a rank is not supported")
    if isinstance(data, str):
        raise TypeError("unicode not allowed, use send_string")
    frame = data.bytes if isinstance(data, zmq.Frame) else bytes(memoryview(data))
    model.send(frame, waits=not flags & zmq.NOBLOCK, has_more=bool(flags & zmq.SNDMORE))
    return zmq.MessageTracker() if track and not copy else None


def _recv(
    self: object, model: ModelSocket, flags: int = 0, copy: bool = True, track: bool = False
) -> Any:  # noqa: ANN401 - bytes or a frame
    del self
    zmq = _zmq()
    data = model.recv(waits=not flags & zmq.NOBLOCK)
    if copy:
        return data
    frame = zmq.Frame(data, track=track)
    frame.more = bool(model.rest)
    return frame


def _recv_into(
    self: object,
    model: ModelSocket,
    buffer: Any,  # noqa: ANN401 - a buffer
    /,
    *,
    nbytes: int = 0,
    flags: int = 0,
) -> int:
    del self
    view = memoryview(buffer).cast("B")
    data = model.recv(waits=not flags & _zmq().NOBLOCK)
    size = min(len(data), nbytes or len(view), len(view))
    view[:size] = data[:size]
    return len(data)


def _refuse_monitor(self: object, model: ModelSocket, *args: object, **kwargs: object) -> None:
    del self, args, kwargs
    raise UnsupportedError(f"zmq: monitor of {model.text()} of a rank is not supported")


def _set(original: Callable[..., None]) -> Callable[..., None]:
    """Set an option of the real socket, which checks it, and of the model."""

    def set_option(self: object, model: ModelSocket, option: int, optval: Any) -> None:  # noqa: ANN401
        zmq = _zmq()
        names = {getattr(zmq, name, None): name for name in (*_ACTING, *_REFUSED)}
        if names.get(option) in _REFUSED and optval:
            raise UnsupportedError(f"zmq.{names[option]} of a rank's socket is not supported")
        original(self, option, optval)
        if option == zmq.SUBSCRIBE:
            model.subscribe(optval)
        elif option == zmq.UNSUBSCRIBE:
            model.unsubscribe(optval)
        elif option in names:
            model.options[names[option]] = optval

    return set_option


def _get(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return an option: of the model what changes with messages, else the real socket's."""

    def get_option(self: object, model: ModelSocket, option: int) -> Any:  # noqa: ANN401 - its value
        zmq = _zmq()
        if option == zmq.RCVMORE:
            return int(bool(model.rest))
        if option == zmq.EVENTS:
            return _events(model)
        if option == zmq.LAST_ENDPOINT:
            return model.last_address.encode()
        return original(self, option)

    return get_option


def _events(model: ModelSocket) -> int:
    zmq = _zmq()
    return (zmq.POLLIN if model.can_receive else 0) | (zmq.POLLOUT if model.can_send else 0)


# ---- polls ----


def of_poll(module: ModuleType) -> Patches:
    """Return patches of zmq's polls."""
    original = vars(module)["zmq_poll"]

    @functools.wraps(original)
    def poll(sockets: Sequence[tuple[Any, int]], timeout: int = -1) -> list[tuple[Any, int]]:
        task = running_task()
        models = [None if isinstance(each, int) else _modelled_or_none(each) for each, _ in sockets]
        if task is None or not any(models):
            return original(sockets, timeout)  # type: ignore[no-any-return] # pyzmq's
        if not all(models):
            raise UnsupportedError(
                "zmq: a poll of a rank's sockets and of files together is not supported\n"
                "  to fix: poll the sockets by themselves"
            )
        known = [model for model in models if model is not None]

        def ready() -> list[tuple[Any, int]]:
            for model in known:
                if model.is_ended:
                    raise zmq_error("ETERM")
            found = [
                (each, _events(model) & flags)
                for (each, flags), model in zip(sockets, known, strict=True)
            ]
            return [(each, events) for each, events in found if events]

        catch_up(task)
        last_ps = None if timeout < 0 else task.engine.now_ps + timeout * PS_PER_MS
        wait_for(task, "a poll of", known, lambda: bool(ready()), last_ps)
        events = ready()
        if not events and timeout == 0:
            limits.poll(task.engine, f"poll of {known[0].text()}", rounds=limits.SLEEP_ROUNDS)
            events = ready()
        return events

    return [(module, "zmq_poll", poll)]


def _modelled_or_none(socket: Any) -> ModelSocket | None:  # noqa: ANN401 - anything to poll
    return _model_of(socket) if hasattr(socket, "underlying") else None


# ---- contexts ----


def of_context(module: ModuleType) -> Patches:
    """Return patches of zmq's contexts: each rank has its own instance, and its end is a wait."""
    kind: Any = vars(module)["Context"]
    original_instance, original_term = kind.instance.__func__, kind.term

    @functools.wraps(original_instance)
    def instance(cls: Any, io_threads: int = 1) -> Any:  # noqa: ANN401 - a context
        program = rank_program()
        if program is None:
            return original_instance(cls, io_threads)
        own: dict[Any, Any] = program.local.setdefault("zmq instances", {})
        if cls not in own or own[cls].closed:
            own[cls] = cls(io_threads=io_threads)
            _contexts_of(program).append(own[cls])
        return own[cls]

    @functools.wraps(original_term)
    def term(self: Any) -> None:  # noqa: ANN401 - a context
        task = running_task()
        if task is not None:
            for model in _open_of(self):
                model.end()
            while (left := _open_of(self)) and not is_looking():
                wait = NamedWait(f"zmq.Context.term(): open: {left[0].text()}")
                left[0].on_change.append(functools.partial(_finish, task, wait))
                task.engine.wait(wait)
        original_term(self)

    return [(kind, "instance", classmethod(instance)), (kind, "term", term)]


def _open_of(context: object) -> list[ModelSocket]:
    """Return the sockets of a context that are open, or have something to send yet."""
    lingering = [model for model in _lingering() if model.pipes]
    return [model for model in (*_models.values(), *lingering) if model.context == id(context)]


def _lingering() -> list[ModelSocket]:
    """Return the closed sockets of the running rank that had something to send."""
    program = rank_program()
    closed: list[ModelSocket] = []
    return closed if program is None else program.local.setdefault("closed zmq sockets", closed)


def _finish(task: Task, wait: NamedWait) -> None:
    if not wait.complete:
        wait.finish(task.engine)


# ---- proxies, and asyncio ----


def of_package(module: ModuleType) -> Patches:
    """Return patches of zmq's proxies."""
    return [(module, "proxy", _proxy(module.proxy))]


def _proxy(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def proxy(frontend: Any, backend: Any, capture: Any = None) -> Any:  # noqa: ANN401 - sockets
        if _model_of(frontend) is None:
            return original(frontend, backend, capture)
        zmq = _zmq()
        poller = zmq.Poller()
        poller.register(frontend, zmq.POLLIN)
        poller.register(backend, zmq.POLLIN)
        while True:
            for socket, _ in poller.poll():
                message = socket.recv_multipart()
                (backend if socket is frontend else frontend).send_multipart(message)
                if capture is not None:
                    capture.send_multipart(message)

    return proxy


def of_asyncio(module: ModuleType) -> Patches:
    """Return patches of zmq.asyncio: a change of a socket calls its handler in the loop."""
    kind: Any = vars(module)["Socket"]

    def watch(self: Any, model: ModelSocket, io_loop: Any = None) -> None:  # noqa: ANN401 - a loop
        loop = self._get_loop() if io_loop is None else io_loop

        def changed() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._handle_events, 0, 0)

        model.on_change[:] = [changed]

    def forget(self: object, model: ModelSocket) -> None:
        del self
        model.on_change.clear()

    return [
        (kind, "_init_io_state", _modelled(kind._init_io_state, watch)),  # noqa: SLF001 - its loop
        (kind, "_clear_io_state", _modelled(kind._clear_io_state, forget)),  # noqa: SLF001 - its loop
    ]
