"""Activation of simulated CUDA devices for torch ranks, and access to the running rank's.

torch computes at once; what it did is recorded and given to simrank's streams with its cost before
anybody else runs. Nothing of this is there until a rank first asks for a device.
"""

from __future__ import annotations

import logging
import warnings
from typing import TYPE_CHECKING, Any, TypeGuard

import torch

from simrank.errors import RaceError, SimrankError, UnsupportedError
from simrank.hardware.spec import clock_hz, compute_capability
from simrank.isolation import libraries
from simrank.isolation.ledger import Ledger
from simrank.ranks import require_rank
from simrank.ranks.current import current_program, for_real, rank_program
from simrank.torch import cuda
from simrank.torch.cuda import Callbacks, DeviceProperties, StreamCall, library
from simrank.torch.cuda.library import NOT_COMPILED, call_before_use, when_missing
from simrank.torch.cuda.operations import (
    decode,
    report_blocks_from,
    start_recording,
    start_recording_forms,
)
from simrank.torch.cuda.streams import GraphListener, captured_graph, listen_to_graphs
from simrank.torch.cuda.switch import has_real_devices
from simrank.torch.devices import unknown_values
from simrank.torch.devices.allocations import Allocations
from simrank.torch.devices.rank_devices import (
    RankDevices,
    SharedAccess,
    forget_pending,
    is_shared,
    num_visible,
    shared_memory_owner,
    visible,
    wait_for_pending,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, MutableMapping

    from simrank.device.memory import Storage
    from simrank.hardware.cluster import Cluster
    from simrank.ranks import Program
    from simrank.torch.devices.allocations import Block

_log = logging.getLogger("simrank")
_KEY, _LATER = "torch's devices", "calls for torch's devices"
# ---- the process ----


class _Enabled:
    """The simulated devices of the process, while they are on.

    Attributes:
        context: Whose cluster they are of.
        by_number: The ranks that have a state, by the number that C++ gives back.
        allocations: The blocks of tensors.
        patches: Of torch's readers of memory, where devices lack values.
    """

    def __init__(self, context: Any) -> None:
        self.context = context
        self.by_number: dict[int, RankDevices] = {}
        self.allocations = Allocations(context.race_checker)
        self.patches = Ledger(__name__)

    def stop_race_checks(self) -> None:
        """Take operations together from now on, as where no races are looked for."""
        self.allocations.stop_race_checks()
        report_blocks_from(self.allocations.shown_bytes)
        start_recording_forms()


_enabled: list[_Enabled] = []
_unavailable: list[UnsupportedError] = []  # Why there are no devices in this process.
_checked: list[bool] = []  # Whether there may be: asked once.
_kept: list[MutableMapping[Any, Any]] = []  # What names devices of a Context, and ends with them.
_on_scope: list[Callable[[Program, str | None, int], None]] = []
_warned: set[str] = set()  # What is in the way, once per simulation.
_MORE_MEMORY = 4  # Assumed: a program that needs more has another problem.
_IS_BUILT = torch.backends.cuda.is_built()
NO_REAL_ONE = (
    'real CUDA devices are requested (--devices real, cuda_devices="real", or devices in '
    "[tool.simrank]), and torch sees no GPU\n"
    "  to fix: leave the option out, and devices are simulated"
)


_MEANS_REAL = (
    'devices: real: "cuda" means the GPUs that torch sees; Context(cuda_devices="simulated") or '
    '`devices = "simulated"` in [tool.simrank] simulates them'
)
_is_real_said: list[bool] = []  # Once in a process.
_is_enabling = False


def is_enabled() -> bool:
    """Return whether devices are on, or are being turned on."""
    return bool(_enabled) or _is_enabling


def are_simulated(context: Any) -> bool:
    """Return whether "cuda" means simulated devices: as configured, else if torch sees no GPU."""
    if context.cuda_devices is None:
        return not has_real_devices()
    return bool(context.cuda_devices == "simulated")


def turn_on_at_use(program: Program | None) -> TypeGuard[Program]:
    """Return whether a use of "cuda" by a rank turns devices on, or raises the reason why not."""
    if program is None or is_enabled():
        return False
    return are_simulated(program.context) or not has_real_devices()


def may_be_used(program: Program | None) -> TypeGuard[Program]:
    """Return whether "cuda" means simulated devices to a program, turned on or not."""
    return program is not None and (is_enabled() or turn_on_at_use(program))


def is_built() -> bool:
    """Return whether torch was built for CUDA, patched or not."""
    return _IS_BUILT


def are_available(context: Any) -> bool:
    """Return whether devices can be turned on in this process; warn once of the reason if not."""
    if not are_simulated(context):
        if not has_real_devices():
            _warn(NO_REAL_ONE)
        elif context.cuda_devices is None and not _is_real_said:
            _is_real_said.append(True)
            _log.warning(_MEANS_REAL)
        return False
    if not _unavailable and not _checked:
        try:
            library.check_available()
            _checked.append(True)
        except UnsupportedError as error:
            _set_unavailable(error)
    return not _unavailable


def _set_unavailable(error: UnsupportedError) -> None:
    _unavailable.append(error)
    _warn(str(error))


def _warn(reason: str) -> None:
    if reason not in _warned:
        _warned.add(reason)
        warnings.warn(f"no simulated CUDA devices: {reason}", stacklevel=3)


def enable_for(program: Program) -> RankDevices:
    """Turn devices on, and return a rank's devices, bound to its thread.

    Raises:
        UnsupportedError: They cannot be had, "cuda" means torch's own, or a greenlet carries the
            rank; the text says what to do.
        AssertionError: The rank has hidden them from itself; torch's words.
        SimrankError: They are those of another Context.
    """
    libraries.check_use("torch")
    context: Any = program.context
    if not are_simulated(context):
        raise UnsupportedError(NO_REAL_ONE)
    if _unavailable:
        raise _unavailable[0]
    if not visible(program):
        raise AssertionError(NOT_COMPILED)
    if not _enabled:
        _enable(program.context)
    enabled = _enabled[0]
    if enabled.context is not program.context:
        raise SimrankError("CUDA devices of torch belong to one Context at a time")
    own: RankDevices | None = program.local.get(_KEY)
    if own is None:
        number = len(enabled.by_number)
        own = program.local[_KEY] = enabled.by_number[number] = RankDevices(
            program, number, enabled.allocations
        )
    own.bind()
    for call in program.local.pop(_LATER, ()):
        call_before_use(call)
    return own


def begin_turn(program: Program) -> None:
    """Bind the running thread to a rank's devices, if they are on and it sees some."""
    if not _enabled:
        return
    own: RankDevices | None = program.local.get(_KEY)
    if own is None or _enabled[0].context is not program.context or _LATER in program.local:
        if num_visible(program):
            enable_for(program)
    else:
        own.bind()


def enable_awaited() -> None:
    """Turn devices on as the running rank uses one, unless they are torch's own."""
    program = rank_program()
    if may_be_used(program):
        enable_for(program)


def sees_devices(program: Program) -> bool:
    """Return whether a rank sees any device."""
    return num_visible(program) > 0


def enable_where_possible(program: Program) -> None:
    """Turn devices on if the rank sees some and the process can have them."""
    if are_available(program.context) and sees_devices(program):
        enable_for(program)


def call_later(program: Program, call: Callable[[], None]) -> None:
    """Defer a call on the rank's thread until it has devices."""
    program.local.setdefault(_LATER, []).append(call)


def properties_of(cluster: Cluster) -> DeviceProperties:
    """Return the properties of a cluster's devices."""
    spec = cluster.device
    major, minor = compute_capability(spec.name) or (9, 0)  # Unknown devices count as Hopper.
    clock = clock_hz(spec)
    return DeviceProperties(
        name=spec.name,
        major=major,
        minor=minor,
        clock_rate=DeviceProperties.clock_rate if clock is None else round(clock / 1000),
        total_memory=spec.memory_bytes,
        multi_processor_count=spec.num_sms,
    )


def _enable(context: Any) -> None:
    cluster = context.cluster
    enabled = _Enabled(context)
    listeners = Callbacks(
        on_op=_launched if context.race_checker is not None else None,
        on_alloc=_allocated,
        on_free=_freed,
        alloc_threshold_bytes=enabled.allocations.shown_bytes,
        on_out_of_memory=_out_of_memory,
        on_pending=_wait_for_pending,
        on_stream_call=_stream_call,
        elapsed_ms=_elapsed_ms,
        on_rendezvous=shared_memory_owner().rendezvous,
        on_signal=shared_memory_owner().signal,
        on_scope=_scope,
        on_site=unknown_values.number_of_site,
        on_unknown=unknown_values.read,
    )
    global _is_enabling  # noqa: PLW0603 - queries meanwhile are torch's own
    _is_enabling = True
    if not context.has_values:
        from simrank.torch.devices import routed_experts, saved_storages  # noqa: PLC0415 - few runs

        for part in (unknown_values, saved_storages, routed_experts):
            part.guard(enabled.patches)
    try:
        with for_real():  # In one go: a poll would let the next turn do the same again.
            cuda.enable(
                cluster.num_devices,
                properties_of(cluster),
                callbacks=listeners,
                replace_real_devices=context.cuda_devices == "simulated",
                value_limits=None if context.has_values else unknown_values.limits(),
                fill_fresh=context.fills_memory,
                num_used=_num_used(context),
            )
    except BaseException as error:
        enabled.patches.restore()
        if isinstance(error, UnsupportedError):
            _set_unavailable(error)
        raise
    finally:
        _is_enabling = False
    if context.race_checker is not None:
        context.race_checker.on_stop.append(enabled.stop_race_checks)
        start_recording()
    else:
        start_recording_forms()
    why = "--devices real takes the GPUs" if has_real_devices() else "torch sees no GPU"
    context.engine.remarks[f"devices: simulated ({why})"] = None
    _enabled.append(enabled)
    cuda.watch_scopes(bool(_on_scope))
    context.devices[0].memory.space.elsewhere = shared_memory_owner().find
    shared_memory_owner().enabled(context)


def _num_used(context: Any) -> int | None:
    """Return the number of devices on nodes with a rank that runs; None: all are used."""
    if context.folding is None:
        return None
    per_node: int = context.cluster.devices_per_node
    return len({rank // per_node for rank in context.folding.running}) * per_node


def _turn_on_again() -> bool:
    """Turn devices on for a rank in a process that had devices before."""
    program = rank_program()
    if program is None or _is_enabling or _unavailable or not are_simulated(program.context):
        return False
    enable_for(program)
    return True


when_missing(
    _turn_on_again
)  # From the start: devices that a test had of its own took torch's question.


def cleared_with_devices(kept: MutableMapping[Any, Any]) -> None:
    """Clear a mapping whenever devices are turned off."""
    _kept.append(kept)


def disable() -> None:
    """Turn devices off; simrank's devices keep the peaks of memory."""
    _unavailable.clear()
    _on_scope.clear()
    _warned.clear()
    if not _enabled:
        return
    enabled = _enabled.pop()
    enabled.context.devices[0].memory.space.elsewhere = None
    enabled.patches.restore()
    forget_pending()
    for kept in _kept:
        kept.clear()
    shared_memory_owner().disabled()
    cuda.stop_recording()
    cuda.disable()
    for own in enabled.by_number.values():
        own.state.free()


def end_of_rank(program: Program) -> None:
    """Issue the rank's last operations, and release its thread."""
    own: RankDevices | None = program.local.get(_KEY)
    if own is not None and _enabled:
        own.flush()
        _keep_peaks(own)
        own.unbind()
        if own.deferred_error is not None:
            raise own.deferred_error


def lose_threads(program: Program) -> None:
    """Forget the threads of a rank that are bound to its devices."""
    own: RankDevices | None = program.local.get(_KEY)
    if own is not None:
        own.lose_threads()


def _keep_peaks(own: RankDevices) -> None:
    from simrank.torch.cuda.memory import peak_bytes  # noqa: PLC0415 - only here

    for index in range(own.state.num_devices):
        memory = own.device(index).memory
        allocated, reserved = peak_bytes(own.first + index)
        memory.peak_bytes = max(memory.peak_bytes, allocated)
        memory.peak_by_kind = own.allocations.peak_by_kind(own.first + index)
        memory.totals_bytes = own.allocations.totals_bytes(own.first + index)
        memory.peak_reserved_bytes = max(memory.peak_reserved_bytes, reserved)


def begin_step(gradients: Iterable[torch.Tensor]) -> None:
    """Set the kinds of the running rank's blocks, as an optimizer's step begins.

    Args:
        gradients: Those that the optimizer reads.
    """
    own = devices_in_use()
    if own is None:
        return
    cuda.operations.step(is_stepping=True)
    dense = (each for each in gradients if each.is_cuda and each.layout == torch.strided)
    blocks = (cuda.find_block(each.data_ptr()) for each in dense)
    addresses = {block.address for block in blocks if block is not None}
    own.allocations.begin_step(own.state.rank, addresses)


def end_step() -> None:
    """Note that an optimizer's step of the running rank has ended."""
    if devices_in_use() is not None:
        cuda.operations.step(is_stepping=False)


def exchanged(address: int) -> None:
    """Note that a collective sends or receives the running rank's memory at an address."""
    own = devices_in_use()
    block = None if own is None else cuda.find_block(address)
    if own is not None and block is not None:
        own.allocations.exchanged(own.state.rank, block.address)


def devices_in_use() -> RankDevices | None:
    """Return the running rank's devices, if it has asked for them."""
    if not _enabled:
        return None
    program = rank_program()
    own: RankDevices | None = None if program is None else program.local.get(_KEY)
    return own


def keep_in_graph(call: Callable[[], object], values: Iterable[object]) -> None:
    """Add a call to the graph that the running rank captures, repeated at each replay.

    Args:
        call: What to repeat.
        values: What it gets; tensors among them it may write.
    """
    graph = captured_graph()
    if graph is not None:
        graph.keep(call, (value for value in values if isinstance(value, torch.Tensor)))


class _Graphs(GraphListener):
    """Replays of CUDA graphs in simulated time; without devices in use they take none."""

    def captured(self) -> None:
        """Synchronize: later operations come after those that ran only to be captured."""
        if devices_in_use() is not None:
            torch.cuda.synchronize()

    def replay(self, play: Callable[[], None]) -> None:
        """Replay a graph, whose operations are one launch of the host."""
        own = devices_in_use()
        if own is None:
            play()
        else:
            own.replay(play)


listen_to_graphs(_Graphs())


def block_at(address: int) -> Block | None:
    """Return the block that begins at an address; None without race checks."""
    return _enabled[0].allocations.block_at(address) if _enabled else None


def add_signal_pad(pad: Storage, buffer: Storage) -> None:
    """Record the signal pad of a buffer for race checks."""
    if _enabled:
        _enabled[0].allocations.add_signal_pad(pad, buffer)


def global_index(address: int) -> int | None:
    """Return the device of the cluster in whose memory an address lies, or None."""
    return cuda.device_of(address) if _enabled else None


def use_devices_of(tensor: torch.Tensor) -> None:
    """Issue pending operations, and make the tensor's device and stream current in simrank."""
    program = current_program() if _enabled else None
    own: RankDevices | None = None if program is None else program.local.get(_KEY)
    assert own is not None, "the tensor lies on a device"
    own.flush()
    own.make_current(tensor.get_device())


def flush() -> None:
    """Issue the running rank's pending operations."""
    own = devices_in_use()
    if own is not None:
        own.flush()


def watch_scopes(listener: Callable[[Program, str | None, int], None] | None) -> None:
    """Set the listener of the scopes that torch's C++ names.

    Args:
        listener: Called with the program, the name and a number as a scope begins, with None
            and the number as it ends; None: no listener.
    """
    _on_scope[:] = [] if listener is None else [listener]
    if _enabled:
        cuda.watch_scopes(bool(_on_scope))


# ---- what C++ calls ----


def _own(number: int) -> RankDevices:
    return _enabled[0].by_number[number]


def _stream_call(what: StreamCall, rank: int, device: int, stream: int, event: int) -> bool | None:
    if rank < 0:
        return True
    return _own(rank).stream_call(what, device, stream, event)


def _elapsed_ms(first: int, last: int) -> float:
    own = require_rank("elapsed_time").local[_KEY]
    return float(own.elapsed_ms(first, last))


def _wait_for_pending(address: int, size_bytes: int, is_write: bool, number: int) -> None:
    program = require_rank("an operation of torch")
    own: RankDevices = program.local[_KEY]
    own.flush()
    if is_shared(number):
        own.shared.append(SharedAccess(address, size_bytes, is_write))
    own.num_waits += 1
    try:
        wait_for_pending(program, number, own.current_stream())
    finally:
        own.num_waits -= 1


def _allocated(rank: int, device: int, address: int, size_bytes: int, stream: int) -> None:
    own = _own(rank)
    try:
        own.allocations.allocated(rank, own.stream_of(device, stream), address, size_bytes)
    except RaceError as error:
        own.deferred_error = error  # An allocator cannot raise: the next operation does.


def _freed(rank: int, device: int, address: int, size_bytes: int, stream: int) -> None:
    del size_bytes
    if _enabled:
        own = _own(rank)
        own.allocations.freed(own.stream_of(device, stream), address)


def _scope(rank: int, name: str | None, number: int) -> None:
    own = _own(rank)
    for tell in _on_scope:
        try:
            tell(own.program, name, number)
        except BaseException as error:  # noqa: BLE001 - torch lets nothing through: the next one does
            own.deferred_error = error


def _launched(words: list[int]) -> None:
    (operation,) = decode(words)
    _own(operation.rank).launched(operation)


def _out_of_memory(rank: int, device: int, requested_bytes: int) -> str:
    own = _own(rank)
    total = own.device(device).spec.memory_bytes
    stats = torch.cuda.memory_stats(device)
    allocated = stats["allocated_bytes.all.current"]
    idle = stats["reserved_bytes.all.current"] - allocated
    lines = [
        f"CUDA out of memory. Tried to allocate {requested_bytes / 2**20:.2f} MiB. "
        f"GPU {device} has a total capacity of {total / 2**30:.2f} GiB. Of the allocated memory "
        f"{allocated / 2**30:.2f} GiB is allocated by PyTorch, and {idle / 2**20:.2f} MiB is "
        "reserved by PyTorch but unallocated."
    ]
    lines += own.allocations.held_by_line(own.first + device)
    if not _enabled[0].context.has_values:
        more = f"{total * _MORE_MEMORY / 2**30:.0f}GiB"
        lines.append(f"  to see how much it needs: simrank run --set memory={more}")
    return "\n".join(lines)
