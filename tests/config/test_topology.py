"""Links of a cluster's YAML: ranges, groups, and pairs that are written twice."""

import pytest

from simrank.config.cluster import expand_range
from simrank.errors import ConfigError
from simrank.hardware import load_cluster

from .clusters import complaint


def test_a_second_link_between_two_vertices_is_refused(tmp_path):
    """Also when one of them comes from a group."""
    second = "  - {between: [switch0, gpu1], bandwidth: 1 GB/s, latency: 1 us}\ncollectives:"
    message = complaint(tmp_path, "collectives:", second)

    assert "links[1].between: expected one link per pair of vertices" in message


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("nic0..2", ["nic0", "nic1", "nic2"]),
        ("gpu3", ["gpu3"]),
        ("gpu10..11", ["gpu10", "gpu11"]),
        ("nic2..0", None),
        ("nic0..999999", None),
        ("a b", None),
    ],
)
def test_ranges_name_vertices(text, names):
    """Both ends count; nonsense names nothing."""
    assert expand_range(text) == names


def test_more_network_cards_than_four_for_each_device_are_refused():
    """No known node has more; all of them would carry collectives."""
    assert load_cluster({"name": "h100_ib", "nccl": {"nics": 32}}).nccl.nics == 32
    with pytest.raises(ConfigError, match="at most 32 network cards, 4 for each device, got 64"):
        load_cluster({"name": "h100_ib", "nccl": {"nics": 64}})
