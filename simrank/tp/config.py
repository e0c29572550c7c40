"""Configuration of layers: the fields of megatron.core's ModelParallelConfig that they read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from simrank.device.dtypes import float32

if TYPE_CHECKING:
    from simrank.device import DType

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
