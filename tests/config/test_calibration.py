"""Files of fitted constants."""

import pytest

from simrank.config.calibration import load_calibration
from simrank.errors import ConfigError

GOOD = """\
cluster: h100_efa
source: fitted to mine
library: NCCL 2.28
constants: {launch_us: 40, ramp: 1.2}
residuals:
  - {up_to: 32 KiB, error_pct: 8.6, interval_pct: 14}
  - {interval_pct: 30}
"""


def test_what_is_left_out_is_ncclss_own(tmp_path):
    """The choice, too."""
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD)
    found = load_calibration(str(path))
    assert found.constants == {"launch_us": 40.0, "ramp": 1.2}
    assert not found.takes_fastest
    assert [each.up_to_bytes for each in found.residuals] == [32 << 10, None]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("ramp: 1.2", "rampp: 1.2", r"constants.rampp: expected one of launch_us"),
        ("ramp: 1.2", "ramp: 0", r"constants.ramp: expected a number from 1e-06 to 1e[+]06"),
        ("ramp: 1.2", "ramp: fast", r"constants.ramp: expected a number from 1e-06 to 1e[+]06"),
        ("32 KiB", "32", r"residuals\[0\].up_to: expected a size with a unit"),
        ("14", "-1", r"residuals\[0\].interval_pct: expected a number from 1e-06 to 1e[+]06"),
        ("library: NCCL 2.28\n", "", "library"),
    ],
)
def test_mistakes_are_named_with_their_keys(tmp_path, old, new, message):
    """As in every configuration."""
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(ConfigError, match=message):
        load_calibration(str(path))


@pytest.mark.parametrize(
    "residuals",
    [
        "[]",
        "[{up_to: 32 KiB, interval_pct: 5}]",
        "[{up_to: 64 MiB, interval_pct: 5}, {up_to: 32 KiB, interval_pct: 50}, {interval_pct: 1}]",
        "[{interval_pct: 5}, {interval_pct: 50}]",
    ],
)
def test_classes_of_size_cover_all_sizes_in_order(tmp_path, residuals):
    """Else an interval would be that of another size."""
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD[: GOOD.index("residuals:")] + f"residuals: {residuals}\n")
    with pytest.raises(ConfigError, match="the smallest first, the last without up_to"):
        load_calibration(str(path))
