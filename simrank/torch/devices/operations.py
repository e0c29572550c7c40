"""torch's operations on simrank's streams: computed already, they only take their time."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from simrank.device.stream import KernelOperation
from simrank.torch.cuda.operations import form
from simrank.torch.devices.costs import Cost, cost_of

if TYPE_CHECKING:
    from simrank.device import Accesses, Device
    from simrank.device.stream import Stream
    from simrank.hardware.spec import DeviceSpec


class TorchOperation(KernelOperation):
    """A computed operation of torch; it is issued as the turn ends, where nothing may wait."""

    __slots__ = ("flops",)
    is_launch = False


class Form(NamedTuple):
    """An operation with its shapes and without addresses.

    Attributes:
        name: The operator's.
        cost: On this kind of device.
        shapes: Of its inputs.
    """

    name: str
    cost: Cost
    shapes: list[list[int]]


_forms: dict[tuple[DeviceSpec, int], Form] = {}


def form_of(device: Device, number: int) -> Form:
    """Return a form by its number; cached per kind of device."""
    key = (device.spec, number)
    found = _forms.get(key)
    if found is None:
        operation = form(number)
        shapes = [list(operand.sizes) for operand in operation.inputs]
        found = _forms[key] = Form(operation.name, cost_of(device.spec, operation), shapes)
    return found


def issue(
    stream: Stream,
    name: str,
    cost: Cost,
    shapes: list[list[int]] | None = None,
    touched: Accesses | None = None,
    phase: str = "",
) -> None:
    """Submit an operation to a stream; it shares the device with concurrent operations.

    Raises:
        RaceError: It races with what it touches, and races are errors.
    """
    device, duration_ps = stream.device, max(cost.duration_ps, 1)
    num_sms = min(max(-(-cost.num_elements // _ELEMENTS_PER_SM), 1), device.spec.num_sms)
    rate = min(cost.bytes_moved / duration_ps, device.hbm.capacity)
    demands = ((device.sms, float(num_sms)), (device.hbm, rate))
    issued = TorchOperation(stream, name, touched=touched, duration_ps=duration_ps, demands=demands)
    issued.phase, issued.flops = phase, cost.flops
    if shapes is not None:
        issued.details = {"shapes": shapes}
    stream.submit(issued)


_ELEMENTS_PER_SM = 8 * 1024  # As of simrank's own kernels (assumed there).
