"""One accelerator: its memory, and the resources that its operations share."""

from __future__ import annotations

import os
from collections import deque
from math import ceil
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

from simrank.device.memory import DeviceMemory
from simrank.device.stream import KernelOperation, Operation, Stream, parse_device
from simrank.engine import ActivityPool, Handle, Resource
from simrank.errors import ConfigError, ConfigProblem
from simrank.hardware.roofline import kernel_ps
from simrank.hardware.sharing import solve_rates
from simrank.ranks import require_program
from simrank.units import PS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from simrank.device.memory import AddressSpace, Buffer, Touched
    from simrank.device.network import Network
    from simrank.engine import CallSite, Engine
    from simrank.hardware.spec import DeviceSpec, Product

_ELEMENTS_PER_SM = 8 * 1024  # assumed: an elementwise kernel gives an SM about 8 blocks of 1,024


class HostDevice(str):
    """The host, as torch.device("cpu") and as the plain string.

    Attributes:
        type: "cpu".
        index: None: there is one host.
    """

    __slots__ = ()
    type = "cpu"
    index = None  # type: ignore[assignment]  # torch.device has it; str.find searches


HOST = HostDevice("cpu")


class RaceHooks(Protocol):
    """Race checks, as devices, streams and host reads call them; see `races.RaceChecker`."""

    @property
    def order(self) -> Any:  # noqa: ANN401 - `races.RunOrder`
        """The order of events across ranks."""

    def issued(self, operation: Operation) -> None:
        """Order an operation behind its host and its stream, and compare its accesses."""

    def began(self, operation: Operation) -> None:
        """Order an operation behind the operations that it waited for."""

    def ended(self, operation: Operation) -> None:
        """Order the following operations behind one that has ended."""

    def stream_waits(self, stream: Stream, operation: Operation) -> None:
        """Order a stream behind an operation."""

    def stream_waits_for_stream(self, stream: Stream, other: Stream) -> None:
        """Order a stream behind another one."""

    def is_behind(self, ended: Operation | Stream) -> bool:
        """Return whether the running program comes after the end of an operation, or stream."""

    def host_waits(self, operation: Operation) -> None:
        """Order the running program behind an operation."""

    def host_waits_for_stream(self, stream: Stream) -> None:
        """Order the running program behind a stream."""

    def host_reads(self, buffer: Buffer, stream: Stream) -> None:
        """Compare a host read, which counts as a copy on a stream."""

    def host_touches(self, buffer: Buffer, *, is_write: bool) -> None:
        """Compare an access of the host to host memory."""


