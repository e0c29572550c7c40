"""How an atomic orders memory."""

import pytest

from simrank.kernels.machine import Order


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
