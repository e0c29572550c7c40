"""Records of operations that the C++ library makes, and its callbacks to the simulator."""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import TYPE_CHECKING, Any, NamedTuple

from simrank.torch.cuda.library import keep, native, raise_kept

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_HEAD_WORDS = 8


class OperationFlag(IntFlag):
    """Kinds of operations, numbered as in `fallback.h`."""

    HOST_TO_DEVICE = 1
    DEVICE_TO_HOST = 2
    REPLAYED = 4
    BLOCKING = 8
    CAUSAL = 16
    CUDNN = 32
    TF32 = 64


class Operand(NamedTuple):
    """One tensor of an operation.

    Attributes:
        dtype: torch's number of it (`c10::ScalarType`).
        strides: In elements.
    """

    address: int
    dtype: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    is_written: bool


@dataclass(frozen=True, slots=True)
class DeviceOperation:
    """One operation on a device.

    Attributes:
        name: The operator's, without `aten::`, for example `add.Tensor`.
        rank: The number given to `RankState`.
        device: The index among the devices that the rank sees.
        outputs: Tensors that it made; those that it wrote in place are among the inputs.
    """

    name: str
    rank: int
    device: int
    stream: int
    flags: OperationFlag
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]


def start_recording() -> None:
    """Record every operation, or pass it to `Callbacks.on_op` if that is set."""
    native().simrank_record(1)


def start_recording_forms() -> None:
    """Record the form number of every operation: everything except addresses."""
    native().simrank_record(2)


# C++'s `Phase`: recomputation is what activation checkpoints do in backward.
PHASES = ("forward", "backward", "recomputation", "optimizer")


class Launch(NamedTuple):
    """One recorded launch, by its form.

    Attributes:
        form: Its number, for `form`.
        device: The index among the devices that the rank sees.
        stream: torch's number.
        phase: Of a training step.
    """

    form: int
    device: int
    stream: int
    phase: str


_WORDS = ctypes.POINTER(ctypes.c_int64)
_num_launched = ctypes.c_int64()  # One for all: each call of a collective asks.
_of_launched = ctypes.byref(_num_launched)


def drain_launches() -> list[Launch]:
    """Return and clear the recorded launches."""
    pointer = native().simrank_launched(_of_launched)
    if not (count := _num_launched.value):
        return []
    packed = ctypes.cast(pointer, _WORDS)[:count]
    native().simrank_forget_launched()
    return [
        Launch(word & 0x3FFFFFFF, word >> 32 & 0xFF, word >> 40, PHASES[word >> 30 & 3])
        for word in packed
    ]


def phase() -> str:
    """Return the phase of a training step in which the running rank is."""
    return PHASES[native().simrank_phase()]


def step(is_stepping: bool) -> None:
    """Note that the running rank enters or leaves an optimizer's step."""
    native().simrank_step(is_stepping)


def form(number: int) -> DeviceOperation:
    """Return the operation of a form, without rank, device, stream and addresses."""
    count = ctypes.c_int64()
    pointer = native().simrank_form(number, ctypes.byref(count))
    (operation,) = decode(pointer[: count.value])
    return operation


def watch_scopes(is_on: bool) -> None:
    """Turn `Callbacks.on_scope` on or off."""
    native().simrank_watch_scopes(is_on)


def stop_recording() -> None:
    """Stop recording, and clear the records."""
    native().simrank_record(0)
    native().simrank_forget_recorded()
    native().simrank_forget_launched()


def drain_words() -> list[int]:
    """Return and clear the records, not decoded."""
    num_words = ctypes.c_int64()
    pointer = native().simrank_recorded(ctypes.byref(num_words))
    words: list[int] = pointer[: num_words.value] if num_words.value else []
    native().simrank_forget_recorded()
    return words


@contextmanager
def recording() -> Iterator[Callable[[], list[DeviceOperation]]]:
    """Record within a block; the value returns the operations since it was last called."""
    start_recording()
    try:
        yield lambda: list(decode(drain_words()))
    finally:
        stop_recording()


