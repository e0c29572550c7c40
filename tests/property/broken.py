"""Files that something happened to: a strategy of what is left of their bytes."""

from hypothesis import strategies as st

from simrank.errors import ConfigError

_BYTES = st.one_of(
    st.binary(max_size=6),
    st.sampled_from(
        [b"0", b"-1", b"99999999999", b"nan", b'"', b"<", b"}", b"\xff", b"\n", b"1e9"]
    ),
)


@st.composite
def broken(draw, data):
    """Cut something out of a file in a few places, and put something else there."""
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 40)))
        data = data[:start] + draw(_BYTES) + data[end:]
    return data


def read_or_refused(read, *args):
    """Return what was read, or None where it was refused with file and expectation."""
    try:
        return read(*args)
    except ConfigError as error:
        problems = error.problems
    assert all(problem.file and problem.expected and problem.got for problem in problems)
    return None
