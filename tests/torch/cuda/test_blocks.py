"""Addresses lead to blocks and devices."""

from __future__ import annotations

import torch

from simrank.torch import cuda as simulated


def test_an_address_leads_to_its_block(cuda):
    """Anywhere inside, but not behind, nor after its end of life."""
    x = torch.ones(100, device="cuda:2")
    address = x.data_ptr()
    assert simulated.find_block(address + 399) == (2, address, 400)
    assert simulated.find_block(address + 512) is None
    assert simulated.device_of(address) == 2
    del x
    assert simulated.find_block(address) is None
    assert simulated.device_of(torch.ones(1).data_ptr()) is None
    assert simulated.signal_pad(address) == 0
