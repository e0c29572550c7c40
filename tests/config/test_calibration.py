"""Files of fitted constants."""

import pytest

from simrank.config.calibration import builtin_calibration, load_calibration
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
        ("ramp: 1.2", "ramp: 0", r"constants.ramp: expected a number above 0"),
        ("ramp: 1.2", "ramp: fast", r"constants.ramp: expected a number above 0"),
        ("32 KiB", "32", r"residuals\[0\].up_to: expected a size with a unit"),
        ("14", "-1", r"residuals\[0\].interval_pct: expected a number above 0"),
        ("library: NCCL 2.28\n", "", "library"),
    ],
)
def test_mistakes_are_named_with_their_keys(tmp_path, old, new, message):
    """As in every configuration."""
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(ConfigError, match=message):
        load_calibration(str(path))


def test_a_built_in_cluster_may_have_one():
    """By name, with or without its nodes; one of one's own has none."""
    assert builtin_calibration("h100_ib").cluster == "h100_ib"
    assert builtin_calibration({"name": "h100_ib", "nodes": 4}).cluster == "h100_ib"
    assert builtin_calibration("mi355x") is None
    assert builtin_calibration({"name": "h100_ib", "device": {}, "links": []}) is None
