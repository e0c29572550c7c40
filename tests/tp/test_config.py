"""What layers are built with."""

import pytest

from simrank.tp import ModelParallelConfig


def test_an_unknown_way_to_multiply_is_refused_with_the_choices():
    """Before any layer is made."""
    with pytest.raises(ValueError, match="gemm='cublas'; choices: library, triton"):
        ModelParallelConfig(gemm="cublas")


def test_a_config_is_frozen():
    """Layers share one: what one of them changed would be changed for all."""
    with pytest.raises(AttributeError):
        ModelParallelConfig().sequence_parallel = True
