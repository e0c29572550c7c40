"""Steps of MSCCL programs that nothing orders."""

import pytest

from simrank.errors import ScheduleError
from simrank.formats.msccl.algorithm import check_races
from simrank.formats.msccl.order import order_of

from .programs import RIGHT, Block, named, program


@pytest.mark.parametrize("name", RIGHT)
def test_right_programs_have_none(name):
    """Thread blocks, dependences and messages order all that they touch in common."""
    check_races(order_of(named(name)))


def race(gpus, **options):
    """Return the text of a race, or None."""
    try:
        check_races(order_of(program("allreduce", 1, gpus, scratch=1, **options)))
    except ScheduleError as error:
        return str(error)
    return None


def test_two_writers_of_a_chunk_race():
    """With both lines; not if one waits for the other."""
    for dep, tell in (((-1, -1), 0), ((0, 0), 1)):
        first, second = Block(), Block()
        first.do("cpy", tell=tell)
        second.do("cpy", dep=dep)
        text = race([[first, second]])
        assert (text is None) == bool(tell)
        if text is not None:
            assert text == (
                "test.xml: nothing orders two steps that touch output chunk 0 of gpu 0\n"
                "  gpu 0, thread block 0, step 0 (cpy) at test.xml:4\n"
                "  gpu 0, thread block 1, step 0 (cpy) at test.xml:7"
            )


def test_a_reader_and_a_later_writer_race():
    """Two readers do not."""
    reader, writer = Block(), Block()
    reader.do("cpy", ("s", 0), ("o", 0))
    writer.do("cpy", ("i", 0), ("s", 0))
    assert "touch scratch chunk 0 of gpu 0" in race([[reader, writer]])
    other = Block()
    other.do("cpy", ("i", 0), ("s", 0))
    assert race([[reader], [other]]) is None


def test_in_place_input_and_output_are_one_chunk():
    """Out of place they are two."""
    reader, writer = Block(), Block()
    reader.do("cpy", ("i", 0), ("s", 0))
    writer.do("cpy", ("s", 0), ("o", 0), dep=(0, 0))
    reader.steps[0] = (*reader.steps[0][:-1], 1)
    again = Block()
    again.do("cpy", ("i", 0), ("s", 0), dep=(0, 0))
    later = Block()
    later.do("re", ("i", 0), ("o", 0))
    assert "chunk 0" in race([[reader, later]], in_place=1)
    assert race([[reader, later]]) is None


def test_messages_to_and_fro_order_what_a_gpu_does():
    """Thread block 0 sends a chunk over, and thread block 1 takes back what came of it."""
    out, back = Block(1), Block(-1, 1)
    out.do("s", ("s", 0))
    back.do("r", dst=("s", 0))
    mirror = Block(0, 0)
    mirror.do("rcs", dst=("o", 0))
    fill = Block()
    fill.do("cpy", ("i", 0), ("o", 0))
    assert race([[out, back, fill], [mirror]]) is None
