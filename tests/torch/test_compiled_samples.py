"""Compiled samples of torch's own databases: as eager ones, or refused by name."""

import os

import pytest
import torch

from tests.torch.compiled_samples import verdict

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own.

QUICK = (0, 3)  # A module, and a kernel.
NUM_SLOW = int(os.environ.get("SIMRANK_COMPILED_SAMPLES", "24"))  # 500 take half an hour.


def _assert_none_is_wrong(spawn, seeds):
    def program(rank):
        torch.cuda.set_device(rank)
        found.extend(verdict(seed) for seed in seeds)

    found = []
    spawn(program, 1)
    assert not [text for kind, text in found if kind == "wrong"]
    return [kind for kind, _ in found]


def test_compiled_samples_equal_eager_ones(spawn):
    """Two of them."""
    assert _assert_none_is_wrong(spawn, QUICK) == ["right"] * len(QUICK)


@pytest.mark.slow
def test_many_compiled_samples_equal_eager_ones(spawn):
    """With every mode, and with dynamic shapes; few are refused or a limit of torch's."""
    kinds = _assert_none_is_wrong(spawn, range(NUM_SLOW))
    assert kinds.count("right") > 0.9 * len(kinds)