def decode(words: list[int]) -> Iterator[DeviceOperation]:
    """Yield the operations of encoded records in launch order."""
    position = 0
    while position < len(words):
        length, op, rank, device, stream, flags, num_inputs, num_outputs = words[
            position : position + _HEAD_WORDS
        ]
        operands = _operands(words, position + _HEAD_WORDS, num_inputs + num_outputs)
        inputs, outputs = tuple(operands[:num_inputs]), tuple(operands[num_inputs:])
        yield DeviceOperation(
            op_name(op), rank, device, stream, OperationFlag(flags), inputs, outputs
        )
        position += length


_names: dict[int, str] = {}


def op_name(op: int) -> str:
    """Return the name of an operator by its number in records."""
    if op not in _names:
        _names[op] = native().simrank_op_name(op).decode()
    return _names[op]


def _operands(words: list[int], position: int, count: int) -> list[Operand]:
    operands = []
    for _ in range(count):
        address, packed = words[position : position + 2]
        num_dims = packed >> 8 & 0xFF
        sizes = position + 2
        strides = sizes + num_dims
        position = strides + num_dims
        operands.append(
            Operand(
                address,
                packed & 0xFF,
                tuple(words[sizes:strides]),
                tuple(words[strides:position]),
                bool(packed >> 16 & 1),
            )
        )
    return operands


# ---- Ranges of memory that operations in flight still read or write ----
# An operation or a host read that touches such a range calls `Callbacks.on_pending` first,
# unless both only read. While no range is in flight that costs one load and one branch.


def pending_add(address: int, size_bytes: int, *, writes: bool, pending_id: int) -> None:
    """Mark a range; one id may have several."""
    native().simrank_pending_add(address, size_bytes, int(writes), pending_id)


def pending_remove(pending_id: int) -> None:
    """Unmark all ranges of an id."""
    native().simrank_pending_remove(pending_id)


def touch(address: int, size_bytes: int, *, writes: bool) -> None:
    """Wait for pending operations on a range, as torch's operations do."""
    if native().simrank_touch(address, size_bytes, int(writes)):
        raise_kept()


# ---- callbacks of the C++ library to the simulator; absent ones cost nothing ----
# A callback runs on the thread of the rank that caused it, and may block it: other ranks run
# meanwhile. What it raises leaves the torch call that caused it, with its type and traceback.


class StreamCall(IntEnum):
    """Calls on streams and events, numbered as in `simulated.h`.

    Instead of an event, STREAM_CREATE has the priority, RECORD_STREAM the block's address, and
    SLEEP (`torch.cuda._sleep`) the cycles.
    """

    STREAM_CREATE = 0
    EVENT_RECORD = 1
    STREAM_WAIT_EVENT = 2
    STREAM_SYNCHRONIZE = 3
    EVENT_SYNCHRONIZE = 4
    DEVICE_SYNCHRONIZE = 5
    STREAM_QUERY = 6
    EVENT_QUERY = 7
    EVENT_DESTROY = 8
    HOST_READ = 9
    RECORD_STREAM = 10
    SLEEP = 11


class Rendezvous(NamedTuple):
    """The addresses of one symmetric allocation, in the order of the members' ranks.

    Attributes:
        rank: The group rank of the caller.
        buffers: The members' buffers.
        pads: Their signal pads.
        global_ranks: Their ranks in the world.
        multicast: The multicast address of all buffers, or 0.
    """

    rank: int
    buffers: list[int]
    pads: list[int]
    global_ranks: list[int]
    multicast: int = 0


