"""tl.load and tl.store: their hints."""

import pytest

from simrank.kernels.language import access
from simrank.kernels.values.block import constant


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cache_modifier": ".wt"}, r"Cache modifier \.wt not supported"),
        ({"eviction_policy": "evict_soon"}, "Eviction policy evict_soon not supported"),
        ({"other": 1}, "`other` cannot be provided without `mask`"),
    ],
)
def test_what_the_compiler_does_not_take_is_refused(options, words):
    """Before memory is looked at."""
    with pytest.raises(ValueError, match=words):
        access.load(constant(0), **options)


def test_a_store_knows_other_hints_than_a_load():
    """`.wb` is one of stores only."""
    with pytest.raises(ValueError, match="not supported"):
        access.load(constant(0), cache_modifier=".wb")
    with pytest.raises(ValueError, match=r"Cache modifier \.ca"):
        access.store(constant(0), 1, cache_modifier=".ca")
