"""Room in buffers: which messages wait until their receivers have taken earlier ones.

A connection is what one lane sends to another. Its buffer holds what has been sent and not been
taken, so a message leaves once all that was sent, itself included, but a buffer's worth has been
taken: a late receiver finds one full buffer, however small the messages are. A rank has taken a
message when its clock is past the round in which it got it.

Rings pass all data by every rank and have closed forms. There a message beyond the buffer waits
until its receiver has begun the phase, not for what it has taken since.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from simrank.collectives.schedule import IntArray, Round, Schedule, step_elements

# Assumed: in schedules of more steps only single messages are compared with the buffer. Those that
# grow so large send to a peer once or twice, or are uneven rings of hundreds of ranks, where a late
# rank has as much to pass on as it finds.
MAX_WINDOW_STEPS = 1 << 18
MEETS = -1  # Instead of a clock: the message starts when its receiver is ready too.


class Ends(NamedTuple):
    """The ends of the steps of a round.

    Attributes:
        src: Lane that sends.
        dst: Lane that receives.
        remote: Whether it is another rank's.
    """

    src: IntArray
    dst: IntArray
    remote: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, steps: Round, world_size: int) -> "Ends":
        """Return the lanes of the steps of a round."""
        channel = steps.channel if steps.dst_channel is None else steps.dst_channel
        src, dst = steps.channel * world_size + steps.src, channel * world_size + steps.dst
        return cls(src, dst, steps.src != steps.dst)


def timed_rounds(schedule: Schedule) -> Iterator[Round]:
    """Yield the rounds of a loop that change clocks."""
    for steps in schedule.rounds():
        if steps.src is not steps.dst or steps.dst_channel is not None:
            yield steps


def window_gates(schedule: Schedule, itemsize: int, *, room_bytes: int) -> IntArray | None:
    """Return the clock that each step waits for besides its sender's; None with room for all.

    Clocks are numbered: those of all lanes at the start, then, step by step through rounds and
    loops, that of the step's receiver after its round. Local steps are only counted where they
    change clocks. Where nothing has to be taken it is the sender's own start.

    Args:
        schedule: What is played.
        itemsize: Bytes of an element.
        room_bytes: Buffer of a connection.
    """
    most = max(schedule.input.num_elements, schedule.output.num_elements) * itemsize
    if most * schedule.num_rounds * schedule.num_loops <= room_bytes:
        return None
    sent = _all_sent(schedule, itemsize, room_bytes)
    if sent is None:
        return None
    gates = (_ring_gates if schedule.phases else _taken_gates)(schedule, sent, room_bytes)
    return gates if bool((gates != sent.src).any()) else None


class _Sent(NamedTuple):
    """All steps, in their order.

    Attributes:
        src: Lane that sends.
        dst: Lane that receives.
        size: Bytes; of messages that do not fit a buffer by themselves, one more than it holds.
        number: Of the round.
    """

    src: IntArray
    dst: IntArray
    size: IntArray
    number: IntArray


def _all_sent(schedule: Schedule, itemsize: int, room_bytes: int) -> _Sent | None:
    """Return all steps, or None if there are too many."""
    found: list[tuple[IntArray, IntArray, IntArray]] = []
    left = MAX_WINDOW_STEPS
    for loop in range(schedule.num_loops):
        tables = schedule.loop_tables(loop)
        for steps in timed_rounds(schedule):
            left -= steps.num_steps
            if left < 0:
                return None
            ends = Ends.of(steps, schedule.world_size)
            size = step_elements(tables, steps) * itemsize
            if schedule.phases:  # All of a round are padded.
                size[:] = size.max(initial=0)
            size = np.where(ends.remote, np.minimum(size, room_bytes + 1), 0)
            counts = ends.remote if steps.dst_channel is None else slice(None)
            found.append((ends.src[counts], ends.dst[counts], size[counts]))
    if not found:
        return None
    number = np.repeat(np.arange(len(found)), [len(src) for src, _, _ in found])
    src, dst, size = (np.concatenate(column) for column in zip(*found, strict=True))
    return _Sent(src, dst, size, number)


def _num_clocks(schedule: Schedule) -> int:
    return schedule.world_size * (schedule.num_lanes or schedule.num_channels)


def _taken_gates(schedule: Schedule, sent: _Sent, room_bytes: int) -> IntArray:
    """Return for each step the clock with which enough of its connection has been taken."""
    num_clocks = _num_clocks(schedule)
    connection = sent.src * num_clocks + sent.dst
    order = np.argsort(connection, kind="stable")
    connection, size, number = connection[order], sent.size[order], sent.number[order]
    total = np.cumsum(size)
    is_first = np.diff(connection, prepend=-1) != 0
    before = np.maximum.accumulate(np.where(is_first, total - size, 0))
    is_beyond = total - room_bytes > before
    taken = np.where(is_beyond, np.searchsorted(total, total - room_bytes), 0)
    clock = np.where(number[taken] < number, num_clocks + order[taken], MEETS)
    gates = sent.src.copy()
    gates[order[is_beyond]] = clock[is_beyond]
    return gates


def _ring_gates(schedule: Schedule, sent: _Sent, room_bytes: int) -> IntArray:
    """Return for each step beyond a buffer the clock with which its receiver began the phase."""
    num_clocks = _num_clocks(schedule)
    begun = np.arange(num_clocks)
    gates, end = sent.src.copy(), 0
    for phase in schedule.phases:
        num_rounds = phase.num_rounds * schedule.num_loops
        part = slice(end, end := end + num_rounds * num_clocks)
        size = sent.size[part].reshape(num_rounds, num_clocks)
        is_beyond = (np.cumsum(size, axis=0) > room_bytes).ravel()
        gates[part][is_beyond] = begun[sent.dst[part]][is_beyond]
        begun = np.empty_like(begun)
        begun[sent.dst[end - num_clocks : end]] = end + np.arange(num_clocks)
    return gates
