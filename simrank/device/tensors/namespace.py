"""torch's names on a Context: a program that takes `torch` as a parameter can be handed one.

Names come from tables: dtypes, factories, functions of several tensors, and every method of a
tensor as a function (`ctx.exp(x)` is `x.exp()`). What needs the device is in `CudaNames`.
"""

from __future__ import annotations

from contextlib import ContextDecorator, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

from simrank.device.device import HOST
from simrank.device.dtypes import ALIASES, DTYPES, DType, promote
from simrank.device.stream import (
    Event,
    Stream,
    current_device,
    current_stream,
    devices_of,
    new_stream,
    parse_device,
    set_stream,
    streams_of,
    synchronize,
    use_stream,
)
from simrank.device.stream import Event as EventType  # The plain names are torch's, on the Context.
from simrank.device.stream import Stream as StreamType
from simrank.device.tensors import factories, indexing, joining, products
from simrank.device.tensors.methods import TensorMethods
from simrank.device.tensors.tensor import Tensor
from simrank.errors import OutOfMemoryError, SimrankError, UnsupportedError
from simrank.ranks import current_program, require_program, running_as

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from simrank.device.device import Device
    from simrank.ranks import Program

FACTORIES: dict[str, Callable[..., Any]] = {
    name: getattr(factories, name)
    for name in (
        "empty", "zeros", "ones", "full", "tensor", "as_tensor", "arange", "linspace", "eye",
        "from_numpy", "from_dlpack", "rand", "randn", "randint", "randperm", "manual_seed",
        "empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like",
        "randint_like",
    )
}  # fmt: skip
_NO_FUNCTION = {"expand", "expand_as", "view", "view_as", "repeat", *ALIASES}  # Methods only.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    name: function
    for name, function in vars(TensorMethods).items()
    if name[0] != "_" and name not in _NO_FUNCTION
} | {
    "cat": joining.cat, "concat": joining.cat, "stack": joining.stack, "where": indexing.where,
    "einsum": products.einsum, "equal": Tensor.equal, "allclose": Tensor.allclose,
    "numel": Tensor.numel, "nonzero": Tensor.nonzero, "masked_select": Tensor.masked_select,
    "clone": Tensor.clone, "is_floating_point": Tensor.is_floating_point,
    "is_tensor": lambda value: isinstance(value, Tensor), "promote_types": promote,
}  # fmt: skip