class Device:
    """A simulated device.

    Attributes:
        type: "cuda".
        index: Its number in the cluster.
        engine: The engine that runs it.
        spec: What it is.
        has_values: False in a shape-only run.
        network: The cluster's links.
        races: Looks for races; None where that is off.
        host_link: Between this device and its host.
        memory: Its memory.
        pool: The activities on it.
        sms: Its SMs, as a shared resource; collectives hold some of them.
        hbm: The bandwidth of its memory, in bytes per picosecond; shared in the same way.
        loaded: Kernels whose code it has; None where all is loaded from the start.
        loading: What it loads now, for which all its hosts wait.
        launches: Its launch queue.
        streams: All of its streams, where that matters for loading; else None.
    """

    type = "cuda"

    def __init__(  # noqa: PLR0913 - what a device is made of
        self,
        index: int,
        engine: Engine,
        spec: DeviceSpec,
        space: AddressSpace,
        network: Network,
        *,
        has_values: bool = True,
        races: RaceHooks | None = None,
    ) -> None:
        self.index = index
        self.engine = engine
        self.spec = spec
        self.has_values = has_values
        self.network = network
        self.races = races
        self.slowdown = 1.0
        self.launch_overhead_ps = spec.launch_overhead_ps
        self.loaded: set[str] | None = set() if spec.lazy_loading else None
        self.loading: Loading | None = None
        # A device of thousands keeps little: what few programs use is made where it is used.
        self.streams: WeakKeyDictionary[Stream, None] | None = None
        if self.loaded is not None:
            self.streams = WeakKeyDictionary()
        self.memory = DeviceMemory(index, spec.memory_bytes, space)
        self.launches = LaunchQueue(engine, spec.launch_queue)
        self.pool = ActivityPool(engine, solve_rates)
        self.sms = Resource("SMs", float(spec.num_sms))
        self.hbm = Resource("memory bandwidth", spec.memory_bandwidth_bytes_per_s / PS_PER_S)
        self.host_link = Resource("host link", spec.host_link_bandwidth_bytes_per_s / PS_PER_S)

    def __repr__(self) -> str:
        """Return torch's name of the device."""
        return f"device(type='cuda', index={self.index})"

    def __str__(self) -> str:
        """Return torch's short name of the device, `cuda:3`."""
        return f"cuda:{self.index}"

    def __copy__(self) -> Device:
        """Return itself: a device is what it is."""
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> Device:
        """Return itself."""
        return self

    def __reduce__(self) -> tuple[Callable[[int], Device | None], tuple[int]]:
        """Pickle the index: it names a device of the program that unpickles it."""
        return parse_device, (self.index,)

    def new_stream(self, name: str) -> Stream:
        """Return another stream of this device.

        Args:
            name: For timelines.
        """
        return Stream(self, name, is_counted=False)

    def launch(  # noqa: PLR0913 - a kernel's facts
        self,
        stream: Stream,
        name: str,
        effect: Callable[[], None] | None,
        touched: Touched | None = None,
        *,
        num_elements: int,
        bytes_moved: int,
        flops: int = 0,
        dtype: str = "float32",
        product: Product | None = None,
    ) -> KernelOperation:
        """Issue a kernel that takes roofline time and shares SMs and memory bandwidth.

        A `product` takes the time that was measured for its shape, where the device has a table.

        Returns:
            The operation; `effect` runs at its end.
        """
        duration_ps = kernel_ps(self.spec, flops, dtype, bytes_moved, product)
        num_sms = min(max(-(-num_elements // _ELEMENTS_PER_SM), 1), self.spec.num_sms)
        demands = ((self.sms, float(num_sms)), (self.hbm, bytes_moved / duration_ps))
        operation = KernelOperation(
            stream, name, effect, touched, duration_ps=duration_ps, demands=demands
        )
        stream.submit(operation)
        return operation

    def slow_down(self, factor: float) -> None:
        """Multiply the time of launches and of kernels that begin from now on by `factor`."""
        self.slowdown = factor
        self.launch_overhead_ps = ceil(self.spec.launch_overhead_ps * factor)

    def hold(self, resource: Resource, amount: float) -> None:
        """Take some of a resource away from kernels (negative: give it back): a collective runs."""
        resource.held += amount
        if resource.users:  # Else no rate changes.
            self.pool.change(resource)

    def load_before(self, operation: Operation) -> None:
        """Load the kernel of an operation if it is not loaded: the host waits until all is quiet.

        Meanwhile no other host of the device issues anything, not even a copy.
        """
        engine, module = self.engine, operation.module
        while self.loading is not None:
            loading = self.loading
            loading.behind.append(operation.name)
            wait = BehindLoad(operation.name, loading)
            loading.on_complete(lambda wait=wait: wait.finish(engine))  # type: ignore[misc]
            engine.wait(wait)
        if module is None or _has(self, module):
            return
        for other in list(self.streams or ()):
            tail = other.tail
            if tail is None:
                continue
            loading = self.loading = Loading(module, tail)
            tail.on_complete(lambda loading=loading: _quiet(self, loading))  # type: ignore[misc]
            engine.wait(loading)
        assert self.loaded is not None, "it loads lazily"
        self.loaded.add(module)
        engine.charge(LOAD_PS, f"load {module}")

    def hardware_queues(self) -> HardwareQueues | None:
        """Return new hardware queues for the streams of the running program; None: one each.

        Raises:
            ConfigError: The variable of its environment is none of CUDA's numbers.
        """
        given = os.environ.get(VARIABLE)
        if not given:
            return None
        if not given.isdigit() or not 1 <= int(given) <= _MOST:
            expected = f"a number from 1 to {_MOST}"
            raise ConfigError(ConfigProblem(VARIABLE, None, "", expected, repr(given)))
        return HardwareQueues(int(given))


class Devices:
    """The devices of a cluster, each made when it is first used."""

    def __init__(self, make: Callable[[int], Device], num_devices: int) -> None:
        self._make = make
        self._made: dict[int, Device] = {}
        self._num_devices = num_devices

    def __len__(self) -> int:
        """Return the number of the cluster's devices."""
        return self._num_devices

    def __getitem__(self, index: int) -> Device:
        """Return a device."""
        device = self._made.get(index)
        if device is None:
            if not 0 <= index < self._num_devices:
                raise IndexError(f"device {index} of {self._num_devices}")
            device = self._made[index] = self._make(index)
        return device

    def __iter__(self) -> Iterator[Device]:
        """Yield the devices that have been used, by index."""
        return (self._made[index] for index in sorted(self._made))


# ---- Lazy loading: the code of a kernel comes to the device at its first launch ----
# A load waits until the device is quiet. A kernel that spins until a later operation sets its flag
# can therefore block the host forever: a load between them waits for the kernel. `preload` loads
# kernels before anything runs.

_MODE = "CUDA_MODULE_LOADING"
LOAD_PS = 300_000_000  # assumed: 0.3 ms for the code of one kernel


class Loading(Handle):
    """The load of a kernel's code: the host waits for an idle device, other hosts for the load.

    Attributes:
        behind: What other hosts of the device wait to issue until the code is there.
    """

    __slots__ = ("_blocker", "_module", "behind")

    def __init__(self, module: str, blocker: Operation) -> None:
        super().__init__()
        self._module = module
        self._blocker = blocker
        self.behind: list[str] = []

    def describe(self) -> str:
        """Return the kernel that is loaded, and the operation that it waits for."""
        running = self._blocker.blocker()
        return (
            f"the first launch of '{self._module}', which loads its code and waits until the "
            f"device is quiet: {running.describe()}"
        )

    def site(self) -> CallSite | None:
        """Return None: the waiting line says where."""
        return None

    @property
    def to_fix(self) -> str:
        """Return the cycle of waits, from what sets the flag back to it, and what breaks it."""
        setter = self.behind[0] if self.behind else "what this host would issue next"
        running = self._blocker.blocker().describe()
        return (
            f"{setter} <- load of '{self._module}' <- {running} <- its flag <- {setter}: load "
            "kernels before anything runs, with ctx.preload() or CUDA_MODULE_LOADING=EAGER"
        )


class BehindLoad(Handle):
    """A host's wait for a load that another host of the device has begun, for reports."""

    __slots__ = ("_loading", "_name")

    def __init__(self, name: str, loading: Loading) -> None:
        super().__init__()
        self._name = name
        self._loading = loading

    def describe(self) -> str:
        """Return the call that waits, and the load that it waits for."""
        return f"the call of '{self._name}', behind {self._loading.describe()}"

    @property
    def to_fix(self) -> str:
        """Return the cycle that the load is in."""
        return self._loading.to_fix


def _quiet(device: Device, loading: Loading) -> None:
    if device.loading is loading:
        device.loading = None
    loading.finish(device.engine)


def _has(device: Device, module: str) -> bool:
    """Return whether a device has a kernel: by its name, or by the first word, its family's.

    Source: CUDA Programming Guide, section 4.7: CUDA_MODULE_LOADING is read as a process starts to
    use the device.
    """
    loaded = device.loaded
    if loaded is None or module in loaded or module.partition(" ")[0] in loaded:
        return True
    program = require_program("a launch")
    mode: str | None = program.local.get(_MODE)
    if mode is None:
        mode = program.local[_MODE] = os.environ.get(_MODE, "")
    return mode.upper() == "EAGER"


def preload(devices: Iterable[Device], kernels: Iterable[Any]) -> None:
    """Load kernels now, while nothing runs; each by its name, or as something that has one."""
    names = [kernel if isinstance(kernel, str) else kernel.__name__ for kernel in kernels]
    for device in devices:
        if device.loaded is not None:
            device.loaded.update(names)


# ---- The launch queue: a host that runs too far ahead waits (rule D1) ----


class LaunchQueue:
    """The kernels, copies and collectives of a device that have been launched and not ended.

    Attributes:
        capacity: How many there may be before the host waits for one of them to end.
        num_outstanding: How many there are.
        waiting: Hosts that wait for room.
    """

    def __init__(self, engine: Engine, capacity: int) -> None:
        self.capacity = capacity
        self.num_outstanding = 0
        self._engine = engine
        self.waiting: list[Room] = []  # A few; an empty deque takes 600 bytes.

    def wait_for_room(self, stream: Stream) -> None:
        """Block the host until a launch to `stream` would not be one too many.

        What the engine itself launches, from the hub, goes ahead: no rank waits.
        """
        while self.num_outstanding >= self.capacity:
            if self._engine.is_hub() and self._engine.is_driving:
                return
            room = Room(stream, self.capacity)
            self.waiting.append(room)
            try:
                self._engine.wait(room)
            finally:
                if not room.complete:  # The rank was aborted.
                    self.waiting.remove(room)
                elif self.waiting and self.num_outstanding < self.capacity:
                    self.let_go_on(1)  # The next one looks too: this host may end without a launch.

    def let_go_on(self, num_hosts: int) -> None:
        """Resume waiting hosts: as many launches have ended or were dropped."""
        for _ in range(min(num_hosts, len(self.waiting))):
            self.waiting.pop(0).finish(self._engine)


class Room(Handle):
    """A wait for room in a launch queue."""

    __slots__ = ("_capacity", "_stream")

    def __init__(self, stream: Stream, capacity: int) -> None:
        super().__init__()
        self._stream = stream
        self._capacity = capacity

    def describe(self) -> str:
        """Return the operation that must end before the host continues."""
        head = self._stream.head
        behind = "" if head is None else f", behind {head.describe()}"
        return f"room in the launch queue ({self._capacity:,} launches){behind}"

    def site(self) -> CallSite | None:
        """Return None: where the program waits says it."""
        return None


# ---- Hardware queues: launches of streams that share one begin in the order of issue ----
# CUDA_DEVICE_MAX_CONNECTIONS says how many a process has on each device. What is first in a
# queue and may not begin yet (its stream is busy, or waits) holds up all behind it, of other
# streams too: a false dependency, which programs that overlap collectives with products ask for
# deliberately. Where the variable is not set every stream has a queue of its own: which streams
# share one of hardware's eight is not documented.
#
# Source: CUDA C++ Programming Guide 13.0, "CUDA Environment Variables". Assumed: streams take
# queues in turn, in the order in which they were made; a wait for an event holds its queue
# until it is over.

VARIABLE = "CUDA_DEVICE_MAX_CONNECTIONS"


_MOST = 32  # Source: as above.


class HardwareQueue:
    """Operations of one or more streams that have been issued and have not passed."""

    def __init__(self) -> None:
        self._ahead: deque[Operation] = deque()

    @property
    def first(self) -> Operation | None:
        """The operation that goes next."""
        return self._ahead[0] if self._ahead else None

    def issued(self, operation: Operation) -> None:
        """Append an operation to the queue."""
        self._ahead.append(operation)

    def passed(self, operation: Operation) -> None:
        """Remove the first operation, which has begun or waited, and start the next one."""
        assert self.first is operation, "a queue keeps its order"
        self._ahead.popleft()
        self._go_on()

    def forget(self, operations: Iterable[Operation]) -> None:
        """Take out what will never begin."""
        gone = set(operations)
        first = self.first
        self._ahead = deque(each for each in self._ahead if each not in gone)
        if self.first is not first:
            self._go_on()

    def _go_on(self) -> None:
        first = self.first
        if first is not None and first.stream.head is first:
            first.stream.start(first)


class HardwareQueues:
    """The queues of one program on one device.

    Args:
        num_queues: How many.
    """

    def __init__(self, num_queues: int) -> None:
        self._queues = [HardwareQueue() for _ in range(num_queues)]
        self._num_streams = 0

    def next(self) -> HardwareQueue:
        """Return the queue of the next stream."""
        queue = self._queues[self._num_streams % len(self._queues)]
        self._num_streams += 1
        return queue
