"""Counter tracks: values added up from their changes, whatever order these are told in."""

from simrank.trace.timeline import Counters


def shown(counters):
    """Return (process, name, time in us, value) of each event."""
    return [
        (e["pid"], e["name"], e["ts"], e["args"]["bytes"])
        for e in counters.events()
        if e["ph"] == "C"
    ]


def test_values_are_sums_of_changes_by_time():
    """One event where the value has changed; what cancels out shows nothing."""
    counters = Counters()
    for time_us, change in ((3, -1), (1, 2), (2, 5), (2, -5), (3, 4)):
        counters.add(0, "memory", "bytes", time_us * 10**6, change)
    assert shown(counters) == [(0, "memory", 1.0, 2), (0, "memory", 3.0, 5)]


def test_spans_that_overlap_add_up_and_leave_nothing():
    """Also where the sums of rates are not exact."""
    counters = Counters()
    counters.span(0, "link", "bytes", (0, 4 * 10**6), 0.1)
    counters.span(0, "link", "bytes", (2 * 10**6, 6 * 10**6), 0.2)
    counters.span(1, "link", "bytes", (0, 10**6), 7.0)
    assert shown(counters) == [
        (0, "link", 0.0, 0.1),
        (0, "link", 2.0, 0.3),
        (0, "link", 4.0, 0.2),
        (0, "link", 6.0, 0.0),
        (1, "link", 0.0, 7.0),
        (1, "link", 1.0, 0.0),
    ]
    assert counters.processes() == {0, 1}


def test_everything_may_end():
    """A copy goes on without the original."""
    counters = Counters()
    counters.add(0, "memory", "bytes", 0, 5)
    copied = counters.copy()
    copied.end_all(10**6)
    assert shown(copied) == [(0, "memory", 0.0, 5), (0, "memory", 1.0, 0)]
    assert shown(counters) == [(0, "memory", 0.0, 5)]
    assert counters.is_known(0, "memory")
    assert not counters.is_known(0, "other")
