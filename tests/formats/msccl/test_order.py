"""Who waits for whom in an MSCCL program, and what is said of one that never ends."""

import pytest

from simrank.errors import ScheduleError
from simrank.formats.msccl.order import order_of

from .programs import RIGHT, Block, named, program


@pytest.mark.parametrize("name", RIGHT)
def test_each_step_comes_after_what_it_waits_for(name):
    """In the order, and in levels."""
    order = order_of(named(name))
    position = {number: index for index, number in enumerate(order.sequence)}
    assert sorted(position) == list(range(len(order.nodes)))
    pairs = [*order.messages.items(), *((b, a) for a, b in order.signals.items())]
    for earlier, later in pairs:
        assert position[earlier] < position[later]
        assert order.level[earlier] < order.level[later]


def refused(gpus, **options):
    """Return the text of the error of a program."""
    with pytest.raises(ScheduleError) as caught:
        order_of(program("allreduce", 1, gpus, **options))
    return str(caught.value)


def test_messages_without_an_equal_are_named_with_their_lines():
    """A send that nobody receives, and a receive of what nobody sends."""
    one, other = Block(1, 1), Block(0, 0)
    one.do("s")
    one.do("s")
    one.do("r")
    other.do("r")
    assert refused([[one], [other]]) == (
        "test.xml: 2 messages have no equal on the other side\n"
        "  gpu 0, thread block 0, step 1 (s) at test.xml:5 sends to gpu 1 on channel 0, "
        "which receives 1\n"
        "  gpu 0, thread block 0, step 2 (r) at test.xml:6 receives from gpu 1 on channel 0, "
        "which sends 0"
    )


def test_messages_on_other_channels_are_others():
    """The same peers."""
    one, other = Block(1, channel=0), Block(-1, 0, channel=1)
    one.do("s")
    other.do("r")
    assert "on channel 0, which receives 0" in refused([[one], [other]])


def test_messages_are_received_as_long_as_they_were_sent():
    """Two chunks sent, one taken."""
    one, other = Block(1), Block(-1, 0)
    one.do("s", ("s", 0), count=2)
    other.do("r")
    text = refused([[one], [other]], scratch=2)
    assert "a message has no equal" in text
    assert "sends 2 chunks, of which 1 are received: gpu 1, thread block 0, step 0 (r)" in text


def test_a_deadlock_is_told_step_by_step():
    """Both receive before they send."""
    blocks = [Block(1, 1), Block(0, 0)]
    for block in blocks:
        block.do("r")
        block.do("s")
    assert refused([[block] for block in blocks]) == (
        "test.xml: deadlock: 4 steps wait for each other, each for the next\n"
        "  gpu 0, thread block 0, step 0 (r) at test.xml:4 receives from\n"
        "  gpu 1, thread block 0, step 1 (s) at test.xml:11 comes after\n"
        "  gpu 1, thread block 0, step 0 (r) at test.xml:10 receives from\n"
        "  gpu 0, thread block 0, step 1 (s) at test.xml:5 comes after\n"
        "  gpu 0, thread block 0, step 0 (r) at test.xml:4, the first"
    )


def test_dependences_can_close_a_circle():
    """Two thread blocks of one GPU wait for each other's second step."""
    blocks = [Block(), Block()]
    for number, block in enumerate(blocks):
        block.do("nop", ("i", -1), ("o", -1), 0, dep=(1 - number, 1))
        block.do("cpy", tell=1)
    text = refused([blocks])
    assert "deadlock: 4 steps wait for each other" in text
    assert "thread block 0, step 0 (nop) at test.xml:4 depends on (depid, deps)" in text


def test_what_follows_a_deadlock_is_not_part_of_it():
    """A thread block that waits for one of the circle is not named."""
    *pair, third = [Block(1, 1), Block(0, 0), Block()]
    for block in pair:
        block.do("r", tell=1)
        block.do("s")
    third.do("cpy", dep=(0, 0))
    assert "(cpy)" not in refused([[pair[0], third], [pair[1]]])


def test_a_step_that_tells_nobody_is_waited_for_in_vain():
    """Unless a later one of its thread block tells."""
    quiet, waits = Block(), Block()
    quiet.do("cpy")
    waits.do("cpy", dst=("s", 0), dep=(0, 0))
    text = refused([[quiet, waits]], scratch=1)
    assert "waits for a step without `hasdep`" in text
    assert "step 0 (cpy) at test.xml:7 waits for gpu 0, thread block 0, step 0 (cpy)" in text
    quiet.do("cpy", tell=1)
    order = order_of(program("allreduce", 1, [[quiet, waits]], scratch=1))
    assert order.signals == {2: 1}
