"""Who waits for whom, of what ranks published."""

from __future__ import annotations

import os

import pytest

from simrank.errors import PortInUseError
from simrank.validate import team
from simrank.validate.team import Answer


def at(op, seq=1, group="g", ranks=(0, 1, 2), **more):
    """Return the page of a rank that is in a call."""
    call = {"op": op, "seq": seq, "group": group, "ranks": list(ranks), "file": None, "line": None}
    return {"stage": "running", "counts": {group: seq}, "call": call | more}


def message(op, peer, rank, seq=1):
    """Return the page of a rank that sends or receives."""
    pair = (rank, peer) if op == "send" else (peer, rank)
    call = {"op": op, "seq": seq, "group": "g", "ranks": [peer], "is_message": True}
    return {"stage": "running", "counts": {f"g: {pair[0]}->{pair[1]}": seq}, "call": call}


def queued(op, seq=1):
    """Return the page of a rank that has queued a call, as on nccl, and waits for it elsewhere."""
    page = at(op, seq)
    return {**page, "last": page.pop("call") | {"is_queued": True}}


BUSY = {"stage": "running", "counts": {}}
DONE = {"stage": "answered", "counts": {}}


@pytest.mark.parametrize(
    ("pages", "waits"),
    [
        ([at("all_reduce"), at("all_reduce"), at("all_reduce")], {}),
        ([at("all_reduce"), at("all_reduce"), BUSY], {0: (2,), 1: (2,)}),
        ([at("all_reduce"), at("broadcast"), BUSY], {0: (1, 2), 1: (0, 2)}),
        ([at("all_reduce", 2), at("all_reduce", 1), at("all_reduce", 2)], {0: (1,), 2: (1,)}),
        ([at("x", ranks=[0, 1]), at("y", 3, "h"), BUSY], {0: (1,), 1: (0, 2)}),
        ([message("recv", 1, 0), BUSY], {0: (1,)}),
        ([message("recv", 1, 0), message("send", 0, 1)], {}),
        ([message("send", 1, 0), message("send", 0, 1)], {0: (1,), 1: (0,)}),
        ([{"stage": "running", "counts": {"g": 5}}, at("all_reduce", 5)], {}),
        ([queued("all_reduce"), DONE, queued("all_reduce")], {0: (1,), 2: (1,)}),
        ([queued("all_reduce"), queued("all_reduce"), queued("all_reduce", 2)], {2: (0, 1)}),
    ],
)
def test_a_rank_waits_for_who_has_not_come_to_its_call(pages, waits):
    """By group, number and operation; a message by its pair of ranks."""
    assert team.waits_for(dict(enumerate(pages))) == waits


def test_who_answered_or_made_another_call_never_comes():
    """Who is only busy may."""
    for page, is_hopeless in ((DONE, True), (at("broadcast"), True), (BUSY, False)):
        pages = {0: at("all_reduce", ranks=[0, 1]), 1: page}
        assert team.cannot_arrive(pages, team.waits_for(pages)) == is_hopeless


@pytest.mark.parametrize(
    ("waits", "is_ring"),
    [
        ({0: (1,), 1: (2,), 2: (0,)}, True),
        ({0: (1,), 1: (2,)}, False),
        ({0: (1, 2), 1: (2,), 2: (1,), 3: (0,)}, True),
        ({}, False),
    ],
)
def test_a_ring_of_waits_is_found(waits, is_ring):
    """Whoever else waits for it."""
    assert team.are_in_a_ring(waits) == is_ring


def test_waits_are_told_once_for_ranks_that_wait_for_the_same():
    """And at most six lines of them."""
    assert team.waits_text({0: (3,), 1: (3,), 2: (0, 1)}) == [
        "ranks 0-1 wait for rank 3",
        "rank 2 waits for ranks 0-1",
    ]
    many = team.waits_text({rank: ((rank + 1) % 64,) for rank in range(64)})
    assert len(many) == 6
    assert many[-1] == "and 59 more wait for others"


def test_facts_say_what_a_rank_did_last():
    """In a call, after one, or how it ended."""
    page = {"stage": "running", "counts": {}, "last": at("barrier", 3)["call"]}
    assert team.facts_of(0, page, None).doing == (
        "running, in no collective, after barrier #3 on group 'g'"
    )
    assert team.facts_of(0, {}, None).doing == "starting, in no collective"
    ended = team.facts_of(0, at("all_reduce"), None, "killed by SIGKILL")
    assert ended.doing == "killed by SIGKILL (all_reduce #1 on group 'g')"
    assert not ended.waits
    raised = Answer(False, b"", {}, 0.0, "ValueError: one\ntwo", "Traceback ...")
    assert team.facts_of(0, {}, raised).doing == "raised ValueError: one"
    assert team.call_text({"op": "recv", "ranks": [], "is_message": True}) == "recv from any rank"


def test_stacks_are_shown_without_addresses_and_own_frames():
    """So that equal ones are equal."""
    own = team.__file__.replace("team.py", "worker.py")
    own = own.encode("ascii", "backslashreplace").decode()  # As faulthandler writes it.
    written = (
        "Current thread 0x00007f1 (most recent call first):\n"
        '  File "a.py", line 3 in f\n'
        f'  File "{own}", line 5 in main\n'
    )
    assert team.stacks_text(written) == (
        'Current thread (most recent call first):\n  File "a.py", line 3 in f'
    )
    idle = f'Current thread 0x1 (most recent call first):\n  File "{own}", line 5 in main\n'
    assert team.stacks_text(idle) == ""


def test_workers_are_even_if_they_made_the_same_calls():
    """On each group that they share, with all of the pool's groups left."""
    even = {"counts": {"g": 2}, "members": {"g": [0, 1]}, "is_whole": True}
    assert team.are_even({0: even, 1: even})
    assert team.are_even({0: even, 1: even, 2: {**even, "counts": {}, "members": {}}})
    assert not team.are_even({0: even, 1: {**even, "counts": {"g": 1}}})
    assert not team.are_even({0: even, 1: {**even, "counts": {}}})
    assert not team.are_even({0: even, 1: {**even, "is_whole": False}})


# ---- ports are bound before they are published, and who holds one is named ----


def test_ports_of_many_are_all_different():
    """Mooncake: 64 ranks that draw one of 2,000 ports collide in 64 % of runs; here never."""
    made = [team.bound() for _ in range(64)]
    assert len({listener.getsockname()[1] for listener in made}) == 64
    for listener in made:
        listener.close()


def test_a_port_that_is_taken_is_an_error_that_names_its_holder():
    """Before anybody hears of it; here it is this process."""
    with team.bound() as listener:
        port = listener.getsockname()[1]
        with pytest.raises(PortInUseError) as caught:
            team.bound(port)
    assert caught.value.port == port
    assert f"(pid {os.getpid()})" in caught.value.holder
    assert str(caught.value) == (
        f"port {port} is in use: held by {caught.value.holder}\n  to fix: port=0 takes a free one"
    )
    assert isinstance(caught.value, OSError)


def test_a_port_is_free_again_when_it_is_closed():
    """At once."""
    with team.bound() as listener:
        port = listener.getsockname()[1]
    team.bound(port).close()


def test_a_holder_that_the_system_does_not_tell_is_not_invented():
    """Nobody listens there; or it is another user's."""
    assert team.holder(1) is None
    assert "its holder is unknown" in str(PortInUseError(1, None))


def test_an_address_that_cannot_be_bound_is_the_systems_error():
    """A port beyond all."""
    with pytest.raises(OverflowError):
        team.bound(70_000)
