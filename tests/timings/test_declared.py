"""Every poll says what timing can make of it: what `limits.ask` does not is on one of two lists."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "simrank"

# Polls by which another call is the choice: it has been made, or is made in their place.
CHOSEN_ELSEWHERE = {
    "engine/limits.py: ask",
    "isolation/clock.py: _read_ps",
    "isolation/clock.py: sleep",
    "isolation/locks.py: _acquire",
    "isolation/locks.py: note_lock",
    "isolation/locks.py: note_read",
    "isolation/stdlib.py: ask",
    "isolation/stdlib.py: attempt",
    "multiprocessing/turns.py: take_turn",
    "torch/groups/stores.py: _poll",
}
# Polls that a search of every timing does not follow: it names them, and proves nothing.
NOT_FOLLOWED = {
    "isolation/blocking_calls.py: lock",
    "isolation/blocking_calls.py: poll",
    "isolation/event_loops.py: select",
    "kernels/running/programs.py: poll_again",
    "multiprocessing/pipes.py: _let_others_go_on",
    "multiprocessing/zmq_patches.py: poll",
    "multiprocessing/zmq_sockets.py: _reach",
}


def _polls(path):
    """Yield the innermost function of each call of `limits.poll` or `limits.host_sleep`."""
    tree = ast.parse(path.read_text())
    owners = {}
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            owners |= {id(each): function.name for each in ast.walk(function)}
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        called = call.func
        is_of_limits = isinstance(called, ast.Attribute) and (
            called.attr in ("poll", "host_sleep") and ast.unparse(called.value) == "limits"
        )
        is_poll = isinstance(called, ast.Name) and called.id == "poll" and path.name == "limits.py"
        if is_of_limits or is_poll:
            yield owners[id(call)]


def test_every_poll_asks_through_the_seam_or_is_on_a_list():
    """A new one that polls by itself fails here, until it says what a search makes of it."""
    found = {
        f"{path.relative_to(PACKAGE)}: {function}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for function in _polls(path)
    }
    assert found == CHOSEN_ELSEWHERE | NOT_FOLLOWED