@dataclass(frozen=True)
class Callbacks:
    """Listeners; `rank` is the number given to `RankState`, devices are those of its node.

    Attributes:
        on_alloc: (rank, global device, address, size_bytes, stream): a tensor's block.
        on_free: The same, when its last reference dies.
        alloc_threshold_bytes: Smaller blocks are not reported.
        on_out_of_memory: (rank, device, requested_bytes): the text of the error.
        on_pending: (address, size_bytes, is_write, id): an operation or a host read is about to
            touch a range that `pending_add` marked, and goes on when this returns.
        on_stream_call: (what, rank, device, stream, event): the answer counts for queries only.
        elapsed_ms: (first event, second event): what `elapsed_time` returns.
        on_op: (words): one operation, as `operations.decode` reads it.
        on_rendezvous: (address, group name): the members of that symmetric allocation.
        on_signal: (address, group name, what, peer, channel, timeout_ms): 0 barrier, 1 put, 2 wait.
        on_scope: (rank, name, number): torch's C++ enters a named scope, while
            `simrank_watch_scopes` is on; without a name: the scope of that number ends.
        on_site: (): a number for the program's line that runs.
        on_unknown: (operator, tensor, operator that lost its values, number of its line): an
            operator reads what a run without values does not have; the answer is read instead.
    """

    on_alloc: Callable[[int, int, int, int, int], None] | None = None
    on_free: Callable[[int, int, int, int, int], None] | None = None
    alloc_threshold_bytes: int = 0
    on_out_of_memory: Callable[[int, int, int], str] | None = None
    on_pending: Callable[[int, int, bool, int], None] | None = None
    on_stream_call: Callable[[StreamCall, int, int, int, int], bool | None] | None = None
    elapsed_ms: Callable[[int, int], float] | None = None
    on_op: Callable[[list[int]], None] | None = None
    on_rendezvous: Callable[[int, str], Rendezvous] | None = None
    on_signal: Callable[[int, str, int, int, int, int], None] | None = None
    on_scope: Callable[[int, str | None, int], None] | None = None
    on_site: Callable[[], int] | None = None
    on_unknown: Callable[[str, str, str, int], float] | None = None


_INT, _INT64, _UINT64 = ctypes.c_int, ctypes.c_int64, ctypes.c_uint64
_INTS, _UINT64S = ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_uint64)
_MEMORY = ctypes.CFUNCTYPE(None, _INT64, _INT, _UINT64, _UINT64, _INT64)
_SCOPE = ctypes.CFUNCTYPE(None, _INT64, ctypes.c_char_p, _INT64)
_TYPES: dict[str, Any] = {
    "on_alloc": _MEMORY,
    "on_free": _MEMORY,
    "alloc_threshold": _INT64,
    "on_out_of_memory": ctypes.CFUNCTYPE(
        _INT, _INT64, _INT, _UINT64, ctypes.POINTER(ctypes.c_char), _INT64
    ),
    "on_pending": ctypes.CFUNCTYPE(_INT, _UINT64, _UINT64, _INT, _INT64),
    "on_stream_call": ctypes.CFUNCTYPE(_INT, _INT, _INT64, _INT, _INT64, _INT64),
    "elapsed_ms": ctypes.CFUNCTYPE(_INT, _INT64, _INT64, ctypes.POINTER(ctypes.c_double)),
    "on_op": ctypes.CFUNCTYPE(_INT, ctypes.POINTER(_INT64), _INT64),
    "on_rendezvous": ctypes.CFUNCTYPE(
        _INT,
        _UINT64,
        ctypes.c_char_p,
        _INTS,
        _INTS,
        _UINT64S,
        _UINT64S,
        _INTS,
        _INT,
        _UINT64S,
    ),
    "on_signal": ctypes.CFUNCTYPE(_INT, _UINT64, ctypes.c_char_p, _INT, _INT, _INT, _INT64),
    "on_scope": _SCOPE,
    "on_site": ctypes.CFUNCTYPE(_INT64),
    "on_unknown": ctypes.CFUNCTYPE(
        _INT,
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.c_char_p,
        _INT64,
        ctypes.POINTER(ctypes.c_double),
    ),
}
_UNRAISED = (_MEMORY, _SCOPE)  # In the midst of a free, or of torch's own accounts.


class _Table(ctypes.Structure):
    """`struct Callbacks` of `simulated.h`."""

    _fields_ = list(_TYPES.items())


_installed: list[_Table] = []  # ctypes frees functions without references.


def install(callbacks: Callbacks) -> None:
    """Install the callbacks in C++."""
    table = _Table(alloc_threshold=callbacks.alloc_threshold_bytes)
    for name, adapt in _ADAPTERS.items():
        listener = getattr(callbacks, name)
        if listener is not None:
            adapted = adapt(listener)
            # What the others raise is for sys.unraisablehook.
            may_raise = _TYPES[name] not in _UNRAISED
            setattr(table, name, _TYPES[name](_guarded(adapted) if may_raise else adapted))
    native().simrank_callbacks(ctypes.byref(table))
    _installed[:] = [table]


