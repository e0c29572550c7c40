"""Costs of torch's operators beside kernels that were measured on one H200."""

import csv
import re
from math import prod
from statistics import fmean

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from simrank.config.files import configs_dir
from simrank.hardware.load import load_cluster
from simrank.torch.cuda.operations import OperationFlag
from simrank.torch.devices.costs import DTYPES, cost_of
from tests.torch.devices.test_costs import operation, tensor

SPEC = load_cluster("hgx_h200").device
NUMBERS = {name: number for number, (name, _) in reversed(DTYPES.items())}
GAP_US = (
    0.74  # Between kernels that follow each other; a measured time is that of the kernel alone.
)
FITTED, HELD_OUT = "yes", "no"


def parsed(name, operands, flags):
    """Return the operation of a row: `2*float32[8x4]! int64[8]@2 -> float32[8x4]`."""
    inputs, _, outputs = operands.partition("->")
    flag = OperationFlag.TF32 if flags == "tf32" else OperationFlag(0)
    return operation(name, list(_tensors(inputs)), list(_tensors(outputs, is_made=True)), flag)


def _tensors(text, *, is_made=False):
    for word in text.split():
        count, dtype, sizes, strides, mark = re.fullmatch(
            r"(?:(\d+)\*)?(\w+)\[([\dx]*)\](?:@([\dx]+))?(!?)", word
        ).groups()
        one = tensor(
            *_numbers(sizes),
            dtype=NUMBERS[dtype],
            strides=_numbers(strides) if strides else None,
            is_written=is_made or bool(mark),
        )
        yield from [one] * int(count or 1)


def _numbers(text):
    return tuple(map(int, filter(None, text.split("x"))))


def rows():
    """Yield each row and the error of its prediction, as a share of the measured time."""
    with (configs_dir() / "torch" / "h200.csv").open() as file:
        for row in csv.DictReader(file):
            found = parsed(row["operator"], row["operands"], row["flags"])
            predicted_us = cost_of(SPEC, found).duration_ps / 1e6
            yield row, predicted_us / (float(row["measured_us"]) + GAP_US) - 1


# Bounds of the mean and of the largest error. Gradients that are squared are charged as two
# tensors (`addcmul_`), and rows of 16 MiB as if L2 held none of them.
@pytest.mark.parametrize(("part", "mean", "most"), [(FITTED, 0.09, 0.35), (HELD_OUT, 0.07, 0.35)])
def test_operators_take_what_was_measured(part, mean, most):
    """On the rows that constants were fitted to, and on every second row of an operator."""
    errors = {
        (row["operator"], row["operands"], row["flags"]): error
        for row, error in rows()
        if row["fitted"] == part
    }
    assert fmean(map(abs, errors.values())) < mean
    assert {each: error for each, error in errors.items() if abs(error) > most} == {}


def test_rates_of_rows_are_those_of_their_times():
    """Operations of products, counted bytes of everything else."""
    for row, _ in rows():
        found = parsed(row["operator"], row["operands"], row["flags"])
        rate, unit = row["achieved"].split()
        work = cost_of(SPEC, found).bytes_moved
        if unit == "TFLOPS":
            (m, k), (_, n) = (each.sizes for each in found.inputs)
            work = 2 * prod((m, n, k))
        assert work / float(row["measured_us"]) / 1e6 == pytest.approx(float(rate), rel=0.05)
