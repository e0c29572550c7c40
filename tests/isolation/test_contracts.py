"""Patches are compared with what they replace, before they are applied."""

import functools
from types import ModuleType

import pytest

from simrank.errors import UnsupportedError
from simrank.isolation import contracts


def original(a, b=1, *, c=None):
    """Stand for a function of a library."""


@pytest.mark.parametrize(
    "replacement",
    [
        lambda *args, **kwargs: None,
        lambda a, *args, **kwargs: None,
        lambda a, b=2, c=None: None,
        lambda a, b, *, c, d=3: None,
        staticmethod(lambda a, b, c: None),
        functools.wraps(original)(lambda *args, **kwargs: None),
    ],
)
def test_a_replacement_that_takes_each_parameter_fits(replacement):
    """By place and by name; what it takes in addition has a default."""
    assert contracts.differences_of(original, replacement) == []


@pytest.mark.parametrize(
    ("replacement", "differences"),
    [
        (lambda a, b=1: None, ["unknown parameter c"]),
        (lambda a, **kwargs: None, ["unknown parameter b"]),  # By name alone.
        (lambda *args: None, [f"unknown parameter {name}" for name in "abc"]),
        (lambda a, x, *, c: None, ["unknown parameter b"]),
        (functools.wraps(original)(lambda a, b: None), ["unknown parameter c"]),
        (lambda a, b, c, d: None, ["no parameter d"]),
    ],
)
def test_what_a_replacement_does_not_take_is_named(replacement, differences):
    """`functools.wraps` does not hide it."""
    assert contracts.differences_of(original, replacement) == differences


def make():
    """Return a function that takes three values."""
    return lambda a, b, c: None


def test_functions_without_a_signature_and_classes_are_not_compared():
    """C functions have none; a class is called by its own rules."""
    for value, patch in ((iter, len), (iter, make), (int, make), (3, make), (original, 3)):
        assert [*contracts.differences_of(value, patch)] == []


def test_an_original_that_changes_is_compared_again():
    """What was found is kept per original, not per name."""

    def later(a, b, c, d):
        """Stand for the function of a later release."""

    assert contracts.differences_of(original, make()) == []
    assert contracts.differences_of(later, make()) == ["unknown parameter d"]


def test_one_error_lists_all_differences_and_names_a_release_that_fits():
    """The name of the library, of each function, and of each parameter."""
    module = ModuleType("numpy.of_a_test")
    module.first = module.second = original
    patches = [(module, "first", lambda a, b: None), (module, "second", lambda a: None)]
    with pytest.raises(UnsupportedError) as caught:
        contracts.made(module, lambda _: patches)
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("numpy 2.")
    assert lines[1:4] == [
        "  numpy.of_a_test.first: unknown parameter c",
        "  numpy.of_a_test.second: unknown parameter b",
        "  numpy.of_a_test.second: unknown parameter c",
    ]
    assert lines[4].startswith("  to fix: pip install 'numpy")


def test_a_name_that_is_gone_is_the_same_error():
    """As the patches are made."""
    module = ModuleType("numpy.of_a_test")
    with pytest.raises(UnsupportedError, match="has no attribute 'gone'"):
        contracts.made(module, lambda module: [(module, "gone", module.gone)])
    absent = [(module, "added", lambda: None)]
    assert contracts.made(module, lambda _: absent) == absent
