"""torch's stores without sockets: tables of a spawn, whose waits are the engine's."""

from __future__ import annotations

import sys
import types
from collections import deque
from datetime import timedelta
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from simrank.distributed.membership import cannot_listen, world_of
from simrank.engine import NamedWait, limits
from simrank.engine.choices import LONG_PS, Act
from simrank.errors import WaitTimeoutError
from simrank.isolation.locks import note_read, note_write
from simrank.ranks import require_program, require_rank
from simrank.ranks.current import numbered, rank_program
from simrank.ranks.ports import node_of, ports_of
from simrank.units import PS_PER_S, PS_PER_US

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

    from simrank.engine import Task, TaskGroup
    from simrank.ranks import Program
    from simrank.ranks.ports import Holder

_KEY, _WAITS, _WORKERS = "torch's stores", "waits for a server", "all workers"
_TIMEOUT = timedelta(seconds=300)  # torch's default
STORES = "stores"  # The kind of shared objects, for reports.
_POLL_PS = 10_000_000_000  # Source: torch 2.13 TCPStore.cpp, waitForWorkers sleeps for 10 ms.
LONG_S = LONG_PS / PS_PER_S
_DEFAULTS = (_TIMEOUT, timedelta(minutes=10), timedelta(minutes=30))  # The groups' too.


class StoreTable:
    """The contents of a store, shared by the ranks that opened it.

    Args:
        name: For reports.
        num_awaited: How many ends are to be opened before the server goes.

    Attributes:
        name: As given.
        values: By key.
        queues: By name.
        num_joined: Ends that ranks have opened, the server's among them.
    """

    def __init__(self, name: str, num_awaited: int = 0) -> None:
        self.name = name
        self.values: dict[str, bytes] = {}
        self.queues: dict[str, deque[bytes]] = {}
        self.num_joined = 0
        self._waits: dict[str, NamedWait] = {}
        self._num_awaited = num_awaited
        self._opened: list[tuple[Program, dist.Store]] = []
        self._groups: set[TaskGroup] = set()

    def keep(self, store: dist.Store) -> None:
        """Keep a rank's connection alive: C++ holds it without its Python methods."""
        program = require_rank("a store")
        self._opened.append((program, store))
        if program.task is not None and program.task.group is not None:
            self._groups.add(program.task.group)

    def reach(
        self,
        key: str | None,
        act: Act = Act.UPDATE,
        is_ready: Callable[[], bool] | None = None,
        is_vain: Callable[[], bool] | None = None,
        given: Hashable = None,
        asked: Hashable = None,
    ) -> None:
        """Delay a rank's call on a key, or choose its turn; a call again and again polls.

        Args:
            key: None: all of them.
            act: What the call does.
            is_ready: Whether a call that waits can go on.
            is_vain: Whether a try to change it fails now.
            given: What the caller gives; None: only the key.
            asked: As in `Choices.reach`.
        """
        program = require_program("a store")
        task = program.engine.current_task()  # Of a thread its own.
        if task is not None and program.engine.sees_shared:
            ours, state = (id(self), key), None if key is None else partial(self._shown, key)
            limits.reach(
                task, STORES, ours, self, act=act, is_ready=is_ready, is_vain=is_vain,
                state=state, given=(self.name, key, given), asked=asked,
            )  # fmt: skip
        note_read(None, (id(self), key), f"key '{key}' of {self.name} that no rank changes")

    def _shown(self, key: str) -> Hashable:
        """Return the visible state of a key."""
        return self.name, key, self.values.get(key), tuple(self.queues.get(key, ()))

    @property
    def is_over(self) -> bool:
        """Return whether all ranks that opened the store, or inherited it, have ended."""
        return all(task.finished for group in self._groups for task in group.tasks)

    def is_abandoned_by(self, server: Task) -> bool:
        """Return whether the serving rank has dropped its connections."""
        if len(self._opened) < self._num_awaited:
            return False
        # Of an end that only this list holds: its tuple's reference, the loop's, the argument's.
        return all(
            sys.getrefcount(store) <= 3 for program, store in self._opened if program.task is server
        )

    def put(self, key: str, value: bytes) -> None:
        """Set a value, and wake ranks that wait for the key."""
        self.values[key] = value
        note_write()
        self.changed(key)

    def changed(self, key: str) -> None:
        """Wake ranks that wait for a key."""
        wait = self._waits.pop(key, None)
        if wait is not None:
            wait.finish(require_program("a store").engine)

    def wait_for(self, key: str, limit: timedelta | None, is_there: Callable[[], bool]) -> bool:
        """Wait for a key; return False at the time limit."""
        engine = require_program("a store").engine
        deadline_ps = None
        if limit is not None:
            deadline_ps = engine.now_ps + round(limit.total_seconds() * 1e6) * PS_PER_US
        while not is_there():
            wait = self._waits.get(key)
            if wait is None:
                what = key if key == _WORKERS else f"key '{key}'"
                wait = self._waits[key] = NamedWait(f"{what} of {self.name}")
            left_ps = None if deadline_ps is None else max(deadline_ps - engine.now_ps, 0)
            try:
                engine.wait(wait, timeout_ps=left_ps)
            except WaitTimeoutError:
                return False
        return True


