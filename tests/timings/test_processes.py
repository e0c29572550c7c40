"""The search over every timing of what processes of a rank share: pipes, ends, their lines."""

import multiprocessing
import multiprocessing.connection

from simrank.timings.search import search
from tests.timings.test_search import ends, outputs, runner, say


def verdict_of(body):
    """Return the verdict on a rank that starts processes."""
    return search(runner(body, 1, "thread"), 200)


def _answer(end, number):
    end.send(number)
    say("process", number, "has", end.recv())


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
    processes = [multiprocessing.Process(target=writer.send, args=(n,)) for n in range(2)]
    for each in processes:
        each.start()
    say([reader.recv() for _ in processes])
    for each in processes:
        each.join()


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