class TorchNames:
    """torch's names, bound to a Context; see the module."""

    program: Program  # The main program.

    Tensor = Tensor
    OutOfMemoryError = OutOfMemoryError

    @property
    def cuda(self) -> CudaNames:
        """Return the names of torch.cuda."""
        return CudaNames(self)

    def device(self, device: object, index: int | None = None) -> Any:  # noqa: ANN401 - a Device
        """Return the device of a name, an index, or a name and an index, as torch.device."""
        name = device if index is None else f"{device}:{index}"
        parsed = self.bind(parse_device)(name)
        return HOST if parsed is None else parsed

    Size = tuple
    dtype = DType

    def no_grad(self) -> NoGrad:
        """Return a block, or a decorator, that changes nothing: there is no autograd."""
        return NoGrad()

    def inference_mode(self, mode: bool = True) -> NoGrad:
        """Return the same value under its newer name."""
        del mode
        return NoGrad()

    def stream(self, stream: StreamType) -> AbstractContextManager[StreamType]:
        """Make `stream` the current stream within a block, as torch.cuda.stream."""
        return use_stream(stream)

    def Stream(self, device: object = None) -> StreamType:  # noqa: N802 - torch's name
        """Return a new stream of a device (default: the current one)."""
        stream: StreamType = self.bind(new_stream)(self.device_of(device))
        return stream

    def Event(self, enable_timing: bool = False) -> EventType:  # noqa: N802 - torch's name
        """Return a new event."""
        return EventType(enable_timing=enable_timing)

    def current_stream(self) -> StreamType:
        """Return the running program's current stream."""
        return current_stream(self.running())

    def synchronize(self, device: object = None) -> None:
        """Block the host until everything issued to a device so far has ended."""
        self.bind(synchronize)(self.device_of(device))

    def running(self) -> Program:
        """Return the running program of this Context, else its main program."""
        program = current_program()
        return program if program is not None and program.context is self else self.program

    def device_of(self, device: object) -> Device:
        """Return a device by any of its names; None is the current one.

        Raises:
            SimrankError: It is the host.
        """
        if device is None:
            return current_device(self.running())
        parsed: Device | None = self.bind(parse_device)(device)
        if parsed is None:
            raise SimrankError("the host has no streams; name a device")
        return parsed

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - dtypes and functions
        """Return torch's dtypes, factories and functions under their names."""
        if name in DTYPES:
            return DTYPES[name]
        if name in ALIASES:
            return ALIASES[name]
        if name in FACTORIES:
            return self.bind(FACTORIES[name])
        if name in FUNCTIONS:
            return self.bind(FUNCTIONS[name])
        raise AttributeError(f"'Context' object has no attribute {name!r}")

    def bind(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that also works where no program of this Context is current."""

        def bound(*args: object, **kwargs: object) -> Any:  # noqa: ANN401 - the function's
            program = current_program()
            if program is not None and program.context is self:
                return function(*args, **kwargs)
            with running_as(self.program):
                return function(*args, **kwargs)

        bound.__doc__ = function.__doc__
        return bound


class CurrentNames(TorchNames):
    """torch's names for the running program: the names of the module `simrank` in a rank."""

    Stream = StreamType  # type: ignore[assignment]  # Classes, so that isinstance works.
    Event = EventType

    @property
    def program(self) -> Program:  # type: ignore[override]  # Looked up, not kept.
        """Return the running program.

        Raises:
            NoRankError: It is missing, and no Context.
        """
        return require_program("torch's names in the module simrank")

    def running(self) -> Program:
        """Return the running program."""
        return self.program

    def bind(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, which asks for the running program itself."""
        return function


CURRENT = CurrentNames()


class NoGrad(ContextDecorator):
    """A block that changes nothing."""

    def __enter__(self) -> None:
        """Change nothing."""

    def __exit__(self, *error: object) -> None:
        """Change nothing."""


class CudaNames:
    """The names of torch.cuda, on the devices of one Context."""

    Event = Event
    OutOfMemoryError = OutOfMemoryError

    def __init__(self, context: TorchNames) -> None:
        self._context = context
        self.Stream = context.Stream
        self.synchronize = context.synchronize
        self.manual_seed = self.manual_seed_all = context.bind(factories.manual_seed)

    def is_available(self) -> bool:
        """Return True: there are simulated devices."""
        return True

    is_initialized = is_available

    def device_count(self) -> int:
        """Return the number of the cluster's devices."""
        return len(devices_of(self._context.running()))

    def current_device(self) -> int:
        """Return the index of the running program's device."""
        return self._context.running().device_index

    def set_device(self, device: object) -> None:
        """Make a device the running program's own; its current stream is that device's default.

        Raises:
            SimrankError: There is no such device.
        """
        chosen = self._context.device_of(device)
        program = self._context.running()
        if chosen.index != program.device_index:
            program.device_index = chosen.index
            set_stream(program, None)

    @contextmanager
    def device(self, device: object) -> Iterator[None]:
        """Make a device the current one within a block."""
        program = self._context.running()
        before, stream = program.device_index, current_stream(program)
        self.set_device(device)
        try:
            yield
        finally:
            program.device_index = before
            set_stream(program, stream)

    def stream(self, stream: Stream | None) -> AbstractContextManager[Any]:
        """Make `stream` the current stream within a block; None changes nothing."""
        return nullcontext() if stream is None else use_stream(stream)

    def set_stream(self, stream: Stream) -> None:
        """Make `stream` the current stream from now on."""
        set_stream(self._context.running(), stream)

    def current_stream(self, device: object = None) -> Stream:
        """Return the current stream of a device (default: the current one)."""
        program, target = self._context.running(), self._context.device_of(device)
        stream = current_stream(program)
        return stream if stream.device is target else streams_of(target, program).default

    def default_stream(self, device: object = None) -> Stream:
        """Return the default stream of a device (default: the current one)."""
        return streams_of(self._context.device_of(device), self._context.running()).default

    def memory_allocated(self, device: object = None) -> int:
        """Return the bytes allocated on a device now."""
        return self._context.device_of(device).memory.used_bytes

    def max_memory_allocated(self, device: object = None) -> int:
        """Return the most bytes that were ever allocated on a device."""
        return self._context.device_of(device).memory.peak_bytes

    memory_reserved, max_memory_reserved = memory_allocated, max_memory_allocated

    def reset_peak_memory_stats(self, device: object = None) -> None:
        """Forget the peak so far."""
        memory = self._context.device_of(device).memory
        memory.peak_bytes = memory.used_bytes

    def empty_cache(self) -> None:
        """Do nothing: simrank caches no memory."""

    def mem_get_info(self, device: object = None) -> tuple[int, int]:
        """Return free and total bytes of a device."""
        memory = self._context.device_of(device).memory
        return memory.total_bytes - memory.used_bytes, memory.total_bytes

    def get_device_name(self, device: object = None) -> str:
        """Return the name of a device."""
        return self._context.device_of(device).spec.name

    def get_device_properties(self, device: object = None) -> DeviceProperties:
        """Return the properties of a device, such as its number of SMs."""
        spec = self._context.device_of(device).spec
        return DeviceProperties(spec.name, spec.memory_bytes, spec.num_sms)

    if not TYPE_CHECKING:  # Type checkers find a name that is none.

        def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - nothing
            """Refuse what simrank does not have of torch.cuda, by name.

            Raises:
                UnsupportedError: Always; it is also an AttributeError, so that `hasattr` works.
            """
            raise _MissingError(f"cuda.{name} is not supported")


class DeviceProperties(NamedTuple):
    """Properties of a device from the cluster's file, under torch's names."""

    name: str
    total_memory: int
    multi_processor_count: int


class _MissingError(UnsupportedError, AttributeError):
    """A name of torch.cuda that simrank does not have."""


_OWN_NAMES = (
    "OutOfMemoryError", "Stream", "Event", "cuda", "current_stream", "device", "inference_mode",
    "Size", "dtype", "no_grad", "stream", "synchronize",
)  # fmt: skip
MODULE_NAMES = {*DTYPES, *ALIASES, *FACTORIES, *FUNCTIONS, *_OWN_NAMES}


def is_everybodys(name: str) -> bool:
    """Return whether a name of the module is the same object for all programs."""
    return name not in _OWN_NAMES
