"""Random numbers of tensor-parallel ranks: a shared stream, and one per rank.

Full weights are drawn from the shared stream and cut, so that a layer has the same weights at every
tensor-parallel size.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from simrank.device.tensors import factories
from simrank.ranks import require_rank
from simrank.tp.parallel_state import (
    get_tensor_model_parallel_rank,
    model_parallel_is_initialized,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from simrank.device import Tensor

_SHARED = "tensor parallel shared generator"
_OWN = "tensor parallel own generator"
_CURRENT = "generator"  # What simrank's factories draw from.
_TENSOR_PARALLEL_OFFSET = 2718  # As megatron.core's model_parallel_cuda_manual_seed.
DEFAULT_SEED = 1234  # As megatron's --seed.


def model_parallel_manual_seed(seed: int) -> None:
    """Seed the stream that ranks share with `seed`, each rank's own with seed + 2718 + tp_rank."""
    local = require_rank("model_parallel_manual_seed").local
    own = seed + _TENSOR_PARALLEL_OFFSET
    if model_parallel_is_initialized():
        own += get_tensor_model_parallel_rank()
    local[_SHARED] = np.random.Generator(np.random.PCG64(seed))
    local[_OWN] = np.random.Generator(np.random.PCG64(own))


@contextmanager
def fork(*, shared: bool) -> Iterator[None]:
    """Draw from the stream that ranks share, or from this rank's own, within the block.

    The stream goes on where the last block left it.
    """
    local = require_rank("fork").local
    if _SHARED not in local:
        model_parallel_manual_seed(DEFAULT_SEED)
    before = local.get(_CURRENT)
    local[_CURRENT] = local[_SHARED if shared else _OWN]
    try:
        yield
    finally:
        if before is None:
            del local[_CURRENT]
        else:
            local[_CURRENT] = before


def init_method_normal(sigma: float) -> Callable[[Tensor], None]:
    """Return a function that fills a tensor with normal numbers (mean 0, deviation sigma)."""

    def fill(tensor: Tensor) -> None:
        drawn = factories.randn(*tensor.shape, device=tensor.device)
        tensor.copy_(drawn * sigma)

    return fill
