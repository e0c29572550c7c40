"""What names stand for is read without running any of the program's code."""

import sys

import numpy as np

from simrank.trace.divergence.values import paths_of, short, values_of


class Model:
    limit = 3

    def __init__(self):
        self.size = 2

    @property
    def slow(self):
        raise AssertionError("a property was run")

    def __getattr__(self, name):  # noqa: D105 - of a class of the tests
        raise AssertionError("an attribute was looked up")


def test_names_are_looked_up_without_running_properties():
    """Functions, modules and what is not there are left out."""
    model, text = Model(), "x" * 60
    names = ["model.size", "model.limit", "model.slow", "model.absent", "text", "sys", "len", "no"]
    found = values_of(sys._getframe(), paths_of(names))
    assert [(name, short(value)) for name, value in found] == [
        ("model.size", "2"),
        ("model.limit", "3"),
        ("text", "'" + "x" * 35 + " ..."),
    ]
    assert (model.size, len(text)) == (2, 60)


def test_values_are_shown_shortly():
    """Containers by their length, arrays by their shape, others by their class."""
    shown = [short(value) for value in ([1, 2], {1: 2}, np.float32(0.5), np.ones((2, 3)), Model())]
    assert shown == ["list of 2", "dict of 1", "0.5", "array of shape (2, 3)", "<Model>"]