class SimulatedStore(dist.Store):
    """One rank's connection to a store."""

    def __init__(self, table: StoreTable, timeout: timedelta = _TIMEOUT) -> None:
        super().__init__()
        self._table, self._timeout = table, timeout
        table.keep(self)

    @property
    def made_as(self) -> str:
        """The name of the store, the same in all runs."""
        return self._table.name

    def set(self, key: str, value: str | bytes) -> None:
        """Set a value."""
        self._table.reach(key, Act.WRITE, given=_bytes(value))
        self._table.put(key, _bytes(value))

    def get(self, key: str) -> bytes:
        """Wait for a key, and return its value.

        Raises:
            DistStoreError: The time limit passed.
        """
        self.wait([key])
        return self._table.values[key]

    def add(self, key: str, amount: int) -> int:
        """Add to a counter, and return it."""
        self._table.reach(key, Act.UPDATE if amount else Act.READ, given=amount)
        total = int(self._table.values.get(key, b"0")) + amount
        if amount or key not in self._table.values:
            self._table.put(key, str(total).encode())
        return total

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Set a value if it equals `expected`; return the value."""
        expected, desired = _bytes(expected), _bytes(desired)

        def is_vain() -> bool:
            present = self._table.values.get(key)
            return bool(expected) if present is None else present != expected

        self._table.reach(key, is_vain=is_vain, given=(expected, desired))
        present = self._table.values.get(key)
        if present is None and expected:
            return expected
        if present is not None and present != expected:
            return present
        self._table.put(key, desired)
        return desired

    def append(self, key: str, value: str | bytes) -> None:
        """Append to a value."""
        self._table.reach(key, Act.WRITE, given=("append", _bytes(value)))
        self._table.put(key, self._table.values.get(key, b"") + _bytes(value))

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether all keys are set, or are queues that have entries."""
        for key in keys:
            self._table.reach(key, Act.READ)
        table = self._table
        return all(key in table.values or table.queues.get(key) for key in keys)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys are set.

        Raises:
            DistStoreError: The time limit passed.
        """
        for _ in self._each(keys, self._timeout if timeout is None else timeout):
            pass

    def _each(self, keys: Sequence[str], limit: timedelta) -> Iterator[bytes]:
        """Yield the values of keys, each once it is set."""
        values, found = self._table.values, list[bytes]()
        is_short = limit.total_seconds() < LONG_S
        for key in keys:
            is_there = partial(values.__contains__, key)
            act = Act.READ if is_short else Act.AWAIT
            ready, asked = None if is_short else is_there, (key, *found)
            self._table.reach(key, act, ready, asked=asked)
            if not self._table.wait_for(key, limit, is_there):
                milliseconds = round(limit.total_seconds() * 1000)
                raise dist.DistStoreError(
                    f"wait timeout after {milliseconds}ms, keys: {', '.join(f'/{k}' for k in keys)}"
                )
            found.append(values[key])
            yield values[key]

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Return several values."""
        return list(self._each(keys, self._timeout))

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        """Set several values."""
        for number, (key, value) in enumerate(zip(keys, values, strict=True)):
            self._table.reach(key, Act.WRITE, given=_bytes(value), asked=number)
            self._table.put(key, _bytes(value))

    def delete_key(self, key: str) -> bool:
        """Delete a key; return whether it was set."""
        self._table.reach(key, is_vain=lambda: key not in self._table.values, given="delete")
        return self._table.values.pop(key, None) is not None

    def _look_at_all(self) -> None:
        self._table.reach(None, Act.READ)
        # Groups have keys of their own in it, as many as they need by then.
        limits.pass_over(require_program("a store").engine, "which keys a store has")

    def num_keys(self) -> int:
        """Return the number of keys."""
        self._look_at_all()
        return len(self._table.values)

    getNumKeys = num_keys

    def list_keys(self) -> list[str]:
        """Return the keys."""
        self._look_at_all()
        return list(self._table.values)

    def has_extended_api(self) -> bool:
        """Return True: several values may be read and set at once."""
        return True

    hasExtendedApi = has_extended_api

    def set_timeout(self, timeout: timedelta) -> None:
        """Change the time limit of waits."""
        self._timeout = timeout

    @property
    def timeout(self) -> timedelta:
        """Return the time limit of waits."""
        return self._timeout

    def clone(self) -> SimulatedStore:
        """Return another connection to the same store."""
        return SimulatedStore(self._table, self._timeout)

    def queue_push(self, key: str, value: str | bytes) -> None:
        """Append to a queue."""
        self._table.reach(key, Act.WRITE, given=("push", _bytes(value)))
        self._table.queues.setdefault(key, deque()).append(_bytes(value))
        note_write()
        self._table.changed(key)

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        """Wait for the first entry of a queue, and remove it.

        Raises:
            DistQueueEmptyError: It is empty, and `block` is not set.
            DistStoreError: The time limit passed.
        """
        queue = self._table.queues.setdefault(key, deque())
        is_long = block and self._timeout.total_seconds() >= LONG_S
        is_ready = (lambda: bool(queue)) if is_long else None
        is_vain = None if block else (lambda: not queue)
        self._table.reach(key, Act.UPDATE, is_ready, is_vain, "pop")
        if not queue and not block:
            raise dist.QueueEmptyError("queue is empty")
        if not self._table.wait_for(key, self._timeout, lambda: bool(queue)):
            raise dist.DistStoreError(f"wait timeout, queue: {key}")
        return queue.popleft()

    def queue_len(self, key: str) -> int:
        """Return the length of a queue."""
        self._table.reach(key, Act.READ)
        return len(self._table.queues.get(key, ()))


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def _table(name: str) -> StoreTable:
    """Return the table of a name; a new one if all ranks that opened it have ended."""
    tables: dict[str, StoreTable] = ports_of(require_rank("a store")).local.setdefault(_KEY, {})
    if name not in tables or tables[name].is_over:
        tables[name] = StoreTable(name)
    return tables[name]


