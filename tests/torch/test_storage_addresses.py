"""Who arranges what ranks share."""

from simrank.torch import storage_addresses


def test_who_registers_last_arranges_what_is_shared(monkeypatch):
    """And before anybody has, nothing is."""
    monkeypatch.setattr(storage_addresses, "_registered", [storage_addresses._Nobody()])
    assert storage_addresses.arranger().find(5) is None
    assert storage_addresses.arranger().rendezvous is None
    somebody = object()
    storage_addresses.register(somebody)
    assert storage_addresses.arranger() is somebody