def report_blocks_from(size_bytes: int) -> None:
    """Report only blocks of at least this size from now on; calls that are under way stay."""
    table = _installed[-1]
    table.alloc_threshold = size_bytes
    native().simrank_callbacks(ctypes.byref(table))


def _guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a callback: its exceptions are raised after the C++ call returns."""

    def call(*arguments: object) -> object:
        try:
            return function(*arguments)
        except BaseException as error:  # noqa: BLE001 - it is raised again, unchanged.
            return keep(error)

    return call


def _plain(listener: Callable[..., None]) -> Callable[..., int]:
    def call(*arguments: object) -> int:
        listener(*arguments)
        return 0

    return call


def _pending(listener: Callable[[int, int, bool, int], None]) -> Callable[..., int]:
    def call(address: int, size: int, is_write: int, pending_id: int) -> int:
        listener(address, size, bool(is_write), pending_id)
        return 0

    return call


def _stream_call(
    listener: Callable[[StreamCall, int, int, int, int], bool | None],
) -> Callable[..., int]:
    calls = list(StreamCall)

    def call(what: int, rank: int, device: int, stream: int, event: int) -> int:
        return int(listener(calls[what], rank, device, stream, event) is not False)

    return call


def _out_of_memory(listener: Callable[[int, int, int], str]) -> Callable[..., int]:
    def call(rank: int, device: int, requested: int, text: Any, room: int) -> int:
        encoded = listener(rank, device, requested).encode()[:room]
        ctypes.memmove(text, encoded, len(encoded))
        return len(encoded)

    return call


def _elapsed(listener: Callable[[int, int], float]) -> Callable[..., int]:
    def call(start: int, end: int, result: Any) -> int:
        result[0] = listener(start, end)
        return 0

    return call


def _op(listener: Callable[[list[int]], None]) -> Callable[..., int]:
    def call(words: Any, num_words: int) -> int:
        listener(words[:num_words])
        return 0

    return call


def _rendezvous(listener: Callable[[int, str], Rendezvous]) -> Callable[..., int]:
    def call(address: int, group: bytes, *results: Any) -> int:
        rank, world_size, buffers, pads, global_ranks, room, multicast = results
        met = listener(address, group.decode())
        if len(met.buffers) > room:
            raise ValueError(f"a symmetric allocation of {len(met.buffers)} ranks, at most {room}")
        rank[0], world_size[0], multicast[0] = met.rank, len(met.buffers), met.multicast
        for index, entry in enumerate(zip(met.buffers, met.pads, met.global_ranks, strict=True)):
            buffers[index], pads[index], global_ranks[index] = entry
        return 0

    return call


def _signal(listener: Callable[[int, str, int, int, int, int], None]) -> Callable[..., int]:
    def call(address: int, group: bytes, *rest: int) -> int:
        listener(address, group.decode(), *rest)
        return 0

    return call


def _scope(listener: Callable[[int, str | None, int], None]) -> Callable[..., int]:
    def call(rank: int, name: bytes | None, number: int) -> int:
        listener(rank, None if name is None else name.decode(), number)
        return 0

    return call


def _unknown(listener: Callable[[str, str, str, int], float]) -> Callable[..., int]:
    def call(op: bytes, tensor: bytes, lost_by: bytes, site: int, value: Any) -> int:
        value[0] = listener(op.decode(), tensor.decode(), lost_by.decode(), site)
        return 0

    return call


def _as_it_is(listener: Callable[..., int]) -> Callable[..., int]:
    return listener


_ADAPTERS: dict[str, Callable[[Any], Callable[..., Any]]] = {
    "on_alloc": _plain,
    "on_free": _plain,
    "on_out_of_memory": _out_of_memory,
    "on_pending": _pending,
    "on_stream_call": _stream_call,
    "elapsed_ms": _elapsed,
    "on_op": _op,
    "on_rendezvous": _rendezvous,
    "on_signal": _signal,
    "on_scope": _scope,
    "on_site": _as_it_is,
    "on_unknown": _unknown,
}