class TCPStore(SimulatedStore):
    """Replacement of `torch.distributed.TCPStore` on a port of a simulated host.

    The master takes the port. Other ranks wait for a server there: on their own node, else on the
    first node that has one, as every node calls the first one 127.0.0.1.
    """

    def __init__(
        self,
        host_name: str,
        port: int = 0,
        world_size: int | None = None,
        is_master: bool = False,
        timeout: timedelta = _TIMEOUT,
        wait_for_workers: bool = True,
        multi_tenant: bool = False,
        master_listen_fd: int | None = None,
        use_libuv: bool = True,
    ) -> None:
        program = require_rank("a store")
        folding = world_of(program).folding
        if is_master or (folding is not None and folding.running[0] == program.rank):
            is_bound = master_listen_fd is not None
            num_awaited = world_size or 0 if wait_for_workers else 0
            table = StoreTable(f"TCPStore {host_name}:{port}", num_awaited)
            port, table = _serve(program, port, table, is_shared=multi_tenant or is_bound)
        else:
            table = _connect(program, (host_name, port), timeout)
        super().__init__(table, timeout)
        self.host, self.port, self.libuvBackend = host_name, port, use_libuv
        table.num_joined += 1
        table.changed(_WORKERS)
        if is_master and wait_for_workers and world_size and not multi_tenant:
            self._wait_for_workers(world_size)  # Ranks meet in `init_process_group` otherwise.

    def _wait_for_workers(self, world_size: int) -> None:
        """Wait until all workers have opened the store, as the server does.

        Raises:
            DistStoreError: The time limit passed; torch's words.
        """
        table, limit = self._table, self._timeout
        chosen = None if limit in _DEFAULTS else limit  # As of a client.
        engine = require_program("a store").engine
        begin_ps = engine.now_ps
        is_first = table.num_joined >= world_size
        came = table.wait_for(_WORKERS, chosen, lambda: table.num_joined >= world_size)
        if came and not is_first:
            engine.wait(engine.timer(_POLL_PS - (engine.now_ps - begin_ps) % _POLL_PS))
        if not came:
            raise dist.DistStoreError(
                f"Timed out after {round(limit.total_seconds())} seconds waiting for clients. "
                f"{table.num_joined}/{world_size} clients joined."
            )


