"""Linear layers split over ranks: ColumnParallelLinear and RowParallelLinear.

There is no autograd: `forward` keeps what `backward` needs, and `backward` takes the gradient of
the output, adds to the `grad` of the parameters, and returns the gradient of the input.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import simrank.distributed as dist
from simrank.device import Tensor, current_device
from simrank.device.dtypes import float32
from simrank.device.tensors import factories
from simrank.ranks import require_rank
from simrank.tp import mappings
from simrank.tp.mappings import divide
from simrank.tp.parallel_state import get_tensor_model_parallel_group
from simrank.tp.random import fork, init_method_normal

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.device import DType
    from simrank.distributed import ProcessGroup, Work


# ---- Configuration of layers ----

GEMMS = ("library", "triton")


@dataclass(frozen=True)
class ModelParallelConfig:
    """Settings that all layers of a model share.

    Attributes:
        tensor_model_parallel_size: Ranks that split each layer; for reading only, the groups are
            made by `parallel_state.initialize_model_parallel`.
        sequence_parallel: Whether activations between layers are split along their first dim.
        params_dtype: Type of the parameters.
        perform_initialization: Whether weights are drawn; else their memory stays as it is.
        async_tensor_model_parallel_allreduce: Whether the reduction of a column-parallel layer's
            input gradient runs beside its weight gradient.
        gemm: "library": products as the device's library has them; "triton": a Triton kernel.
    """

    tensor_model_parallel_size: int = 1
    sequence_parallel: bool = False
    params_dtype: DType = float32
    perform_initialization: bool = True
    async_tensor_model_parallel_allreduce: bool = True
    gemm: str = "library"

    def __post_init__(self) -> None:
        """Check the choices.

        Raises:
            ValueError: There is no such way to multiply.
        """
        if self.gemm not in GEMMS:
            raise ValueError(f"gemm={self.gemm!r}; choices: {', '.join(GEMMS)}")


# ---- linear layers split over ranks: ColumnParallelLinear and RowParallelLinear ----

_DEFAULT_SIGMA = 0.02  # As megatron's --init-method-std.


class Parameter(Tensor):
    """A parameter of a layer, split along one dim or whole: a tensor that has a gradient.

    Attributes:
        grad: Its gradient, summed over calls of `backward`; None before the first.
        partition_dim: The dim along which ranks hold parts, or None.
    """

    __slots__ = ("_values", "grad", "partition_dim")
    RESULT = Tensor  # Of operations: not another parameter.
    grad: Tensor | None  # type: ignore[assignment]  # Tensors have none.

    def __init__(self, data: Tensor, partition_dim: int | None) -> None:
        self.grad = None
        self.partition_dim = partition_dim
        self.data = data

    @property
    def data(self) -> Tensor:
        """Return its values, as a tensor without a gradient; another tensor can be put there."""
        return self._values

    @data.setter
    def data(self, values: Tensor) -> None:
        self._values = values
        super().__init__(values.storage, values.dtype, values.array)
        self.cuda_device = values.cuda_device

    def add_grad(self, grad: Tensor) -> None:
        """Add to the gradient."""
        if self.grad is None:
            self.grad = grad
        else:
            self.grad.add_(grad)


class _ParallelLinear:
    """Base class of both layers: sizes, parameters, products.

    Attributes:
        weight: [output size, input size], this rank's part.
        bias: [output size], this rank's part or the whole; None without one.
        config: What it was built with.
    """

    partition_dim: int

    def __init__(
        self,
        input_size: int,
        output_size: int,
        *,
        config: ModelParallelConfig | None,
        init_method: Callable[[Tensor], None] | None,
        skip_bias_add: bool,
        tp_group: ProcessGroup | None,
    ) -> None:
        self.config = ModelParallelConfig() if config is None else config
        group = get_tensor_model_parallel_group() if tp_group is None else tp_group
        assert group is not None, "tensor model parallel group is not initialized"
        self.group = group
        self.world_size = dist.get_world_size(group)
        self.input_size, self.output_size = input_size, output_size
        self.skip_bias_add = skip_bias_add
        self.bias: Parameter | None = None
        full = (output_size, input_size)
        self.weight = Parameter(
            self._initialized(full, init_method or init_method_normal(_DEFAULT_SIGMA)),
            self.partition_dim,
        )
        self._input: Tensor | None = None

    def parameters(self) -> list[Parameter]:
        """Return weight and bias."""
        return [self.weight] if self.bias is None else [self.weight, self.bias]

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self.parameters():
            parameter.grad = None

    def __call__(self, input_: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return `forward(input_)`."""
        return self.forward(input_)

    def forward(self, input_: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the output and, if its addition is skipped, the bias."""
        raise NotImplementedError

    def backward(self, grad_output: Tensor) -> Tensor:
        """Return the gradient of the input, and add to the parameters' gradients."""
        raise NotImplementedError

    # ---- parts ----

    def _initialized(
        self, full_shape: tuple[int, int], init_method: Callable[[Tensor], None]
    ) -> Tensor:
        """Return this rank's part of a weight that is the same for every number of ranks."""
        shape = list(full_shape)
        shape[self.partition_dim] = divide(shape[self.partition_dim], self.world_size)
        dtype, device = self.config.params_dtype, current_device()
        if not self.config.perform_initialization or not device.has_values:
            return factories.empty(shape, dtype=dtype)
        with fork(shared=True):
            full = factories.empty(full_shape, dtype=float32, device="cpu")
            init_method(full)
        start = dist.get_rank(self.group) * shape[self.partition_dim]
        part = full.narrow(self.partition_dim, start, shape[self.partition_dim])
        return part.contiguous().to(dtype=dtype).to(device)

    def _check(self, tensor: Tensor, what: str, last_dim: int) -> None:
        """Raise unless a tensor has the size and type that the layer works on.

        Raises:
            RuntimeError: It has not; names the layer, the rank and both.
        """
        where = f"{type(self).__name__} on rank {require_rank('a layer').rank}"
        if tensor.shape[-1] != last_dim:
            raise RuntimeError(
                f"{where}: the {what} has last dim {tensor.shape[-1]} (shape "
                f"{tuple(tensor.shape)}), expected {last_dim}: the layer is {self.input_size} x "
                f"{self.output_size} over {self.world_size} rank(s)"
            )
        if tensor.dtype is not self.weight.data.dtype:
            raise RuntimeError(
                f"{where}: the {what} is {tensor.dtype.name}, the weight is "
                f"{self.weight.data.dtype.name}\n  to fix: convert one of them"
            )

    def _saved_input(self) -> Tensor:
        """Return the input that `forward` saved.

        Raises:
            RuntimeError: There is nothing: `forward` was not called since.
        """
        if self._input is None:
            raise RuntimeError(f"{type(self).__name__}: backward without a forward before it")
        kept, self._input = self._input, None
        return kept

    def _product(self, left: Tensor, right: Tensor) -> Tensor:
        """Return the product of a stack of rows with a matrix."""
        if self.config.gemm == "library":
            return left.matmul(right)
        from simrank.tp.gemm import triton_matmul  # noqa: PLC0415 - it needs triton

        return triton_matmul(left, right)

    def _add_weight_grads(self, grad_output: Tensor, input_: Tensor) -> None:
        """Add the gradients that follow from an output's gradient and its input."""
        rows = grad_output.reshape(-1, grad_output.shape[-1])
        self.weight.add_grad(self._product(rows.T, input_.reshape(-1, input_.shape[-1])))
        if self.bias is not None and not self.skip_bias_add:
            self.bias.add_grad(rows.sum(0))


class ColumnParallelLinear(_ParallelLinear):
    """Y = X A + b with A split along its columns: each rank has a part of the output features.

    Args:
        input_size: Features of the input.
        output_size: Features of the output, over all ranks.
        config: Settings of the model; default: all defaults.
        init_method: Fills the full weight, on the host; default: normal, 0.02.
        bias: Whether there is one; it starts as zeros.
        gather_output: Whether every rank returns all output features.
        skip_bias_add: Whether the bias is returned instead of added.
        disable_grad_reduce: Whether the input's gradient is left as this rank's part of a sum.
        tp_group: Default: the tensor-parallel group.

    Shapes: (s first dim, B further dims, i input features, o output features, t ranks)
        input: [s, B, i], with sequence parallelism [s / t, B, i]
        output: [s, B, o / t], with gather_output [s, B, o]

    Simulated cost: forward one product, with sequence parallelism after an all-gather; backward two
    products, and an all-reduce (a reduce-scatter) that runs beside the second one.
    """

    partition_dim = 0

    def __init__(
        self,
        input_size: int,
        output_size: int,
        *,
        config: ModelParallelConfig | None = None,
        init_method: Callable[[Tensor], None] | None = None,
        bias: bool = True,
        gather_output: bool = False,
        skip_bias_add: bool = False,
        disable_grad_reduce: bool = False,
        tp_group: ProcessGroup | None = None,
    ) -> None:
        super().__init__(
            input_size, output_size, config=config, init_method=init_method,
            skip_bias_add=skip_bias_add, tp_group=tp_group,
        )  # fmt: skip
        if gather_output and self.config.sequence_parallel:
            raise ValueError("gather_output does not go with sequence_parallel")
        self.gather_output = gather_output
        self.disable_grad_reduce = disable_grad_reduce
        self.output_size_per_partition = divide(output_size, self.world_size)
        if bias:
            zeros = factories.zeros(self.output_size_per_partition, dtype=self.config.params_dtype)
            self.bias = Parameter(zeros, 0)

    def forward(self, input_: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return this rank's part of the output, or the whole, and the bias if it is skipped.

        Raises:
            RuntimeError: The input has another size or type than the layer.
        """
        self._check(input_, "input", self.input_size)
        self._input = input_
        total = self._total_input(input_)
        output = self._product(total, self.weight.data.T)
        if self.bias is not None and not self.skip_bias_add:
            output = output + self.bias.data
        if self.gather_output:
            output = mappings.gather_last_dim(output, self.group)
        returned = self.bias.data if self.bias is not None and self.skip_bias_add else None
        return output, returned

    def _total_input(self, input_: Tensor) -> Tensor:
        if not self.config.sequence_parallel:
            return input_
        return mappings.gather_first_dim(input_, self.group)

    def backward(self, grad_output: Tensor) -> Tensor:
        """Return the input's gradient, and add to the gradients of weight and bias.

        Raises:
            RuntimeError: The gradient has another size or type, or there was no forward.
        """
        if self.gather_output:
            self._check(grad_output, "output's gradient", self.output_size)
            grad_output = mappings.split_last_dim(grad_output, self.group)
        self._check(grad_output, "output's gradient", self.output_size_per_partition)
        total, gathering = self._start_gather(self._saved_input())
        grad_input = self._product(grad_output, self.weight.data)
        reduced, work = self._reduce_grad(grad_input)
        if gathering is not None:
            gathering.wait()
        self._add_weight_grads(grad_output, total)
        if work is not None:
            work.wait()
        return reduced

    def _start_gather(self, input_: Tensor) -> tuple[Tensor, Work | None]:
        """Start to gather the whole input again, beside the product that needs it not."""
        if not self.config.sequence_parallel or self.world_size == 1:
            return input_, None
        shape = (input_.shape[0] * self.world_size, *input_.shape[1:])
        whole = factories.empty(shape, dtype=input_.dtype)
        overlaps = self.config.async_tensor_model_parallel_allreduce
        work = dist.all_gather_into_tensor(
            whole, input_.contiguous(), group=self.group, async_op=overlaps
        )
        return whole, work

    def _reduce_grad(self, grad_input: Tensor) -> tuple[Tensor, Work | None]:
        """Start the sum of the input's gradient over the ranks; without overlap, end it too."""
        if self.world_size == 1 or self.disable_grad_reduce:
            return grad_input, None
        overlaps = self.config.async_tensor_model_parallel_allreduce
        if not self.config.sequence_parallel:
            return grad_input, dist.all_reduce(grad_input, group=self.group, async_op=overlaps)
        shape = (divide(grad_input.shape[0], self.world_size), *grad_input.shape[1:])
        part = factories.empty(shape, dtype=grad_input.dtype)
        work = dist.reduce_scatter_tensor(
            part, grad_input.contiguous(), group=self.group, async_op=overlaps
        )
        return part, work


class RowParallelLinear(_ParallelLinear):
    """Y = X A + b with A split along its rows: each rank has a part of the input features.

    Args:
        input_size: Features of the input, over all ranks.
        output_size: Features of the output.
        config: Settings of the model; default: all defaults.
        init_method: Fills the full weight, on the host; default: normal, 0.02.
        bias: Whether there is one; it starts as zeros, and every rank has all of it.
        input_is_parallel: Whether each rank gives its part of the input features.
        skip_bias_add: Whether the bias is returned instead of added.
        tp_group: Default: the tensor-parallel group.

    Shapes: (s first dim, B further dims, i input features, o output features, t ranks)
        input: [s, B, i / t], or [s, B, i] where it is not parallel
        output: [s, B, o], with sequence parallelism [s / t, B, o]

    Simulated cost: forward one product and an all-reduce (a reduce-scatter); backward two products,
    with sequence parallelism after an all-gather.
    """

    partition_dim = 1

    def __init__(
        self,
        input_size: int,
        output_size: int,
        *,
        config: ModelParallelConfig | None = None,
        init_method: Callable[[Tensor], None] | None = None,
        bias: bool = True,
        input_is_parallel: bool = True,
        skip_bias_add: bool = False,
        tp_group: ProcessGroup | None = None,
    ) -> None:
        super().__init__(
            input_size, output_size, config=config, init_method=init_method,
            skip_bias_add=skip_bias_add, tp_group=tp_group,
        )  # fmt: skip
        if self.config.sequence_parallel and not input_is_parallel:
            raise RuntimeError("To enable `sequence_parallel`, `input_is_parallel` must be `True`")
        self.input_is_parallel = input_is_parallel
        self.input_size_per_partition = divide(input_size, self.world_size)
        if bias:
            self.bias = Parameter(
                factories.zeros(output_size, dtype=self.config.params_dtype), None
            )

    def forward(self, input_: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the output, and the bias if it is skipped.

        Raises:
            RuntimeError: The input has another size or type than the layer.
        """
        if not self.input_is_parallel:
            self._check(input_, "input", self.input_size)
            input_ = mappings.split_last_dim(input_, self.group)
        self._check(input_, "input", self.input_size_per_partition)
        self._input = input_
        partial = self._product(input_, self.weight.data.T)
        if self.config.sequence_parallel:
            output = mappings.reduce_scatter_first_dim(partial, self.group)
        else:
            if self.world_size > 1:
                dist.all_reduce(partial, group=self.group)
            output = partial
        if self.bias is None:
            return output, None
        if self.skip_bias_add:
            return output, self.bias.data
        return output + self.bias.data, None

    def backward(self, grad_output: Tensor) -> Tensor:
        """Return the input's gradient, and add to the gradients of weight and bias.

        Raises:
            RuntimeError: The gradient has another size or type, or there was no forward.
        """
        self._check(grad_output, "output's gradient", self.output_size)
        input_ = self._saved_input()
        if self.config.sequence_parallel:
            grad_output = mappings.gather_first_dim(grad_output, self.group)
        grad_input = self._product(grad_output, self.weight.data)
        self._add_weight_grads(grad_output, input_)
        if not self.input_is_parallel:
            grad_input = mappings.gather_last_dim(grad_input, self.group)
        return grad_input
