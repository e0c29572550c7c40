"""The table of CUDA's operators is read from torch's own list."""

from __future__ import annotations

import pytest

from simrank.torch.cuda.op_table import ITERATES, as_cpp_rows, cuda_ops

pytestmark = pytest.mark.slow  # Parsing torch's list takes seconds.


def test_the_table_has_cudas_kernels_and_their_names():
    """Kernels that iterate are marked; others have the name of torch's errors, or may mix."""
    table = dict(cuda_ops())
    assert len(table) > 1000
    assert table["add.Tensor"] == ITERATES
    assert table["mm"] == "wrapper_CUDA_mm"
    assert table["native_layer_norm"] == "wrapper_CUDA__native_layer_norm"
    assert table["copy_"] == table["_foreach_add.List"] == ""
    assert "_to_copy" not in table
    assert '{"mm", "wrapper_CUDA_mm"},' in as_cpp_rows()
