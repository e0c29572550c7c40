"""Which built-in cluster has a device."""

import pytest

from simrank.config import builtin_clusters, load_cluster_config
from simrank.config.foreign import device_names
from simrank.errors import ConfigError


def test_every_name_is_a_built_in_clusters():
    """Those behind short names and PCI numbers."""
    assert {*device_names.SHORT.values(), *device_names._BY_PCI_ID.values()} <= set(
        builtin_clusters()
    )
    assert device_names.device_named("h100") == "hgx_h100"
    assert device_names.device_named("mi300x") == "mi300x"
    assert device_names.device_of_pci("0x10DE", "0x2330") == "hgx_h100"
    assert device_names.device_of_pci("0x10de", "0x20b5") is None


def test_an_unknown_name_is_refused_with_the_nearest():
    """The short ones are listed first."""
    with pytest.raises(ConfigError, match=r"--device: expected one of a100, h100,(.|\n)*`h100`"):
        device_names.device_named("h10")


@pytest.mark.parametrize("file", ["1 node.xml", "..xml", "topo-1.xml", "a/b.xml", "\xe9.xml"])
def test_a_files_name_becomes_a_clusters(file):
    """Whatever is in it."""
    name = device_names.name_of(file)
    data = {
        "name": name,
        "source": "assumed",
        "device": {"like": "hgx_h100", "count": 1},
        "links": [],
    }
    assert load_cluster_config(data).name == name
