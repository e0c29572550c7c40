"""Fits of the products' rule, held to rows that were not fitted."""

from functools import cache

import numpy as np
import pytest

from simrank.calibration.kernel_fits import (
    are_siblings,
    attention_left_out,
    fit_attention,
    fit_constants,
    fit_table,
    half_widths,
    least_squares,
    other_errors,
    own_errors,
    sibling_errors,
    tables,
    write_attention,
    write_fits,
)
from simrank.hardware.attention import folder, read_attention_widths
from simrank.hardware.gemm_rows import ANY, measured_devices, read_fits, read_widths

# Largest mean errors in percent of (n, k) pairs that were left out, over all devices: m <= 32, the
# middle, all of m, n, k >= 1024.
OWN_PCT = {
    "bfloat16": (7, 7, 5), "fp8": (9.5, 8, 6), "fp8_block": (7, 9, 9), "nvfp4": (6, 8, 7),
}  # fmt: skip
SIBLING_PCT = {"bfloat16": (8, 9, 10), "fp8": (12, 10, 8), "nvfp4": (8, 9, 8)}


def table_of(kind, device):
    return next(each for each in tables(kind) if each.device.name == device)


@cache
def left_out(kind, device):
    """Return the errors of a device's rows that are left out."""
    return own_errors(table_of(kind, device), read_fits()[kind, device])


def means_pct(left, num_classes=3):
    """Return mean errors per size class."""
    errors = 100 * np.abs(np.expm1(-left.logs))
    return [errors[left.classes == number].mean() for number in range(num_classes)]


@pytest.mark.parametrize("kind", OWN_PCT)
def test_pairs_that_are_left_out_are_predicted(kind):
    """On average over the devices, by their other rows."""
    found = [
        means_pct(left_out(kind, table.device.name))
        for table in tables(kind)
        if table.device.name != "mi355x"
    ]
    assert (np.mean(found, axis=0) < OWN_PCT[kind]).all()


@pytest.mark.parametrize("kind", SIBLING_PCT)
def test_a_sibling_is_predicted_by_scaled_rows(kind):
    """The 90% interval of GB200, predicted by rows of B200, covers about 90 % of its rows."""
    donor, table = table_of(kind, "b200_sxm"), table_of(kind, "gb200")
    left = sibling_errors(table.part(slice(None, None, 3)), donor, read_fits()[kind, "b200_sxm"])
    assert (np.array(means_pct(left)) < SIBLING_PCT[kind]).all()
    widths = read_widths()[kind, "sibling", ANY]
    inside = np.abs(left.logs) < np.array([widths[number] for number in left.classes])
    assert inside.mean() > 0.85


def test_intervals_cover_nine_of_ten_rows_of_each_device_and_are_no_wider():
    """Of rows whose pair was left out; a fifth narrower would cover clearly less."""
    for name in ("h100_sxm", "a100_sxm"):
        left = left_out("bfloat16", name)
        widths = read_widths()["bfloat16", "own", name]
        half = np.array([widths[number] for number in left.classes])
        assert 0.89 < (np.abs(left.logs) <= half * 1.01).mean() < 0.92
        assert (np.abs(left.logs) < 0.8 * half).mean() < 0.88
        # Winkler's score of a 90% interval: its width, and 20 times what is outside.
        score = 2 * half + 20 * np.maximum(np.abs(left.logs) - half, 0)
        assert score.mean() < 0.7


def test_products_of_another_program_on_other_machines_are_predicted():
    """XLA's, none of which was fitted: H100 within 6 percent, B200 within 11."""
    errors = {each.device: np.abs(np.expm1(-each.logs)).mean() for each in other_errors()}
    assert errors["h100 (XLA)"] < 0.06
    assert errors["b200 (XLA)"] < 0.11


