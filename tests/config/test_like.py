"""Own topologies of built-in devices."""

import pytest

from simrank.config import load_cluster_config
from simrank.errors import ConfigError

LINKS = [{"between": ["each gpu", "each gpu"], "bandwidth": "50 GB/s", "latency": "1 us"}]
OWN = {"name": "own4", "links": LINKS}


def own(**device):
    """Return a mesh of devices; its links are sourced by the whole cluster's source."""
    return load_cluster_config(OWN | {"source": "assumed", "device": device})


def test_what_is_not_given_is_the_built_in_devices():
    """The collective library's costs included."""
    config = own(like="hgx_h100", count=4)
    builtin = load_cluster_config("hgx_h100")

    assert config.device.count == 4
    assert config.device.peak_flops == builtin.device.peak_flops
    assert config.collectives == builtin.collectives


def test_sources_stay_with_their_numbers():
    """An own number does not inherit the source of the one it replaces."""
    config = own(like="hgx_h100", count=4, memory="40 GB", source={"memory": "mine"})
    builtin = load_cluster_config("hgx_h100").device.source

    assert config.device.memory_bytes == 40 * 10**9
    assert config.device.source["memory"] == "mine"
    assert config.device.source["kernel_floor"] == builtin["kernel_floor"]
    assert config.device.source["num_sms"] == builtin["others"]


def test_an_own_number_needs_an_own_source():
    """Without one the cluster is refused, as everywhere."""
    links = [LINKS[0] | {"source": "assumed"}]
    device = {"like": "hgx_h100", "count": 4, "memory": "40 GB"}
    with pytest.raises(ConfigError, match=r"device.source: expected a source for memory, got"):
        load_cluster_config({"name": "own4", "links": links, "device": device})


@pytest.mark.parametrize("word", ["hgx_h10", 4, None])
def test_an_unknown_device_lists_the_built_in_ones(word):
    """As an unknown cluster does."""
    with pytest.raises(ConfigError, match=r"cluster: device.like: expected one of a100_efa"):
        own(like=word, count=4)