def _serve(
    program: Program, port: int, table: StoreTable, *, is_shared: bool
) -> tuple[int, StoreTable]:
    """Take a port, and return its number and its table.

    Args:
        program: The rank.
        port: The number; 0 is any that is free.
        table: What to serve, unless something is that is shared.
        is_shared: Whether the rank may have the port already: it serves there, or gives the socket.

    Raises:
        DistNetworkError: Another process has it.
    """
    ports, node = ports_of(program), node_of(program)
    for holder in list(ports.holders(node, port)):
        if holder.task is program.task and is_shared:
            holder.served = holder.served or table
            _opened(program, port)
            return port, holder.served
        if _is_over(holder):
            ports.release(node, port, holder)
    try:
        port, holder = ports.take(program, port, "a TCPStore")
    except OSError as error:
        made = cannot_listen(program, port, error)
        found = dist.DistNetworkError(str(made))
        for note in getattr(made, "__notes__", ()):
            found.add_note(note)
        raise found from None
    holder.served = table
    _opened(program, port)
    return port, table


def _is_over(holder: Holder) -> bool:
    """Return whether the rank has dropped the store that it served."""
    return holder.served is not None and holder.served.is_abandoned_by(holder.task)


def _connect(program: Program, address: tuple[str, int], limit: timedelta) -> StoreTable:
    """Wait for a server at a port, and return its table.

    Raises:
        DistNetworkError: The time limit passed.
    """
    host_name, port = address
    waits: StoreTable = ports_of(program).local.setdefault(_WAITS, StoreTable(f"host {host_name}"))
    chosen = None if limit in _DEFAULTS else limit  # A wait that cannot end is reported at once.
    if not waits.wait_for(_key(port), chosen, lambda: _server(program, port) is not None):
        milliseconds = round(limit.total_seconds() * 1000)
        raise dist.DistNetworkError(
            f"The client socket has timed out after {milliseconds}ms while trying to connect to "
            f"({host_name}, {port})."
        )
    table = _server(program, port)
    assert table is not None, "waited for"
    return table


def _server(program: Program, port: int) -> StoreTable | None:
    """Return the table at a port of a rank's node, else of the first node that serves it.

    What a rank has let go is there for those of its own spawn alone, which may come a little late.
    """
    ports, own = ports_of(program), node_of(program)
    assert program.task is not None, "it runs"
    spawned = program.task.group
    num_nodes = program.context.cluster.num_nodes
    for node in (own, *range(num_nodes)):
        for holder in ports.holders(node, port):
            if holder.served is not None and (holder.task.group is spawned or not _is_over(holder)):
                table: StoreTable = holder.served
                return table
    return None


def _key(port: int) -> str:
    return f"a server at port {port}"


def _opened(program: Program, port: int) -> None:
    """Wake ranks that wait for a server."""
    waits: StoreTable | None = ports_of(program).local.get(_WAITS)
    if waits is not None:
        waits.changed(_key(port))


class FileStore(SimulatedStore):
    """Replacement of `torch.distributed.FileStore`: the path is a name."""

    def __init__(self, file_name: str, world_size: int = -1) -> None:
        del world_size
        super().__init__(_table(f"FileStore {file_name}"))
        self.path = file_name


class HashStore(SimulatedStore):
    """Replacement of `torch.distributed.HashStore`, private to the rank."""

    def __init__(self) -> None:
        super().__init__(StoreTable("HashStore"))
        self._made_as = numbered()

    @property
    def made_as(self) -> str:
        """The store of the rank's, the same in all runs."""
        return f"HashStore {self._made_as}"


class PrefixStore(dist.PrefixStore):
    """Replacement of `torch.distributed.PrefixStore`."""

    def __init__(self, prefix: str, store: dist.Store) -> None:
        super().__init__(prefix, store)
        self._store: Any = store
        self._prefix = f"{prefix}/"

    @property
    def made_as(self) -> str:
        """The prefix, and the name of the store under it."""
        return f"{self._prefix} of {getattr(self._store, 'made_as', '')}"

    # C++ reaches a Python store by the methods for which it has a trampoline, without these.

    def delete_key(self, key: str) -> bool:
        """Delete a key; return whether it was set."""
        return bool(self._store.delete_key(self._prefix + key))

    def set_timeout(self, timeout: timedelta) -> None:
        """Change the time limit of waits of the store under it."""
        self._store.set_timeout(timeout)

    def list_keys(self) -> list[str]:
        """Return the keys under the prefix, without it."""
        keys = (key for key in self._store.list_keys() if key.startswith(self._prefix))
        return [key.removeprefix(self._prefix) for key in keys]

    def queue_push(self, key: str, value: str | bytes) -> None:
        """Append to a queue."""
        self._store.queue_push(self._prefix + key, value)

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        """Wait for the first entry of a queue, and remove it."""
        return bytes(self._store.queue_pop(self._prefix + key, block))

    def queue_len(self, key: str) -> int:
        """Return the length of a queue."""
        return int(self._store.queue_len(self._prefix + key))


