"""What a kernel does that other programs can see."""

import copy
import gc
import pickle
import weakref

import pytest

from simrank.kernels.machine import Effects, Order
from simrank.kernels.machine.protocols import kept


def test_effects_add_up():
    """What one of the functions does that a kernel calls, the kernel does."""
    effects = Effects(reads=True)
    effects.add(Effects(waits=True, publishes=True))
    effects.add(Effects())
    assert (effects.reads, effects.waits, effects.publishes) == (True, True, True)
    assert not effects.threads


# ---- how an atomic orders memory ----


@pytest.mark.parametrize(
    ("sem", "acquires", "releases"),
    [
        (None, True, True),
        ("acquire", True, False),
        ("release", False, True),
        ("relaxed", False, False),
    ],
)
def test_an_order_acquires_and_releases_as_its_name_says(sem, acquires, releases):
    """Without a name it does both, for one device."""
    order = Order(sem, None)
    assert (order.acquires, order.releases, order.scope) == (acquires, releases, "gpu")


@pytest.mark.parametrize(("sem", "scope"), [("seq_cst", None), (None, "cluster")])
def test_unknown_orders_are_refused(sem, scope):
    """In Triton's words."""
    with pytest.raises(ValueError, match="not supported"):
        Order(sem, scope)


# ---- what is known of an object goes with it, and is of no other ----


class Owner:
    pass


def test_what_is_known_is_there_again():
    """Facts are kept from one question to the next."""
    owner = Owner()
    kept(owner)["effects"] = "waits"
    assert kept(owner)["effects"] == "waits"


def test_what_is_known_goes_with_its_object_even_if_it_refers_to_it():
    """Nothing else holds them: a fact may name the object that it is about."""
    owner = Owner()
    kept(owner)["itself"] = owner
    gone = weakref.ref(owner)
    del owner
    gc.collect()
    assert gone() is None


def test_a_copy_knows_nothing():
    """Neither a copy, a deep one nor an unpickled one takes over what is known of the original."""
    owner = Owner()
    kept(owner)["effects"] = "waits"
    for other in (copy.copy(owner), copy.deepcopy(owner)):
        assert "effects" not in kept(other)
    assert pickle.loads(pickle.dumps(kept(owner))) == {}
    assert kept(owner)["effects"] == "waits"


def test_a_class_knows_nothing_of_the_one_it_is_made_from():
    """Facts about a class are not inherited."""

    class Derived(Owner):
        pass

    kept(Owner)["emulated"] = Owner
    assert "emulated" not in kept(Derived)
    del kept(Owner)["emulated"]
