"""What libraries may ask of the compiler."""

import pytest

from simrank.errors import UnsupportedError
from simrank.kernels.source.bind import SEMANTIC


def test_a_barrier_of_threads_is_there_and_nothing_else_that_builds():
    """Threads meet after every line anyway."""
    assert SEMANTIC.builder.create_barrier() is None
    with pytest.raises(UnsupportedError, match="create_load"):
        SEMANTIC.builder.create_load()
