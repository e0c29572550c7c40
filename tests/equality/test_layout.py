"""Ranks of a layout: the last axis is that of neighbours."""

from simrank.equality.layout import Layout, varying, varying_values

LAYOUT = Layout({"dp": 2, "cp": 1, "tp": 3})


def test_coordinates_count_the_last_axis_fastest():
    """As torch's meshes do."""
    assert LAYOUT.num_ranks == 6
    assert LAYOUT.coordinates(4) == {"dp": 1, "cp": 0, "tp": 1}
    assert str(LAYOUT) == "dp2 x cp1 x tp3"


def test_peers_differ_along_the_given_axes_only():
    """A group of an axis; of all axes it is the world."""
    assert LAYOUT.peers(4, ["tp"]) == [3, 4, 5]
    assert LAYOUT.peers(4, ["dp"]) == [1, 4]
    assert list(LAYOUT.groups(["dp", "tp"])) == [[0, 1, 2, 3, 4, 5]]


def test_the_axes_of_a_group_are_those_along_which_its_ranks_differ():
    """None where a group is no group of axes."""
    assert LAYOUT.axes_of([5, 3, 4]) == ("tp",)
    assert LAYOUT.axes_of([0, 4]) is None


def test_values_vary_along_axes():
    """Of ranks that have one."""
    assert varying(LAYOUT, [3, 4, 5]) == ("dp",)
    assert varying(LAYOUT, [1, 4]) == ("tp",)
    assert varying_values(LAYOUT, {0: "a", 1: "a", 3: "b"}) == ("dp",)
