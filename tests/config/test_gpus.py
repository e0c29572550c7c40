"""Devices by number and name: a node, a network, and what is refused."""

import pytest

from simrank.config.gpus import device_words, devices_of
from simrank.config.locate import builtin_clusters
from simrank.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "cluster", "nodes"),
    [
        ("2xh100", "hgx_h100", 1),
        ("8xH100", "hgx_h100", 1),
        ("64xh100", "h100_ib", 8),
        ("64 x h100_efa", "h100_efa", 8),
        ("4xh100_efa", "h100_efa", 1),
        ("72xgb200", "gb200_nvl72", 1),
        ("16xmi300x", "mi300x_roce", 2),
    ],
)
def test_a_device_stands_for_its_node_and_beyond_it_for_its_network(text, cluster, nodes):
    """A cluster's name stands for that cluster."""
    found = devices_of(text)
    assert (found.cluster.name, found.cluster.nodes) == (cluster, nodes)


@pytest.mark.parametrize("word", device_words())
def test_every_listed_device_has_a_cluster_named_as_its_file(word):
    """A plan names the cluster; the arithmetic of layouts takes its NCCL."""
    config = devices_of(f"1x{word}").cluster
    assert config.name in builtin_clusters()
    assert config.nccl is not None
    assert "bfloat16" in config.device.peak_flops


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("h100", "a number and a device, such as 64xh100, got h100"),
        ("0xh100", "a number and a device"),
        ("64xh10", "one of a100, .*\n.*write `64xh100`"),
        ("12xh100", "whole nodes of h100_ib, of 8 devices each, got 12\n.*take 8 or 16"),
        ("16xrtx_4090", "at most 8 of rtx_4090, which has no network"),
    ],
)
def test_what_is_unknown_is_refused_with_what_is_known(text, said):
    """And with the nearest number or name."""
    with pytest.raises(ConfigError, match=said):
        devices_of(text)