# ---- stores of torch's own, that ranks find where the main program has made them ----


def waiting_methods() -> list[tuple[Any, str, Any]]:
    """Return methods of torch's stores that wait in the engine if a rank calls them.

    In C++ they would block the thread, so that no rank could set the key. Injected delays make them
    late, and those that never wait.
    """
    kind: Any = dist.Store
    return [
        (kind, name, patch(getattr(kind, name), name))
        for patch, names in ((_waiting, _WAITING), (_late, _OTHERS))
        for name in names
    ]


_WAITING = ("wait", "get", "multi_get", "queue_pop")
_OTHERS = ("set", "add", "append", "compare_set", "check", "delete_key", "queue_push", "queue_len")
_READS = ("check", "queue_len")


def _late(original: Callable[..., Any], name: str) -> Callable[..., Any]:
    @wraps(original)
    def call(self: Any, key: Any, *args: Any, **kwargs: Any) -> Any:
        _reach(self, key, Act.READ if name in _READS else Act.UPDATE)
        return original(self, key, *args, **kwargs)

    return call


def _reach(store: Any, key: Any, act: Act, is_ready: Callable[[], bool] | None = None) -> None:
    """Delay a rank's call on a key of a store of torch's own, or choose its turn."""
    program = rank_program()
    task = None if program is None else program.engine.current_task()
    if task is not None and task.engine.sees_shared and type(store) in _NATIVE:
        limits.reach(task, STORES, (id(store), str(key)), store, act=act, is_ready=is_ready)


def _waiting(original: Callable[..., Any], name: str) -> Callable[..., Any]:
    @wraps(original)
    def call(self: Any, key: Any, *args: Any, **kwargs: Any) -> Any:
        is_of_rank = rank_program() is not None and type(self) in _NATIVE
        if is_of_rank and name == "queue_pop":
            blocks = kwargs.get("block", args[0] if args else True)
            has_any = partial(_has_any, self, key)
            _reach(self, key, Act.UPDATE, has_any if blocks else None)
            if blocks:
                _poll(self, key, has_any, self.timeout)
        elif is_of_rank:
            keys = [key] if name == "get" else key
            limits_given = (*args, *kwargs.values()) if name == "wait" else ()
            limit = next(iter(limits_given), self.timeout)
            for each in keys:
                _reach(self, each, Act.AWAIT, partial(_has, self, each))
            _poll(self, ", ".join(keys), lambda: all(_has(self, each) for each in keys), limit)
        return original(self, key, *args, **kwargs)

    return call


def _has(store: Any, key: str) -> bool:
    return bool(_check(store, [key]))


def _has_any(store: Any, key: str) -> bool:
    return bool(_queue_len(store, key) > 0)


_check, _queue_len = dist.Store.check, dist.Store.queue_len  # Before a Context replaces them.
_NATIVE = frozenset({dist.HashStore, dist.TCPStore, dist.FileStore, dist.PrefixStore})


def _poll(store: object, what: str, is_there: Callable[[], bool], limit: timedelta) -> None:
    """Poll in simulated time until a condition holds; raise torch's error at the time limit.

    Raises:
        DistStoreError: The limit has passed.
    """
    engine = require_rank("a store").engine
    deadline_ps = engine.now_ps + round(limit.total_seconds() * 1e6) * PS_PER_US
    while not is_there():
        if engine.now_ps >= deadline_ps:
            milliseconds = round(limit.total_seconds() * 1000)
            raise dist.DistStoreError(f"wait timeout after {milliseconds}ms, keys: /{what}")
        limits.poll(
            engine, f"a {type(store).__name__} for key '{what}'", rounds=limits.SLEEP_ROUNDS
        )


def dispatching(original: type, simulated: type) -> type:
    """Return a class that constructs simulated objects in ranks, the original's elsewhere.

    Classes that a rank derives from it are derived from the simulated one.
    """

    class Dispatching(type):
        def __new__(cls, name: str, bases: tuple[type, ...], names: dict[str, Any]) -> Any:
            if not bases:
                return super().__new__(cls, name, bases, names)
            here = original if rank_program() is None else simulated
            real = tuple(here if isinstance(each, Dispatching) else each for each in bases)
            return types.new_class(name, real, {}, lambda made: made.update(names))

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            return (original if rank_program() is None else simulated)(*args, **kwargs)

        def __getattr__(cls, name: str) -> Any:
            return getattr(original, name)

        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, original | simulated)

        def __subclasscheck__(cls, kind: type) -> bool:
            return issubclass(kind, original | simulated)

    return Dispatching(original.__name__, (), {"__doc__": original.__doc__})
