"""The table of CUDA's operators is read from torch's own list."""

from __future__ import annotations

import pytest

from simrank.torch.cuda.op_table import ITERATES, cuda_ops, sparse_cuda_ops, write_tables

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


def test_sparse_kernels_are_listed():
    """Those of coordinate layout, which CPU torch has too."""
    names = set(sparse_cuda_ops())
    assert {"_coalesce", "_values", "is_coalesced"} <= names
    assert "mm.dtype" not in names


def test_tables_are_rows_of_cpp(tmp_path):
    """As the fallback includes them."""
    write_tables(tmp_path)
    assert '{"mm", "wrapper_CUDA_mm"},' in (tmp_path / "cuda_ops.inc").read_text()
    assert '"_coalesce",' in (tmp_path / "sparse_ops.inc").read_text()
