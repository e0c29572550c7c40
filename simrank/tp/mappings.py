"""Communication of activations, forward and backward: megatron.core's `mappings`.

Each is called with an activation, and its `backward` with the gradient of what it returned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import simrank.distributed as dist
from simrank.device.tensors import factories, joining
from simrank.tp.parallel_state import get_tensor_model_parallel_group

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.device import Tensor
    from simrank.distributed import ProcessGroup


def divide(numerator: int, denominator: int) -> int:
    """Return the quotient of two integers that leaves no rest.

    Raises:
        AssertionError: It leaves one; megatron.core's words.
    """
    assert numerator % denominator == 0, f"{numerator} is not divisible by {denominator}"
    return numerator // denominator


def _group(group: ProcessGroup | None) -> ProcessGroup:
    chosen = get_tensor_model_parallel_group() if group is None else group
    assert chosen is not None, "tensor model parallel group is not initialized"
    return chosen


def keep(tensor: Tensor, group: ProcessGroup) -> Tensor:
    """Return the tensor itself."""
    del group
    return tensor


def reduce(tensor: Tensor, group: ProcessGroup) -> Tensor:
    """Return the sum over the group, in a new tensor."""
    if dist.get_world_size(group) == 1:
        return tensor
    total = tensor.clone()
    dist.all_reduce(total, group=group)
    return total


def split_first_dim(tensor: Tensor, group: ProcessGroup) -> Tensor:
    """Return this rank's part along the first dim."""
    size = dist.get_world_size(group)
    part = divide(tensor.shape[0], size)
    return tensor.narrow(0, dist.get_rank(group) * part, part).contiguous()


def split_last_dim(tensor: Tensor, group: ProcessGroup) -> Tensor:
    """Return this rank's part along the last dim."""
    size = dist.get_world_size(group)
    part = divide(tensor.shape[-1], size)
    return tensor.narrow(-1, dist.get_rank(group) * part, part).contiguous()


def gather_first_dim(tensor: Tensor, group: ProcessGroup) -> Tensor:
    """Return the parts of all ranks, one after the other along the first dim."""
    size = dist.get_world_size(group)
    if size == 1:
        return tensor
    shape = (tensor.shape[0] * size, *tensor.shape[1:])
    whole = factories.empty(shape, dtype=tensor.dtype, device=tensor.device)
    dist.all_gather_into_tensor(whole, tensor.contiguous(), group=group)
    return whole


def gather_last_dim(tensor: Tensor, group: ProcessGroup) -> Tensor:
    """Return the parts of all ranks, one after the other along the last dim."""
    size = dist.get_world_size(group)
    if size == 1:
        return tensor
    parts = gather_first_dim(tensor.reshape(1, *tensor.shape), group)
    return joining.cat([parts[rank] for rank in range(size)], dim=-1)


def reduce_scatter_first_dim(tensor: Tensor, group: ProcessGroup) -> Tensor:
    """Return this rank's part, along the first dim, of the sum over the group."""
    size = dist.get_world_size(group)
    if size == 1:
        return tensor
    shape = (divide(tensor.shape[0], size), *tensor.shape[1:])
    part = factories.empty(shape, dtype=tensor.dtype, device=tensor.device)
    dist.reduce_scatter_tensor(part, tensor.contiguous(), group=group)
    return part


class Mapping:
    """A movement of activations, with the movement of their gradients.

    Args:
        name: megatron.core's name.
        forward: What is done to an activation.
        backward: What is done to its gradient.
    """

    def __init__(
        self,
        name: str,
        forward: Callable[[Tensor, ProcessGroup], Tensor],
        backward: Callable[[Tensor, ProcessGroup], Tensor],
    ) -> None:
        self.__name__ = name
        self._forward = forward
        self._backward = backward

    def __call__(self, input_: Tensor, group: ProcessGroup | None = None) -> Tensor:
        """Move an activation.

        Args:
            input_: This rank's tensor.
            group: Default: the tensor-parallel group.
        """
        return self._forward(input_, _group(group))

    def backward(self, grad_output: Tensor, group: ProcessGroup | None = None) -> Tensor:
        """Return the gradient of the input for that of the output."""
        return self._backward(grad_output, _group(group))

    def __repr__(self) -> str:
        """Return its name."""
        return f"<mapping {self.__name__}>"


copy_to_tensor_model_parallel_region = Mapping("copy_to_tensor_model_parallel_region", keep, reduce)
reduce_from_tensor_model_parallel_region = Mapping(
    "reduce_from_tensor_model_parallel_region", reduce, keep
)
scatter_to_tensor_model_parallel_region = Mapping(
    "scatter_to_tensor_model_parallel_region", split_last_dim, gather_last_dim
)
gather_from_tensor_model_parallel_region = Mapping(
    "gather_from_tensor_model_parallel_region", gather_last_dim, split_last_dim
)
scatter_to_sequence_parallel_region = Mapping(
    "scatter_to_sequence_parallel_region", split_first_dim, gather_first_dim
)
gather_from_sequence_parallel_region = Mapping(
    "gather_from_sequence_parallel_region", gather_first_dim, reduce_scatter_first_dim
)
reduce_scatter_to_sequence_parallel_region = Mapping(
    "reduce_scatter_to_sequence_parallel_region", reduce_scatter_first_dim, gather_first_dim
)
