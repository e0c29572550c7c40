"""Where the numbers of a cluster come from, as data."""

import pytest

import simrank
from simrank.config.load import load_cluster_config
from simrank.config.locate import builtin_names
from simrank.config.provenance import provenance_of
from simrank.trace.summary import constants_text, summary_json, summary_text


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
