"""MSCCL programs as plain data."""

from simrank.formats.msccl.program import KINDS

from .programs import named


def test_letters_of_types_say_what_they_do():
    """R for receive at first, s for send at last; c where something is kept."""
    for name in ("r", "rcs", "rrs", "rrc", "rrcs"):
        kind = KINDS[name]
        assert kind.receives
        assert kind.sends == name.endswith("s")
        assert kind.writes == ("c" in name or name == "r")
        assert kind.reduces == kind.reads == name.startswith("rr")
    assert not any(KINDS["nop"])
    assert not KINDS["re"].receives
    assert KINDS["re"].reduces


def test_buffers_have_the_chunks_of_their_collective():
    """Of those where ranks have blocks, one side has one block."""
    for name, chunks in (
        ("ring", (4, 4)),
        ("hierarchical", (2, 8)),
        ("reduce_scatter in place", (4, 2)),
        ("all_to_all", (3, 3)),
    ):
        made = named(name)
        assert (made.num_inputs, made.num_outputs) == chunks
