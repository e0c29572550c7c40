"""Commands of simrank in processes of their own, which import torch once for all of them.

Python's fork server imports it before it has threads, and forks for each command; it ends with the
process that runs commands, and no program leaves anything in it. A command that it cannot be
asked for is started as a user would start it.
"""

from __future__ import annotations

import atexit
import os
import re
import signal
import subprocess
import sys
import threading  # noqa: TID251 - in processes of commands, before a simulation
from contextlib import contextmanager
from importlib import import_module
from multiprocessing import connection, forkserver, get_context, parent_process
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from simrank.planning.inputs import note_files

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from multiprocessing.context import ForkServerContext, ForkServerProcess

_TORCHS = re.compile(r"^\s*(?:from|import)\s+(torch(?:\.\w+)*)", re.MULTILINE)
_OURS = (
    "simrank.planning.commands", "simrank.cli", "simrank.cli.run", "simrank.multiprocessing.script",
)  # fmt: skip
# What runs without values import of torch, and where our modules of torch programs lie.
_WITH_TORCH = "torch.distributed.nn.functional", "torch.fx.experimental.symbolic_shapes"
_FOLDERS = "distributed", "torch/devices", "torch/groups", "torch/rank_state", "torch/symmetric"
# Ends with its parent, also where that is killed: else a run of hours would go on.
_CHILD = """
import os, sys, threading
def end():
    os.read({fd}, 1)
    os._exit(1)
threading.Thread(target=end, daemon=True).start()
from simrank.planning.inputs import note_files
note_files()
from simrank.cli import main
main(sys.argv[1:])
"""


class Ended(NamedTuple):
    """The exit status of a command, negative for a signal, and what it wrote to stderr."""

    status: int
    said: str


class ForkedCommands:
    """Runs commands, from any thread.

    Args:
        program: The file that they run, whose imports of torch are those of all.
    """

    def __init__(self, program: Path) -> None:
        self._context: ForkServerContext | None = get_context("forkserver")
        self._context.set_forkserver_preload(preloaded(program))
        self._running: set[ForkServerProcess | subprocess.Popen[str]] = set()
        is_main = threading.current_thread() is threading.main_thread()
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN) if is_main else None
        try:  # It begins to import, and leaves Ctrl-C to this process, with which it ends.
            forkserver.ensure_running()
        except OSError:  # No folder for its socket, say.
            self._context = None
        finally:
            if is_main:
                signal.signal(signal.SIGINT, handler)

    def run(self, words: Sequence[str], folder: Path) -> Ended:
        """Run one, with nothing to read; what it prints to stdout is dropped.

        Args:
            words: From the name of the command on.
            folder: Where it runs.
        """
        server = self._context
        if server is not None:
            reader, writer = server.Pipe(duplex=False)
            with reader, writer:
                process = server.Process(target=_run_here, args=(words, folder, writer))
                try:
                    process.start()
                except (OSError, EOFError):  # No server: it could not start, or was killed.
                    self._context = None
                else:
                    writer.close()
                    return self._ended(process, reader)
        return self._alone(words, folder)

    def _ended(self, process: ForkServerProcess, reader: connection.Connection) -> Ended:
        self._running.add(process)
        try:
            with open(reader.fileno(), errors="backslashreplace", closefd=False) as stream:
                said = stream.read()
            process.join()
        finally:
            self._running.discard(process)
        assert process.exitcode is not None, "it has been joined"
        return Ended(process.exitcode, said)

    def _alone(self, words: Sequence[str], folder: Path) -> Ended:
        alive, ours = os.pipe()
        try:
            child = subprocess.Popen(
                [sys.executable, "-c", _CHILD.format(fd=alive), *words],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                text=True, errors="backslashreplace", cwd=folder, pass_fds=(alive,),
            )  # fmt: skip
            self._running.add(child)
            with child:
                try:
                    _, said = child.communicate()
                finally:
                    self._running.discard(child)
        finally:
            os.close(alive)
            os.close(ours)
        return Ended(child.returncode, said)

    @contextmanager
    def ended(self) -> Iterator[None]:
        """End those that still run at an error in the block."""
        try:
            yield
        except BaseException:
            for each in list(self._running):
                each.kill()
            raise


def preloaded(program: Path) -> list[str]:
    """Return the modules to import once: those of torch that a program names, and ours."""
    try:
        text = program.read_text(errors="replace")
    except OSError:
        text = ""
    named = list(dict.fromkeys(_TORCHS.findall(text)))
    package = Path(__file__).parents[1]
    files = [path for each in _FOLDERS for path in sorted((package / each).glob("[!_]*.py"))]
    ours = [".".join(path.with_suffix("").parts[len(package.parts) - 1 :]) for path in files]
    return [*_OURS, *named, *((*_WITH_TORCH, "simrank.torch.install", *ours) if named else ())]


def _run_here(words: Sequence[str], folder: Path, writer: connection.Connection) -> None:
    """Run a command in a process that has just been forked, as one of its own would run it."""
    parent = parent_process()
    assert parent is not None, "the fork server has started it"
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.set_inheritable(parent.sentinel, True)  # A run may start again in this process.
    threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()
    os.dup2(writer.fileno(), 2)
    writer.close()
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    os.close(nothing)
    os.chdir(folder)
    note_files()
    sys.argv = ["-c", *words]
    sys.orig_argv = [sys.executable, "-c", _CHILD.format(fd=parent.sentinel), *words]
    try:
        import_module("simrank.__main__").main()
    finally:
        atexit._run_exitfuncs()  # noqa: SLF001 - a fork ends without


def _end_with(sentinel: int) -> None:
    os.read(sentinel, 1)
    os._exit(1)
