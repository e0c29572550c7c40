"""All of torch's operators without values: the same shapes, launches, memory and random numbers."""

from __future__ import annotations

import gc

import pytest

# Differ: CPU torch returns bookkeeping of other shapes than CUDA and torch's Meta kernel do.
OTHER_SHAPES = {"nn.functional.embedding_bag"}
# Refused by name: torch has no Meta kernel for them.
WITHOUT_META = {
    "cummax", "cummin", "geqrf", "histogram", "histogramdd", "linalg.lstsq",
    "linalg.lstsq.grad_oriented", "logcumsumexp", "nn.functional.ctc_loss",
    "nn.functional.fractional_max_pool3d", "nn.functional.multi_margin_loss",
    "nn.functional.multilabel_margin_loss", "to_sparse",
}  # fmt: skip


@pytest.mark.parametrize(
    ("every", "samples", "at_least"),
    [(24, 1, 40), pytest.param(1, 6, 5600, marks=[pytest.mark.slow, pytest.mark.timeout(600)])],
)
def test_operators_leave_the_same_without_values(capsys, every, samples, at_least):
    """Shapes, strides, aliases, what was launched, bytes and peaks; others are refused by name."""
    from tests.torch.cuda import valueless

    gc.disable()  # It would free tensors at other moments.
    try:
        operators = valueless.op_db[::every]
        known = valueless.outcomes(operators, samples, has_values=True)
        unknown = valueless.outcomes(operators, samples, has_values=False)
    finally:
        gc.enable()
    equal, reads, wrong = 0, 0, {}
    for key, outcome in known.items():
        other = unknown[key]
        if isinstance(outcome, Exception):
            continue  # The host refuses it, too.
        if isinstance(other, valueless.Refused):
            reads += 1
        elif isinstance(other, NotImplementedError):
            assert "cannot run without values" in str(other)
            assert key[0] in WITHOUT_META
        elif outcome == other:
            equal += 1
        elif key[0] not in OTHER_SHAPES:
            wrong[key] = (outcome, other)
    with capsys.disabled():
        print(f"\n{equal} calls leave the same without values, {reads} read a value")  # noqa: T201 - the figure.
    assert wrong == {}
    assert equal > at_least


@pytest.mark.parametrize(
    "count", [60, pytest.param(2000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]
)
@pytest.mark.filterwarnings("ignore")
def test_what_can_be_read_is_right(count):
    """Random programs on tensors that are known, unknown, or known in part: no wrong number."""
    from tests.torch.cuda import random_values

    right = random_values.values_of(range(count), has_values=True)
    seen = random_values.values_of(range(count), has_values=False)
    known = unknown = 0
    for seed, values in seen.items():
        if values is None:
            continue
        assert len(values) == len(right[seed])
        for value, expected in zip(values, right[seed], strict=True):
            unknown += value is None
            if value is not None:
                known += 1
                assert value == pytest.approx(expected, rel=0, abs=0, nan_ok=True), seed
    assert known > 100 * count
    assert unknown > 50 * count
