"""The private names of torch that are needed exist in the installed version."""

from __future__ import annotations

import importlib

import pytest

from simrank.torch.cuda.private_names import CALLED, REPLACED


@pytest.mark.parametrize(("module", "name"), REPLACED + CALLED)
def test_it_exists(module, name):
    """A name that torch dropped would be replaced for nobody."""
    assert hasattr(importlib.import_module(module), name)


def test_everything_that_is_replaced_is_listed(cuda):
    """What `enable` replaced, and torch had, stands in the list."""
    from simrank.torch.cuda import switch
    from simrank.torch.cuda.switch import _ABSENT

    listed = {name for _, name in REPLACED}
    replaced = {
        name
        for owner, name, before in switch._patches._before
        if before is not _ABSENT and getattr(owner, "__name__", "").startswith("torch.cuda")
    }
    exported = {"Stream", "Event", "ExternalStream"}
    legacy = {name for name in replaced if name.endswith("Tensor")}
    assert replaced - legacy - exported <= listed
