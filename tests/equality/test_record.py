"""Records on disk have the tensors that were written, of any type and shape."""

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch

from simrank.equality.record import is_readable, read_record, write_record


def test_tensors_come_back_with_their_type_and_shape(tmp_path):
    """Views, empty ones and scalars, too."""
    written = {
        "view": torch.arange(12.0).view(3, 4)[:, 1:3],
        "narrow": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(7),
        "other": ["text", 3],
    }
    write_record(written, tmp_path / "record")
    found = read_record(tmp_path / "record")
    assert found["other"] == ["text", 3]
    for name in ("view", "narrow", "empty", "scalar"):
        assert found[name].dtype == written[name].dtype
        assert torch.equal(found[name], written[name])


def test_a_record_without_tensors_comes_back(tmp_path):
    """An empty file could not be mapped."""
    write_record([1, 2], tmp_path / "record")
    assert read_record(tmp_path / "record") == [1, 2]


def test_a_tensor_whose_storage_is_freed_is_not_read():
    """FSDP frees that of what it has gathered; a copy would read beyond it."""
    freed = torch.ones(1000)
    assert is_readable(freed)
    freed.untyped_storage().resize_(0)
    assert not is_readable(freed)
    assert is_readable(torch.empty(0))