def test_constants_are_found_again():
    """Of a problem whose solution is known, in spite of outliers."""
    x = np.linspace(1, 5, 200)
    measured = 3.0 * x**0.5
    measured[::20] *= 3
    found = least_squares(
        lambda logs: logs[0] + np.exp(logs[1]) * np.log(x) - np.log(measured), np.zeros(2)
    )
    assert np.exp(found) == pytest.approx([3.0, 0.5], rel=0.02)


def test_siblings_share_an_architecture_and_its_ratio_of_units():
    """B300 has more of those for nvfp4."""
    devices = measured_devices()
    assert are_siblings(devices["b200_sxm"], devices["b300_sxm"], "fp8")
    assert not are_siblings(devices["b200_sxm"], devices["b300_sxm"], "nvfp4")
    assert not are_siblings(devices["h100_sxm"], devices["a100_sxm"], "bfloat16")


def test_a_fit_is_the_shipped_one_and_files_are_written_equally(tmp_path):
    """To the last byte: `simrank calibrate --gemm` writes them."""
    fit = fit_table(table_of("bfloat16", "h100_sxm"))
    assert fit == read_fits()["bfloat16", "h100_sxm"]
    left = left_out("bfloat16", "h100_sxm")
    write_fits({("bfloat16", "h100_sxm"): fit}, half_widths([left]), tmp_path)
    shipped = {
        name: (table_folder() / name).read_text().splitlines()
        for name in ("constants.csv", "intervals.csv")
    }
    for name, lines in shipped.items():
        assert set((tmp_path / name).read_text().splitlines()) <= set(lines)


def table_folder():
    from simrank.hardware.gemm_rows import folder

    return folder() / "fit"


def test_few_rows_still_give_constants():
    """Every tenth row of L40S gives the same rate of arithmetic within a sixth."""
    table = table_of("bfloat16", "l40s")
    found = fit_constants([table.part(slice(None, None, 10))])
    shipped = read_fits()["bfloat16", "l40s"].constants
    assert found.efficiency == pytest.approx(shipped.efficiency, rel=1 / 6)


@pytest.mark.slow
def test_everything_is_fitted_again_in_two_minutes(tmp_path):
    """And the files are those that are shipped."""
    import time

    from simrank.cli.measured_tables import calibrate_gemm

    start = time.process_time()
    calibrate_gemm(tmp_path)
    assert time.process_time() - start < 120
    for name in ("constants.csv", "intervals.csv"):
        assert (tmp_path / name).read_bytes() == (table_folder() / name).read_bytes()


# ---- fits of attention's law, held to combinations of heads and width that were left out ----

# Largest mean errors in percent, over the devices: small, middle, large.
ATTENTION_PCT = {"prefill": (7, 9, 7), "full": (10, 12, 10), "decode": (14, 24, 15)}


@pytest.fixture(scope="module")
def fits():
    return fit_attention()


@pytest.fixture(scope="module")
def errors(fits):
    return attention_left_out(fits)


@pytest.mark.parametrize("phase", ATTENTION_PCT)
def test_combinations_that_are_left_out_are_predicted(errors, phase):
    """Other rows of the device predict them; the 90% interval covers 90 % of them."""
    own = [each for each in errors if (each.kind, each.relation) == (phase, "own")]
    means = [
        [100 * np.abs(np.expm1(-each.logs[each.classes == number])).mean() for number in range(3)]
        for each in own
    ]
    assert (np.mean(means, axis=0) < ATTENTION_PCT[phase]).all()
    for each in own:
        widths = read_attention_widths()[each.key]
        half = np.array([widths[number] for number in each.classes])
        assert (np.abs(each.logs) <= half * 1.01).mean() > 0.89


def test_everything_is_fitted_again_to_the_last_byte(fits, errors, tmp_path):
    """In seconds."""
    write_attention(fits, errors, tmp_path)
    for name in ("constants.csv", "intervals.csv"):
        assert (tmp_path / name).read_bytes() == (folder() / "fit" / name).read_bytes()
