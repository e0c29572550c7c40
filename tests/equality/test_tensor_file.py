"""Large tensors of records are in a file, alike ones once, and read where they are used."""

import pickle

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch

from simrank.equality import tensor_file
from simrank.equality.precision import Widened
from simrank.equality.record import Taped, taped
from simrank.equality.tensor_file import TensorFile, TensorInFile
from simrank.errors import SimrankError


def drawn(seed, count=100_000, dtype=torch.float64):
    return torch.randn(count, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int8, torch.bool])
def test_what_is_read_is_what_was_kept(dtype):
    """To the byte, also as not contiguous, and with NaN."""
    store = TensorFile()
    values = drawn(0, dtype=dtype)
    values[3] = float("nan") if dtype.is_floating_point else 0
    kept = store.keep(values), store.keep(values.view(400, -1).t())
    assert all(isinstance(each, TensorInFile) for each in kept)
    wants = values, values.view(400, -1).t()
    assert all(
        torch.equal(got.read().view(torch.uint8), want.contiguous().view(torch.uint8))
        for got, want in zip(kept, wants, strict=True)
    )


def test_small_tensors_stay_in_memory():
    """A file would not save any."""
    small = torch.ones(10)
    assert TensorFile().keep(small) is small


def test_alike_tensors_are_in_the_file_once(tmp_path):
    """As those of replicas; others with the same checksum are not."""
    store = TensorFile(tmp_path / "store")
    first, same, other = store.keep(drawn(1)), store.keep(drawn(1)), store.keep(drawn(2))
    assert same is first
    assert other is not first
    assert (tmp_path / "store").stat().st_size == 2 * 8 * 100_000
    (alike,) = (each for key, each in store._known.items() if first in each)
    alike.insert(0, other)  # As if their checksums were the same.
    assert store.keep(drawn(1)) is first


def test_a_tensor_is_read_once_while_it_is_in_use():
    """And is no part of the memory afterwards."""
    kept = TensorFile().keep(drawn(3))
    held = kept.read()
    assert kept.read() is held
    del held
    assert kept._last() is None


def test_other_processes_read_a_store_with_a_name(tmp_path):
    """Those that judge layouts."""
    kept = TensorFile(tmp_path / "store").keep(drawn(4))
    found = pickle.loads(pickle.dumps(kept))
    assert found._file is not kept._file
    assert torch.equal(found.read(), drawn(4))
    with pytest.raises(AssertionError, match="a file of one process"):
        pickle.dumps(TensorFile().keep(drawn(4)))


def test_a_file_that_was_cut_short_is_an_error(tmp_path):
    """And no zeros."""
    kept = TensorFile(tmp_path / "store").keep(drawn(5))
    with (tmp_path / "store").open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(OSError, match=r"store has been cut short"):
        kept.read()


def test_a_tape_keeps_copies_in_a_store():
    """Later writes do not change them."""
    store, values = TensorFile(), drawn(6)
    found = taped(values, store)
    values.zero_()
    assert torch.equal(found.value, drawn(6))
    assert isinstance(found, Taped)
    assert isinstance(found._held, TensorInFile)


def test_types_are_those_recorded_also_where_programs_are_widened():
    """A rank reads what the single program has of a narrower type."""
    kept = TensorFile().keep(drawn(7, dtype=torch.float32))
    with Widened(torch.float64):
        found = kept.read()
    assert torch.equal(found, drawn(7, dtype=torch.float32))


def test_a_full_disk_is_said_with_what_to_do(monkeypatch):
    """The command ends with it."""

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tensor_file, "pwrite", full)
    with pytest.raises(SimrankError, match=r"No space left on device\n  to fix: set TMPDIR"):
        TensorFile().keep(drawn(8))
