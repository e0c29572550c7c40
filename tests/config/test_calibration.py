"""Files of fitted constants."""

import pytest

import simrank
from simrank.config.calibration import load_calibration, provenance_of
from simrank.config.load import load_cluster_config
from simrank.config.locate import builtin_names
from simrank.errors import ConfigError
from simrank.trace.summary import constants_text, summary_json, summary_text

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


# ---- where the numbers of a cluster come from, as data ----


@pytest.mark.parametrize("name", builtin_names("clusters"))
def test_every_number_of_a_built_in_cluster_says_where_it_comes_from(name):
    """Each key once, with the text of its own or of its block."""
    found = provenance_of(load_cluster_config(name))
    assert {"device.memory", "device.peak_flops", "collectives.buffer"} <= {p.key for p in found}
    assert any(p.key.startswith("link ") and p.key.endswith(".bandwidth") for p in found)
    assert {p.kind for p in found} <= {"calibrated", "sourced", "assumed"}
    assert all(p.text for p in found)


def test_kinds_are_read_from_the_text_and_never_guessed():
    """Own source first, then the block's `others`; only `assumed` and `calibrated` are words."""
    facts = {p.key: p for p in provenance_of(load_cluster_config("hgx_h100"))}
    assert facts["device.launch_overhead"].kind == "assumed"
    assert facts["device.num_sms"] == ("device.num_sms", "sourced", "NVIDIA H100 data sheet")
    assert facts["device.memory_bandwidth"].text.startswith("measured, github.com/Azure")
    assert facts["link each gpu - nvswitch.latency"].kind == "sourced"


def test_a_block_that_borrows_keeps_the_sources_of_what_it_borrows():
    """`device.like` brings numbers and their sources."""
    own = {
        "name": "own",
        "device": {"like": "hgx_h100", "count": 2, "memory": "1 GB",
                   "source": {"memory": "calibrated, here"}},
        "links": [{"between": ["gpu0", "gpu1"], "bandwidth": "1 GB/s", "latency": "1 us",
                   "source": "assumed"}],
    }  # fmt: skip
    facts = {p.key: p for p in simrank.Context(own).cluster.provenance}
    assert facts["device.memory"].kind == "calibrated"
    assert facts["device.num_sms"].text == "NVIDIA H100 data sheet"
    assert facts["link gpu0 - gpu1.latency"].kind == "assumed"


def test_the_summary_counts_kinds_names_what_is_assumed_and_has_all_in_json():
    """One line for people."""
    cluster = simrank.Context("hgx_h100").cluster
    line = constants_text(cluster.provenance)
    assert line == (
        "constants of the cluster: 9 calibrated, 13 sourced, 4 assumed "
        "(device.launch_overhead, collectives.num_channels, nccl.channels, "
        "nccl.p2p_channel_bandwidth)"
    )
    from simrank.trace import Summary

    assert summary_text(Summary(), 0, {}, cluster.provenance).endswith(line)
    constants = summary_json(Summary(), 0, {}, cluster.provenance)["constants"]
    assert constants[0] == {
        "key": "device.memory",
        "kind": "sourced",
        "text": "measured, torch.cuda.get_device_properties in "
        "github.com/stas00/ml-engineering network README",
    }
    assert len(constants) == 26


def test_powers_count_where_a_limit_is_stated():
    """They move nothing else."""
    limited = load_cluster_config({"name": "hgx_h100", "device": {"power_limit": "500 W"}})
    keys = [each.key for each in provenance_of(limited)]
    assert "device.idle_power" in keys
    usual = [each.key for each in provenance_of(load_cluster_config("hgx_h100"))]
    assert "device.idle_power" not in usual
