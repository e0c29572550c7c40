"""The tracer is off while libraries are imported, and gone when the last rank has ended."""

import builtins
import sys

import pytest

from simrank.trace.divergence.follow import Tracing, _is_library
from simrank.trace.divergence.track import EXIT, Codes, Track, encode, kind_of, line_of


@pytest.fixture
def track():
    return Track(0, Codes())


def follow(track, body, **options):
    Tracing(track._codes, lambda: track).run(body, **{"is_shared": False, **options})


def body():
    for _ in range(2):
        pass


def test_lines_are_followed_in_the_order_they_are_executed(track):
    """A call, its lines, its end."""
    follow(track, body)
    first = body.__code__.co_firstlineno
    events = [(kind_of(event), line_of(event) - first) for event in track.events]
    assert [line for kind, line in events if kind == 0] == [1, 2, 1, 2, 1]
    assert [kind for kind, _ in events if kind] == [1, 2]


def test_a_generator_that_is_closed_elsewhere_is_no_part_of_the_track(track):
    """The hub collects what ranks have left, and follows nobody."""
    running = [track]

    def generate():
        yield 1
        yield 2

    def leaves():
        left = generate()
        next(left)
        before = len(track.events)
        running.clear()
        left.close()
        running.append(track)
        assert len(track.events) == before + 4  # Its own lines.

    codes = track._codes
    follows = Tracing(codes, lambda: running[0] if running else None)
    follows.run(leaves, is_shared=False)
    assert track.events[-1] == encode(EXIT, codes.code(leaves.__code__).number)


def test_everything_is_as_before_at_the_end(track):
    """The tracer and `__import__`, also after an error."""
    before = sys.gettrace(), builtins.__import__

    def fails():
        raise ValueError("planted")

    with pytest.raises(ValueError, match="planted"):
        follow(track, fails)
    assert (sys.gettrace(), builtins.__import__) == before


def test_libraries_are_imported_without_the_tracer(track, tmp_path, monkeypatch):
    """The program's own modules with it."""
    (tmp_path / "own_module_of_test.py").write_text("import sys\nTRACE = sys.gettrace()\n")
    monkeypatch.syspath_prepend(tmp_path)
    seen = {}

    def imports():
        import colorsys  # noqa: F401 - a module that nobody else imports

        import own_module_of_test

        seen["own"] = own_module_of_test.TRACE

    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    follow(track, imports)
    monkeypatch.delitem(sys.modules, "own_module_of_test")
    assert seen["own"] is not None
    assert _is_library("colorsys")
    assert _is_library("numpy")
    assert not _is_library("own_module_of_test")
