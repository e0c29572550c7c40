"""What a kernel does that other programs can see."""

from simrank.kernels.machine import Effects


def test_effects_add_up():
    """What one of the functions does that a kernel calls, the kernel does."""
    effects = Effects(reads=True)
    effects.add(Effects(waits=True, publishes=True))
    effects.add(Effects())
    assert (effects.reads, effects.waits, effects.publishes) == (True, True, True)
    assert not effects.threads
