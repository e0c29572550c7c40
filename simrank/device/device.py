"""One accelerator: its memory, and the resources that its operations share."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from simrank.device.current import parse_device
from simrank.device.launches import LaunchQueue
from simrank.device.memory import DeviceMemory
from simrank.device.operation import KernelOperation
from simrank.device.stream import Stream
from simrank.engine import ActivityPool, Resource
from simrank.hardware.activity_rates import solve_rates
from simrank.hardware.roofline import kernel_ps
from simrank.units import PS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from simrank.device.loading import Loading
    from simrank.device.memory import AddressSpace
    from simrank.device.races import RaceChecker, Touched
    from simrank.device.transfer import Network
    from simrank.engine import Engine
    from simrank.hardware.roofline import Product
    from simrank.hardware.spec import DeviceSpec

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
        races: RaceChecker | None = None,
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
        """Pickle the index: it is a device of whoever unpickles it."""
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
        """Let kernels that begin from now on, and launches, take `factor` times their time."""
        self.slowdown = factor
        self.launch_overhead_ps = ceil(self.spec.launch_overhead_ps * factor)

    def hold(self, resource: Resource, amount: float) -> None:
        """Take some of a resource away from kernels (negative: give it back): a collective runs."""
        resource.held += amount
        if resource.users:  # Else nobody's rate changes.
            self.pool.change(resource)


class Devices:
    """The devices of a cluster, each made when it is first used."""

    def __init__(self, make: Callable[[int], Device], num_devices: int) -> None:
        self._make = make
        self._made: dict[int, Device] = {}
        self._num_devices = num_devices

    def __len__(self) -> int:
        """Return how many devices the cluster has."""
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
