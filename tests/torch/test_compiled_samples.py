"""Compiled samples of torch's own databases: as eager ones, or refused by name."""

import os

import pytest
import torch

from tests.torch.compiled_samples import kind_of_failure, verdict

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


SCAN = "290: scan simple learns=False, mode='max-autotune', dynamic=True"
BEYOND = (
    "illegal memory access in kernel 'triton_mm' at a.py:1: load of element 32768 of 'arg_B', "
    "fp32[2, 2, 2], with 8 elements, 0 to 7; program 0"
)


@pytest.mark.parametrize(
    ("name", "error", "kind"),
    [
        (SCAN, f"InductorError: IllegalAccessError: {BEYOND}", "torch's limit"),
        (SCAN, f"IllegalAccessError: {BEYOND}", "wrong"),
        (SCAN, f"InductorError: IllegalAccessError: {BEYOND.replace('32768', '9')}", "wrong"),
        (SCAN.replace("scan", "cond"), f"InductorError: IllegalAccessError: {BEYOND}", "wrong"),
    ],
)
def test_a_product_out_of_bounds_is_a_limit_while_a_scan_is_compiled_alone(name, error, kind):
    """Not as it runs, not at another element, and not of another sample."""
    assert kind_of_failure(name, "", error) == kind


@pytest.mark.slow
def test_many_compiled_samples_equal_eager_ones(spawn):
    """With every mode, and with dynamic shapes; few are refused or a limit of torch's."""
    kinds = _assert_none_is_wrong(spawn, range(NUM_SLOW))
    assert kinds.count("right") > 0.9 * len(kinds)
