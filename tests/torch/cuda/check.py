"""Comparisons that the tests share."""

from __future__ import annotations

import torch


def same(actual, expected, tolerance=1e-5):
    """Assert that two tensors have the same numbers, wherever they are."""
    torch.testing.assert_close(
        actual.detach().cpu().float(),
        expected.detach().cpu().float(),
        atol=tolerance,
        rtol=tolerance,
        equal_nan=True,
    )
