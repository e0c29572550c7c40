"""Rounds of MSCCL programs: what they leave, and when, beside a walk through the program itself."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simrank.collectives import Problem, play_data, play_time
from simrank.collectives.schedule import Schedule
from simrank.collectives.time_network import NOT_ARRIVED, NOT_KNOWN, Lane
from simrank.errors import ScheduleError
from simrank.formats.msccl import schedule_of
from simrank.formats.msccl.algorithm import _tables, check_races
from simrank.formats.msccl.lower import lower
from simrank.formats.msccl.order import order_of
from simrank.hardware import load_cluster

from .programs import RIGHT, Block, named, program

CLUSTER = load_cluster({"name": "h100_ib", "nodes": 4})
DEVICES = np.array([0, 1, 8, 16, 24, 2])  # Three on one node; the others apart: sending is short.
LAUNCH_PS = CLUSTER.collectives.launch_latency_ps


def walked(order, arrivals):
    """Return when each rank ends, by the longest path through the program; nothing has a size."""
    lanes, arrived, ends = {}, {}, {}
    done = [int(time) for time in arrivals]
    for number in order.sequence:
        node = order.nodes[number]
        now = lanes.get(node.lane, int(arrivals[node.rank]))
        now = max(now, arrived.get(number, 0), ends.get(order.signals.get(number), 0))
        if number in order.messages:
            pair = (DEVICES[node.rank : node.rank + 1], DEVICES[node.block.send][None])
            costs = Lane(CLUSTER, pair, fan=None, loaded=np.array([False])).costs(0)
            arrived[order.messages[number]] = now + int(costs.flight_ps[0])
            now += int(costs.busy_ps[0])
        lanes[node.lane] = ends[number] = now
        done[node.rank] = max(done[node.rank], now)
    return done


def timed(order, arrivals):
    """Return when each rank ends, by the rounds."""
    made = lower(order)
    problem = Problem(order.program.collective, order.program.world_size, 0)
    tables = _tables(order.program, problem, made.num_scratch)
    schedule = Schedule(
        *(problem.collective, "x", problem.world_size, lambda: iter(made.rounds), 1),
        *tables,
        num_lanes=made.num_lanes,
    )
    devices = DEVICES[: problem.world_size]
    started = np.array(arrivals) - LAUNCH_PS
    return play_time(schedule, started, network=CLUSTER, devices=devices, itemsize=4).tolist()


def left(order, values):
    """Return what the program leaves in its outputs, step by step, as it is written."""
    made = order.program
    held = {(r, "i", c): v for r, row in enumerate(values) for c, v in enumerate(row)}
    sent = {}
    for number in order.sequence:
        rank, _, step, _ = order.nodes[number]
        kind = step.kind
        for index in range(step.count):
            src = (rank, step.src[0], step.src[1] + index)
            dst = (rank, step.dst[0], step.dst[1] + index)
            value = sent.get((number, index), 0.0) if kind.receives else 0.0
            if kind.reads:
                value += held.get(src, np.nan)
            if step.type == "re":
                value += held.get(dst, np.nan)
            if kind.writes:
                held[dst] = value
            if kind.sends:
                sent[order.messages[number], index] = value
    return np.array(
        [
            [held.get((rank, "o", chunk), np.nan) for chunk in range(made.num_outputs)]
            for rank in range(made.world_size)
        ]
    )


KINDS = st.sampled_from(["message", "message", "forward", "local", "depend"])
STEPS = st.lists(st.tuples(KINDS, st.integers(0, 999)), max_size=24)


class Maker:
    """Makes programs that end: each step is added after all that it waits for."""

    def __init__(self, draws, chunks=6):
        self.chunks = chunks
        peers = [((rank + 1) % 3, (rank + 2) % 3) for rank in range(3)]
        self.blocks = [[Block(a, b), Block(b, a), Block()] for a, b in peers]
        self.waiting = {}
        for kind, draw in draws:
            getattr(self, kind)(draw)
        for rank, block in list(self.waiting):
            while self.waiting[rank, block]:
                self.receive(rank, block, 0)

    def place(self, draw, buffers="ios"):
        """Return some chunk."""
        return buffers[draw % len(buffers)], draw // 3 % self.chunks

    def send(self, rank, number, kind, draw):
        """Add a step that sends."""
        block = self.blocks[rank][number]
        block.do(kind, self.place(draw), self.place(draw // 7, "os"), tell=1)
        self.waiting[block.send, number] = self.waiting.get((block.send, number), 0) + 1

    def receive(self, rank, number, draw):
        """Add a step that receives what was sent."""
        self.waiting[rank, number] -= 1
        kind = ("r", "rrc")[draw % 2]
        self.blocks[rank][number].do(kind, self.place(draw), self.place(draw, "os"), tell=1)

    def message(self, draw):
        """Send, or receive what waits."""
        rank, number = draw % 3, draw // 3 % 2
        if draw % 5 < 2 and self.waiting.get((rank, number)):
            self.receive(rank, number, draw)
        else:
            self.send(rank, number, "s", draw)

    def forward(self, draw):
        """Pass on what waits."""
        rank, number = draw % 3, draw // 3 % 2
        if self.waiting.get((rank, number)):
            self.waiting[rank, number] -= 1
            self.send(rank, number, ("rcs", "rrs", "rrcs")[draw % 3], draw)

    def local(self, draw):
        """Copy or reduce."""
        kind = ("cpy", "re")[draw % 2]
        block = self.blocks[draw % 3][draw // 3 % 3]
        block.do(kind, self.place(draw), self.place(draw, "os"), tell=1)

    def depend(self, draw):
        """Wait for another thread block."""
        blocks, waits, other = self.blocks[draw % 3], draw // 3 % 3, draw // 9 % 3
        if waits != other and blocks[other].steps:
            step = len(blocks[other].steps) - 1 - draw % 2 * (len(blocks[other].steps) > 1)
            steps = blocks[other].steps
            while step < len(steps) and not steps[step][-1]:
                step += 1
            if step < len(steps):
                src, dst = self.place(draw), self.place(draw, "os")
                kind = ("nop", "cpy")[draw % 2]
                blocks[waits].do(kind, src, dst, dep=(other, step), tell=int(kind == "cpy"))

    def order(self):
        """Return the program in order."""
        made = program("allreduce", self.chunks, self.blocks, scratch=self.chunks)
        return order_of(made)


@given(draws=STEPS, late=st.tuples(*[st.integers(0, 9_000_000)] * 3))
def test_times_are_the_longest_paths_of_any_program(draws, late):
    """Whatever runs ahead of what: no clock is taken over too early or too late."""
    order = Maker(draws).order()
    assert timed(order, late) == walked(order, late)


@given(draws=STEPS)
def test_data_are_those_of_any_program_without_races(draws):
    """Read from chunks that hold something, and from those that do not."""
    order = Maker(draws, chunks=40).order()
    try:
        check_races(order)
    except ScheduleError:
        return
    values = np.random.default_rng(3).integers(1, 99, (3, 40)).astype(float)
    expected = left(order, values)
    problem = Problem("all_reduce", 3, 40)
    outputs = [np.full(40, np.nan) for _ in range(3)]
    play_data(schedule_of(order.program, problem), list(values), outputs=outputs)
    known = ~np.isnan(expected)
    assert (np.array(outputs)[known] == expected[known]).all()


@pytest.mark.parametrize("name", RIGHT)
def test_times_of_right_programs_are_their_longest_paths(name):
    """With ranks that come late."""
    order = order_of(named(name))
    late = np.arange(order.program.world_size) * 1_234_567
    assert timed(order, late) == walked(order, late)


def test_a_receiver_is_not_held_up_by_messages_that_it_receives_later():
    """Rank 1 sends first, though what rank 0 sends to it arrives before: they do not wait."""
    one, other = Block(1, 1), Block(0, 0)
    one.do("s")
    one.do("r", dst=("o", 0))
    other.do("cpy", ("i", 0), ("s", 0))
    other.do("s", ("s", 0))
    other.do("r", dst=("o", 0))
    order = order_of(program("allreduce", 1, [[one], [other]], scratch=1))
    done = timed(order, [LAUNCH_PS, LAUNCH_PS])
    assert done == walked(order, [LAUNCH_PS, LAUNCH_PS])
    step_ps = CLUSTER.collectives.step_overhead_ps
    assert [time - LAUNCH_PS for time in done] == [step_ps, step_ps]


def test_ranks_that_have_not_come_are_waited_for():
    """Only by those that need them."""
    sender, receiver = Block(1), Block(-1, 0)
    sender.do("s")
    receiver.do("r")
    order = order_of(program("allreduce", 1, [[sender], [receiver]]))
    done = timed(order, [0, NOT_ARRIVED])
    assert (done[0] < NOT_KNOWN, done[1]) == (True, NOT_KNOWN)
    assert timed(order, [NOT_ARRIVED, 0]) == [NOT_KNOWN, NOT_KNOWN]
