"""Fits of attention's law, held to combinations of heads and width that were left out."""

import numpy as np
import pytest

from simrank.bench.attention_fit import attention_left_out, fit_attention, write_attention
from simrank.hardware.attention import folder, read_attention_fits, read_attention_widths

# Largest mean errors in percent, over the devices: small, middle, large.
OWN_PCT = {"prefill": (7, 9, 7), "full": (10, 12, 10), "decode": (14, 24, 15)}


@pytest.fixture(scope="module")
def errors():
    return attention_left_out(read_attention_fits())


@pytest.mark.parametrize("phase", OWN_PCT)
def test_combinations_that_are_left_out_are_predicted(errors, phase):
    """Other rows of the device predict them; the 90% interval covers 90 % of them."""
    own = [each for each in errors if (each.kind, each.relation) == (phase, "own")]
    means = [
        [100 * np.abs(np.expm1(-each.logs[each.classes == number])).mean() for number in range(3)]
        for each in own
    ]
    assert (np.mean(means, axis=0) < OWN_PCT[phase]).all()
    for each in own:
        widths = read_attention_widths()[each.key]
        half = np.array([widths[number] for number in each.classes])
        assert (np.abs(each.logs) <= half * 1.01).mean() > 0.89


def test_everything_is_fitted_again_to_the_last_byte(tmp_path):
    """In seconds."""
    fits = fit_attention()
    write_attention(fits, attention_left_out(fits), tmp_path)
    for name in ("constants.csv", "intervals.csv"):
        assert (tmp_path / name).read_bytes() == (folder() / "fit" / name).read_bytes()
