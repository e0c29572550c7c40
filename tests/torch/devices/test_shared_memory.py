"""Who arranges what ranks share."""

from simrank.torch.devices import shared_memory


def test_who_registers_last_arranges_what_is_shared(monkeypatch):
    """And before anybody has, nothing is."""
    monkeypatch.setattr(shared_memory, "_registered", [shared_memory._NoOwner()])
    assert shared_memory.shared_memory_owner().find(5) is None
    assert shared_memory.shared_memory_owner().rendezvous is None
    owner = object()
    shared_memory.register(owner)
    assert shared_memory.shared_memory_owner() is owner
