"""What a frame holds besides its variables is known, or the place is unsure."""

import dis

import pytest

from simrank.timings.stacks import held
from tests.timings.test_search import dist, outputs, say, verdict_of

KNOWN = {
    "a statement": "poll()",
    "an argument": "say('x', poll())",
    "a method of a variable": "got.append(poll())",
    "a loop along a range": "for k in range(n):\n    got.append(poll())",
    "two loops with one name": "for k in range(2):\n    pass\nfor k in range(n):\n    poll()",
    "a block with a lock": "with lock:\n    poll()",
    "a condition": "while not work.poll():\n    n += 1",
    "a handler": "try:\n    poll()\nexcept ValueError:\n    pass",
}
UNKNOWN = {
    "half of a sum": "say(poll(1) * 2 + poll())",
    "a computed argument": "say(f(n), poll())",
    "part of a list": "[f(1), poll()]",
    "part of a text": "f'{f(1)} {poll()}'",
    "a loop along a list": "for each in values:\n    poll()",
    "an attribute that may change": "say(got.first, poll())",
    "a variable that is set again": "say(n, (n := 0), poll())",
    "a block of what is set again": "lock = f(1)\nwith lock:\n    lock = None\n    poll()",
    "a range of what a function changes": "def f():\n    global n\n    n = 0\nfor k in range(n):\n"
    "    poll()",
    "a range that is counted elsewhere": "for k in range(n):\n    k = poll()",
}


def last_poll(text):
    """Return the stack at the last call of `poll` in a program."""
    code = compile(text, "program.py", "exec")
    found = [held(code, step.offset) for step in dis.get_instructions(code)]
    [*_, last] = [each for each in found if each.called and each.called[-1] == "poll"]
    return last


@pytest.mark.parametrize("name", KNOWN)
def test_variables_and_constants_are_known(name):
    """They are among the variables of the frame."""
    assert last_poll(KNOWN[name]).is_known


@pytest.mark.parametrize("name", UNKNOWN)
def test_results_on_the_stack_are_not(name):
    """No variable has them."""
    assert not last_poll(UNKNOWN[name]).is_known


def test_variables_on_the_stack_are_read_again():
    """They count for the state also where no later line reads them."""
    assert last_poll("got.append(poll())").names == {"got"}


def receiver(show):
    """Return a body whose rank 0 shows what it makes of four receives from any rank."""

    def body(rank, ctx, _):
        def receive(_):
            part = ctx.zeros(1, device="cpu")
            return str(dist.recv(part))

        dist.init_process_group("gloo")
        if rank == 0:
            say(show(receive))
        else:
            for _ in range(2):
                dist.send(ctx.ones(1, device="cpu"), 0)

    return body


SHOWS = {
    "a loop in C": lambda receive: "".join(map(receive, range(4))),
    "one expression": lambda receive: receive(0) + receive(1) + receive(2) + receive(3),
    "a comprehension": lambda receive: "".join([receive(n) for n in range(4)]),
    "a generator": lambda receive: "".join(receive(n) for n in range(4)),
    "a sort": lambda receive: "".join(sorted("abcd", key=receive)),
    "a dict": lambda receive: "".join({n: receive(n) for n in range(4)}.values()),
}


@pytest.mark.parametrize("name", SHOWS)
def test_all_orders_are_found_wherever_a_program_keeps_them(name):
    """Two messages of each of two ranks can come in six orders."""
    assert len(outputs(verdict_of(receiver(SHOWS[name])))) == 6
