"""The search over every timing of what processes of a rank share: pipes, ends, their lines."""

import fcntl
import multiprocessing
import multiprocessing.connection

import pytest

import simrank.distributed as dist
from simrank.timings.search import search
from tests.timings.test_search import ends, outputs, runner, say


def verdict_of(body):
    """Return the verdict on a rank that starts processes."""
    return search(runner(body, 1, "thread"), 200)


def _answer(end, number):
    end.send(number)
    say("process", number, "has", end.recv())


def _send(end, number):
    end.send(number)


def own_pipes(rank, ctx, _):
    """Talk with two processes, each over a pipe of its own."""
    pipes = [multiprocessing.Pipe() for _ in range(2)]
    processes = [
        multiprocessing.Process(target=_answer, args=(theirs, number))
        for number, (_, theirs) in enumerate(pipes)
    ]
    for each in processes:
        each.start()
    say([own.recv() for own, _ in pipes])
    for own, _ in pipes:
        own.send("an answer")
    for each in processes:
        each.join()
    say([each.exitcode for each in processes])


def one_pipe(rank, ctx, _):
    """Read what two processes write into one pipe."""
    reader, writer = multiprocessing.Pipe(duplex=False)
    processes = [multiprocessing.Process(target=_send, args=(writer, n)) for n in range(2)]
    for each in processes:
        each.start()
    say([reader.recv() for _ in processes])
    for each in processes:
        each.join()


def two_readers(rank, ctx, _):
    """Write two messages into a pipe that two processes read."""
    reader, writer = multiprocessing.Pipe(duplex=False)

    def take():
        say(reader.recv())

    processes = [multiprocessing.Process(target=take) for _ in range(2)]
    for number, each in enumerate(processes):
        each.start()
        writer.send(number)
    for each in processes:
        each.join()


def told(rank, ctx, _):
    """Have a process write a value once another has told it to, after calls of its own."""
    reader, writer = multiprocessing.Pipe(duplex=False)
    value, other = multiprocessing.Value("i", 0), multiprocessing.Value("i", 0)

    def tells():
        other.value = 1
        writer.send(1)

    def is_told():
        reader.recv()
        value.value = 1

    def writes():
        value.value = 2

    def looks():
        other.value = 2

    processes = [multiprocessing.Process(target=each) for each in (tells, is_told, writes, looks)]
    for each in processes:
        each.start()
    for each in processes:
        each.join()
    say(value.value, other.value)


def polled_pipe(limit_s):
    """Return a body that looks for a message with a limit."""

    def body(rank, ctx, _):
        own, theirs = multiprocessing.Pipe()
        process = multiprocessing.Process(target=_answer, args=(theirs, 7))
        process.start()
        say(own.poll(limit_s))
        say(own.recv(), own.poll(0))
        own.send("an answer")
        process.join()

    return body


def ended(limit_s):
    """Return a body that joins a process with a limit, and looks whether it has ended."""

    def body(rank, ctx, _):
        process = multiprocessing.Process(target=say, args=("lives",))
        process.start()
        process.join(limit_s)
        say(process.exitcode)
        process.join()
        say(process.exitcode, process.is_alive())

    return body


def shared_state(make, write, read):
    """Return a body whose processes write to something shared, with the first state shown."""

    def body(rank, ctx, _):
        shared = make()
        processes = [multiprocessing.Process(target=write, args=(shared, n)) for n in (1, 2)]
        for each in processes:
            each.start()
        early = read(shared)
        for each in processes:
            each.join()
        say(early, read(shared))

    return body


def _set_first(shared, number):
    shared[0] = number


def _set_last(shared, number):
    shared[-1:] = [number]


def _set_name(shared, number):
    shared.name = number


SHARED = {
    "a value": (lambda: multiprocessing.Value("i", 0), lambda v, n: setattr(v, "value", n),
                lambda v: v.value),
    "an element": (lambda: multiprocessing.Array("i", 1), _set_first, lambda a: a[0]),
    "a slice": (lambda: multiprocessing.Array("i", 1), _set_last, sum),
    "a dict": (lambda: multiprocessing.Manager().dict({0: 0}), _set_first, lambda d: d[0]),
    "a list": (lambda: multiprocessing.Manager().list([0]), _set_first, lambda m: m[0]),
    "a namespace": (lambda: multiprocessing.Manager().Namespace(name=0), _set_name,
                    lambda s: s.name),
}  # fmt: skip


