"""Places in the user's program, read only when a report is built."""

import sys
from queue import Queue

from simrank.engine import CallSite, Engine, SourceLine, user_site
from simrank.engine.callsite import site_of_frame


def test_the_site_is_the_users_line():
    """File and line of the call into simrank, not simrank's own."""
    site = user_site()
    line = sys._getframe().f_lineno - 1

    assert site.line() == SourceLine(__file__, line)
    assert str(site.line()) == f"test_callsite.py:{line}"


def test_the_site_of_a_statement_over_several_lines_is_the_calls_line():
    """Instructions know their own line."""
    first = sys._getframe().f_lineno
    pair = (
        1,
        user_site(),
    )

    assert pair[1].line().line == first + 3


def test_frames_of_simrank_and_of_the_standard_library_are_nobodys_program():
    """A wait inside `queue.Queue.get` is at the line that called it."""

    class Spy(Queue):
        def _put(self, item):
            self.site = user_site()
            super()._put(item)

    def outer():
        spied = Spy()
        original, Spy._put = Spy._put, lambda self, _: setattr(self, "site", queue_frame())
        spied.put(1)
        Spy._put = original
        return spied.site

    def queue_frame():
        frame = sys._getframe(2)
        assert frame.f_code.co_name == "put"
        return site_of_frame(frame)

    assert outer().code is outer.__code__


def test_without_a_users_frame_there_is_no_site():
    """None, not an error."""
    assert site_of_frame(None) is None


def test_an_unknown_instruction_resolves_to_the_first_line():
    """A site is never an error of its own."""
    code = Engine.step.__code__

    assert CallSite(code, 10**6).line() == SourceLine(code.co_filename, code.co_firstlineno)
