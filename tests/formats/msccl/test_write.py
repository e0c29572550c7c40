"""Schedules written as MSCCL's XML, and read again."""

from dataclasses import replace
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from simrank.collectives import Problem, algorithms_for, build, play_data
from simrank.errors import UnsupportedError
from simrank.formats.msccl import parse_msccl, program_of, prove_program, schedule_of, xml_of

from .programs import RIGHT, named, text_of

LINES = [
    (collective, world_size, algorithm)
    for collective in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
    for world_size in (1, 2, 3, 6, 8)
    for algorithm in algorithms_for(collective, world_size)
    if algorithm != "nvls"  # The format has no switch that reduces; see below.
]


def played(schedule, problem):
    """Return the outputs of random data."""
    rng = np.random.default_rng(5)
    n, m = problem.world_size, problem.count
    num_inputs = m if problem.collective in ("all_reduce", "all_gather") else n * m
    num_outputs = m if problem.collective in ("all_reduce", "reduce_scatter") else n * m
    inputs = [rng.integers(-99, 99, num_inputs) for _ in range(n)]
    outputs = [np.zeros(num_outputs, np.int64) for _ in range(n)]
    play_data(schedule, inputs, outputs=outputs)
    return np.array(outputs)


@pytest.mark.parametrize(("collective", "world_size", "algorithm"), LINES)
def test_what_is_written_is_read_proved_and_played_alike(collective, world_size, algorithm):
    """Every algorithm of the table that has no root: no message, order or dependence is lost."""
    problem = Problem(collective, world_size, 50)
    schedule = build(problem, algorithm)
    text = xml_of(program_of(schedule, problem))
    program = parse_msccl(text.encode(), "test.xml")
    proof = prove_program(program, problem)
    assert proof.flaw is None
    assert (played(schedule_of(program, problem), problem) == played(schedule, problem)).all()


def test_steps_inside_a_switch_cannot_be_written():
    """The format has none: refused, by name."""
    problem = Problem("all_reduce", 8, 64)
    with pytest.raises(UnsupportedError, match="nvls: steps inside a switch"):
        program_of(build(problem, "nvls"), problem)


def test_channels_and_several_chunks_stay():
    """A ring per channel, and steps of halves."""
    problem = Problem("all_reduce", 4, 64)
    program = program_of(build(problem, "ring", options={"num_channels": 3}), problem)
    assert (program.num_channels, program.num_chunks) == (3, 12)
    assert {block.channel for gpu in program.gpus for block in gpu.blocks} == {0, 1, 2}
    halves = program_of(build(problem, "halving_doubling"), problem)
    counts = {step.count for block in halves.gpus[0].blocks for step in block.steps}
    assert counts >= {1, 2}


@pytest.mark.parametrize("name", RIGHT)
def test_programs_are_written_as_they_were_read(name):
    """But for the lines in which they stood."""
    made = named(name)
    again = parse_msccl(xml_of(made).encode(), made.file)

    def bare(program):
        gpus = [
            [replace(b, line=0, steps=tuple(replace(s, line=0) for s in b.steps)) for b in g.blocks]
            for g in program.gpus
        ]
        return replace(program, gpus=()), gpus

    assert bare(again) == bare(made)


def test_steps_of_a_ring_wait_for_what_they_need_and_for_nothing_else():
    """Two ranks: what is sent on waits for what was received, and nothing is waited for twice."""
    problem = Problem("all_reduce", 2, 2)
    text = xml_of(program_of(build(problem, "ring"), problem))
    gpu = ET.fromstring(text)[0]
    steps = [
        [(s.get("type"), s.get("srcbuf"), s.get("dstbuf"), s.get("depid")) for s in block]
        for block in gpu
    ]
    assert steps == [
        [("s", "i", "o", "-1"), ("s", "o", "o", "1")],
        [("rrc", "i", "o", "-1"), ("r", "o", "o", "-1")],
    ]


def test_several_dependences_are_nops():
    """All but the last stand before the step, as in MSCCL's own files."""
    problem = Problem("all_gather", 8, 9)
    program = program_of(build(problem, "halving_doubling"), problem)
    blocks = [block for gpu in program.gpus for block in gpu.blocks]
    assert any(step.type == "nop" for block in blocks for step in block.steps)
    for block in blocks:
        for step, after in zip(block.steps, block.steps[1:], strict=False):
            if step.type == "nop":
                assert after.depends_on is not None
        assert block.steps[-1].type != "nop"


def test_names_are_quoted():
    """Whatever they are."""
    made = replace(named("ring"), name='<a "b">')
    assert parse_msccl(xml_of(made).encode()).name == '<a "b">'
    assert 'nchunksperloop="4"' in text_of("ring")


@pytest.mark.parametrize(
    ("problem", "algorithm", "words"),
    [
        (Problem("reduce", 4, 8), "binomial", "a collective with a root"),
        (Problem("all_gather", 2, 0, splits=(1, 2)), "ring", "uneven blocks"),
    ],
)
def test_what_has_no_words_is_refused(problem, algorithm, words):
    """By its name."""
    with pytest.raises(UnsupportedError, match=f"{words} cannot be said in MSCCL's XML"):
        program_of(build(problem, algorithm), problem)


def test_steps_that_have_no_words_are_refused():
    """Of a switch, of other lanes, and sums of two chunks on one rank in a third."""
    problem = Problem("all_reduce", 2, 4)
    schedule = build(problem, "ring")
    first = schedule.materialise()[0]
    local = first._replace(dst=first.src)
    for steps, words in (
        (first._replace(fan=first.src), "inside a switch"),
        (first._replace(dst_channel=first.src), "between lanes"),
        (local, "a local sum that goes elsewhere"),
    ):
        with pytest.raises(UnsupportedError, match=words):
            program_of(replace(schedule, rounds=lambda s=steps: iter([s])), problem)