@pytest.mark.parametrize("shared", SHARED)
def test_what_is_read_of_a_shared_object_is_decided_by_timing(shared):
    """A read sees no write, one or both; after the joins the last one counts."""
    found = outputs(verdict_of(shared_state(*SHARED[shared])))

    assert found == {(f"{a} {b}", "") for a, b in ((0, 1), (0, 2), (1, 2), (2, 1), (1, 1), (2, 2))}


def _delete_name(namespace):
    del namespace.name


def test_an_attribute_of_a_namespace_is_deleted_before_its_text_is_read_or_after():
    """Both are calls of the manager's."""

    def body(rank, ctx, _):
        namespace = multiprocessing.Manager().Namespace(name=0)
        process = multiprocessing.Process(target=_delete_name, args=(namespace,))
        process.start()
        say(namespace)
        process.join()

    assert outputs(verdict_of(body)) == {("Namespace(name=0)", ""), ("Namespace()", "")}


def test_two_reads_at_one_place_are_no_loop():
    """`list` asks for the length as well."""

    def body(rank, ctx, _):
        names = multiprocessing.Manager().list()
        process = multiprocessing.Process(target=names.append, args=(0,))
        process.start()
        process.join()
        say(list(names))

    verdict = verdict_of(body)

    assert (verdict.is_proved, outputs(verdict)) == (True, {("[0]", "")}), verdict.problems


def test_pipes_with_one_process_at_each_end_are_proved():
    """No order of their calls shows; what each process writes is compared by itself."""
    verdict = verdict_of(own_pipes)

    assert verdict.is_proved, verdict.problems
    assert verdict.num_runs == 1
    [outcome] = verdict.outcomes
    assert outcome.seen.lines[0, "stdout of process 2"] == ["process 1 has an answer", ""]


def test_who_writes_first_into_a_pipe_of_two_is_decided_by_timing():
    """Both orders are found."""
    assert outputs(verdict_of(one_pipe)) == {("[0, 1]", ""), ("[1, 0]", "")}


def test_which_of_two_readers_has_the_first_message_is_decided_by_timing():
    """Each of them may."""
    firsts = {
        outcome.seen.lines[0, "stdout of process 1"][0]
        for outcome in verdict_of(two_readers).outcomes
    }

    assert firsts == {"0", "1"}


def test_a_receive_waits_in_a_search_for_all_that_leads_to_its_message():
    """Each value is the last one written, also by a process that a message had to wake."""
    found = outputs(verdict_of(told))

    assert found == {(f"{value} {other}", "") for value in (1, 2) for other in (1, 2)}


def test_a_poll_of_a_pipe_may_be_too_early_unless_it_waits():
    """With a short limit it sees the message or not; after a receive there is none."""
    early, patient = (verdict_of(polled_pipe(limit_s)) for limit_s in (0.1, None))

    assert {lines[0] for lines in outputs(early)} == {"True", "False"}
    assert {lines[1] for lines in outputs(early)} == {"7 False"}
    assert patient.is_proved, patient.problems


def test_the_end_of_a_process_is_seen_after_a_join_and_may_be_before():
    """A join with a limit may be too late; who has seen the end sees it from then on."""
    short, whole = (verdict_of(ended(limit_s)) for limit_s in (0.1, None))

    assert outputs(short) == {("None", "0 False", ""), ("0", "0 False", "")}
    assert whole.is_proved, whole.problems


def test_a_loop_of_sleeps_that_waits_for_a_file_goes_on_once_others_did(tmp_path):
    """It is no failure; nothing is proved, as files are not followed."""
    path = tmp_path / "flag"

    def body(rank, ctx, _):
        import time

        if rank == 0:
            while not path.exists():
                time.sleep(0.01)
            say("seen")
        else:
            path.write_text("x")

    def run(timing):
        path.unlink(missing_ok=True)
        return runner(body, 2)(timing)

    verdict = search(run, 100)

    assert ends(verdict) == {"returned"}
    assert any("loop of sleeps" in each for each in verdict.problems)


def test_the_order_of_locks_of_a_file_is_decided_by_timing(tmp_path):
    """Two ranks that append to a file under a lock can do so in two orders."""
    path = tmp_path / "names"

    def body(rank, ctx, _):
        dist.init_process_group("gloo")
        with path.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(str(rank))
        dist.barrier()
        if rank == 0:
            say(path.read_text())

    def run(timing):
        path.write_text("")
        return runner(body, 2)(timing)

    assert outputs(search(run, 100)) == {("01", ""), ("10", "")}
