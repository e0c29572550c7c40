"""Who arranges what ranks share."""

from simrank.torch import shared


def test_who_registers_last_arranges_what_is_shared(monkeypatch):
    """And before anybody has, nothing is."""
    monkeypatch.setattr(shared, "_registered", [shared._Nobody()])
    assert shared.arranger().find(5) is None
    assert shared.arranger().rendezvous is None
    somebody = object()
    shared.register(somebody)
    assert shared.arranger() is somebody
