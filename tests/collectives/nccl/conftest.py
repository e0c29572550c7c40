"""What NCCL finds on some machines."""

from dataclasses import replace

import pytest

from simrank.hardware.spec import NcclSpec

HOPPER = NcclSpec(
    architecture="hopper",
    wire="nvlink",
    host="intel",
    ring_bytes_per_s=367 * 10**9,
    nvls_bytes_per_s=360 * 10**9,
    channels=24,
    p2p_channel_bytes_per_s=18 * 10**9,
    nics=8,
    nic_bytes_per_s=47_500_000_000,
)


@pytest.fixture
def hopper():
    """HGX H100 nodes with a card per GPU."""
    return HOPPER


@pytest.fixture
def pcie():
    """Two cards on PCIe with one network card, no switch that reduces."""
    slow = {"ring_bytes_per_s": 20 * 10**9, "nvls_bytes_per_s": 0, "channels": 2, "nics": 1}
    return replace(HOPPER, architecture="ampere", wire="pci", **slow)
