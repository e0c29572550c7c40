"""Files of torch.save in runs without data."""

from __future__ import annotations

import shutil

import pytest
import torch

if shutil.which("g++") is None:
    pytest.skip("no compiler for simulated devices", allow_module_level=True)

import simrank
from simrank.errors import UnknownValueError


@pytest.fixture
def run():
    """Run a program on one rank without values."""

    def run(function, *args, **settings):
        with simrank.Context.for_ranks(1, data=False, **settings) as context:
            context.multiprocessing.spawn(function, args, 1, share_args=True)
        return context

    return run


def _big():
    return torch.randn(512, 512, device="cuda")


@pytest.mark.parametrize("settings", [{}, {"unknown": 0}])
def test_a_file_has_the_sizes_of_what_is_unknown(run, tmp_path, settings):
    """It is small; what is loaded of it is unknown, and what was known is not."""
    path = tmp_path / "model.pt"

    def program(_rank):
        torch.cuda.set_device(0)
        model = torch.nn.Linear(8192, 8192).cuda()
        torch.save({"model": model.state_dict(), "step": torch.tensor([3])}, path)
        loaded = torch.load(path, map_location="cuda")
        assert loaded["step"].item() == 3
        model.load_state_dict(loaded["model"])
        assert loaded["model"]["weight"].shape == (8192, 8192)
        assert torch.equal(loaded["model"]["bias"], model.bias)  # It is small, and known.
        for tensor in (loaded["model"]["weight"], torch.load(path)["model"]["weight"].cpu()):
            if settings:
                assert tensor[0, 0].item() == 0
                continue
            with pytest.raises(UnknownValueError):
                tensor[0, 0].item()

    run(program, **settings)
    assert path.stat().st_size < 50_000


def test_a_file_of_a_run_without_values_is_none_for_torch(run, tmp_path):
    """It finds no record, and reads no number that is none."""
    path = tmp_path / "big.pt"
    run(lambda _rank: torch.save(_big(), path))
    with pytest.raises(RuntimeError, match="data/0"):
        torch.load(path, map_location="cpu")
