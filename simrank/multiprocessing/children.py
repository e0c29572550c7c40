"""multiprocessing's processes, queues and locks in a rank, run as its threads.

A rank that starts a `Process` (to write a checkpoint, say) gets a thread in the same lockstep, so
it waits in simulated time, and a child that never ends is part of the deadlock report. The target's
arguments are copied as pickling would. A process that is spawned executes the modules that its rank
has for itself again; what one that is forked changes in modules is seen by its rank. Environment
and arguments, process id, exit and process groups are a process's own: one that joins a group is a
member of it as any rank is, and its death is that of a member.
"""

from __future__ import annotations

import functools
import sys
import threading  # noqa: TID251 - its classes are engine waits in a rank (see `isolation.threads`)
import traceback
from typing import TYPE_CHECKING, Any, cast

from simrank.distributed.membership import process_ended, world_of
from simrank.engine import limits
from simrank.errors import RankAborted
from simrank.isolation import (
    blocking_calls,
    finalizers,
    libraries,
    output,
    private_importers,
    process_state,
    threads,
)
from simrank.isolation.private_modules import private_modules
from simrank.isolation.threads import PROGRAM, TO_FIX, TURN, end_thread
from simrank.multiprocessing import shared
from simrank.multiprocessing.arguments import called_once, close_received, per_rank
from simrank.multiprocessing.shared import BY_NAME
from simrank.ranks.current import current_program, process_of, rank_program, running_task
from simrank.ranks.lifecycle import start_process

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, ModuleType

    from simrank.isolation.private_modules import PrivateModules
    from simrank.multiprocessing.arguments import Call
    from simrank.ranks.current import Program

    Patches = list[tuple[Any, str, Any]]

# What a context of multiprocessing makes, and `simrank.multiprocessing` has for ranks.
NAMES = (
    "Array", "Barrier", "BoundedSemaphore", "Condition", "Event", "JoinableQueue", "Lock",
    "Manager", "Queue", "RLock", "Semaphore", "SimpleQueue", "Value",
)  # fmt: skip
_KILLED, _TERMINATED = -9, -15
_USE_THREADS = "use concurrent.futures.ThreadPoolExecutor, on ranks that are threads"


def of_module(module: ModuleType) -> Patches:
    """Return patches for the names of a module that are methods of the default context."""
    return [(module, name, _bound(vars(module)[name], name)) for name in NAMES]


def of_context(module: ModuleType) -> Patches:
    """Return patches for the methods of multiprocessing's contexts."""
    base: Any = vars(module)["BaseContext"]
    return [(base, name, _method(getattr(base, name), name)) for name in NAMES]


def of_process(module: ModuleType) -> Patches:
    """Return the patches for the start of a process, and for the numbers in names."""
    base, name = vars(module)["BaseProcess"], "_process_counter"
    numbers = _Numbers(functools.partial(next, vars(module)[name]))
    return [(base, "start", _start(base.start, base.run)), (module, name, numbers)]


class _Numbers:
    """The numbers of processes, which name them: a rank's begin at 1, in every run.

    Args:
        original: Returns the next one outside of ranks.
    """

    def __init__(self, original: Callable[[], int]) -> None:
        self._take = threads.counted(original, "processes made")

    def __next__(self) -> int:
        """Return the running rank's next one."""
        return self._take()


def of_executor(module: ModuleType) -> Patches:
    """Return the patch that refuses pools of processes."""
    kind: Any = vars(module)["ProcessPoolExecutor"]
    name = "concurrent.futures.ProcessPoolExecutor"
    return [(kind, "__init__", blocking_calls.refuse(kind.__init__, name, _USE_THREADS))]


def _bound(original: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Make it of ranks where a rank asks."""

    @functools.wraps(original)
    def make(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the original's
        return (original if rank_program() is None else _of_ranks(name))(*args, **kwargs)

    return make


def _method(original: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def make(self: object, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the original's
        if rank_program() is None:
            return original(self, *args, **kwargs)
        return _of_ranks(name)(*args, **kwargs)

    return make


def _of_ranks(name: str) -> Callable[..., Any]:
    return getattr(shared, name)  # type: ignore[no-any-return]


def _start(original: Callable[..., None], run: object) -> Callable[..., None]:
    refuse = blocking_calls.refuse(original, "multiprocessing.process.BaseProcess.start", TO_FIX)

    @functools.wraps(original)
    def start(self: Any) -> None:  # noqa: ANN401 - a Process and what is private of it
        task, program = running_task(), current_program()
        if task is None or program is None or program.rank is None:
            original(self)
            return
        if task.carrier.thread_id is None:
            refuse(self)
        vars(self)["_Popen"] = functools.partial(_Child, has_own_run=type(self).run is not run)
        try:
            original(self)
        finally:
            del vars(self)["_Popen"]

    return start


class _Child:
    """The handle of a process that multiprocessing started; the process is a thread here.

    Args:
        process: Whose it is.
        has_own_run: Whether the process is of a class with a `run` of its own; that is not copied.
    """

    method = "simrank"

    def __init__(self, process: Any, *, has_own_run: bool) -> None:  # noqa: ANN401 - as above
        starter = current_program()
        assert starter is not None, "a rank starts it"
        self.returncode: int | None = None
        self._told: list[Any] = []
        self._name, is_forked = process.name, _is_forked(process)
        self._program = program = process_of(starter, is_forked=is_forked)
        program.local["world"] = world_of(starter)
        process_state.begin_process(program)
        own = _modules_of(starter, is_forked=is_forked)
        self._call = _call_of(process, is_new=own is not None, has_own_run=has_own_run)
        self._thread = threading.Thread(
            target=self._live, name=process.name, daemon=bool(process.daemon)
        )
        state: dict[str, Any] = vars(self._thread)
        if own is not None:
            private_importers.check_begun(starter)
        if not is_forked:
            anew = None if own is None else own.of_process(program)
            state[TURN] = libraries.keep_states_of_process(program, own, anew)
        state[PROGRAM] = program
        self._thread.start()
        self.pid = self.sentinel = start_process(program)
        task = cast("threads.ThreadTask", program.task)
        task.on_end = self._has_ended

    def _live(self) -> None:
        program = self._program
        try:
            try:
                private_importers.begin_process(program)
                target, given = called_once(self._call)
                target(*given)
                finalizers.rank_returned(program)
                status = 0
            finally:
                close_received(program)
                finalizers.forget(program)
                output.rank_ended(program)
        except RankAborted:
            raise
        except SystemExit as error:
            status = error.code & 0xFF if isinstance(error.code, int) else int(bool(error.code))
        except BaseException:  # noqa: BLE001 - as there: the exit code informs the parent
            status = 1
            sys.stderr.write(f"Process {self._name}:\n{traceback.format_exc()}")
        threads.rank_returns(program)
        self._end(status)

    def _has_ended(self) -> None:
        """Note an end at once: by a signal, or `os._exit`."""
        status = cast("threads.ThreadTask", self._program.task).status
        self._end(_TERMINATED if status is None else status)

    def _end(self, status: int) -> None:
        """Record its exit code, and fail the calls that wait for it in a process group."""
        if self.returncode is None:
            self.returncode = status
            delays = self._program.engine.delays
            if delays is not None:
                delays.exit_codes.setdefault(self._program.rank, []).append(status)
            process_ended(self._program, status)
            for queue in self._told:
                queue.put(None)

    def tell_end(self, queue: Any) -> None:  # noqa: ANN401 - a queue
        """Put None into a queue once the process has ended."""
        if self.returncode is not None:
            queue.put(None)
        elif queue not in self._told:
            self._told.append(queue)

    def poll(self, flag: object = None) -> int | None:
        """Return the exit code, or None while it runs."""
        del flag
        if _only_cleans_up(sys._getframe(1)):  # noqa: SLF001 - the documented way to a caller
            return None
        return None if self._thread.is_alive() else self.returncode

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for its end; return the exit code, or None if it has not come in time."""
        self._thread.join(timeout)
        return self.poll()

    def terminate(self) -> None:
        """End it at its wait, as SIGTERM does."""
        self._stop(_TERMINATED)

    def kill(self) -> None:
        """End it at its wait, as SIGKILL does."""
        self._stop(_KILLED)

    def _stop(self, status: int) -> None:
        if self.returncode is None:
            limits.pass_over(self._program.engine, "what a process has done when it is ended")
            cast("threads.ThreadTask", self._program.task).status = status
            end_thread(self._thread)

    def close(self) -> None:
        """Do nothing: there are no resources."""


def _only_cleans_up(caller: FrameType) -> bool:
    """Return whether a start asks, to forget processes that have ended: none shows the answer."""
    above = caller.f_back
    is_start = above is not None and above.f_code.co_name == "start"
    return is_start and caller.f_code.co_name == "_cleanup"


def _is_forked(process: Any) -> bool:  # noqa: ANN401 - as above
    import multiprocessing  # noqa: PLC0415 - here it is imported; elsewhere it need not be

    method = getattr(process, "_start_method", None) or multiprocessing.get_start_method()
    return bool(method == "fork")


def _modules_of(program: Program, *, is_forked: bool) -> PrivateModules | None:
    """Return the private modules of a rank for a new process; None if the process shares them."""
    own = private_modules(program)
    return None if own is None or not own.has_any or is_forked else own


def _call_of(process: Any, *, is_new: bool, has_own_run: bool) -> Call:  # noqa: ANN401 - as above
    """Return a call that makes the function and arguments of a process when it starts."""
    if is_new:  # It is sent whole, as pickling does.
        return per_rank(_run_copy, process.__reduce_ex__(4), shared=False, refer=BY_NAME)
    if has_own_run:
        return per_rank(process.run, (), shared=True)
    given = (process._target, process._args, process._kwargs)  # noqa: SLF001 - as above
    return per_rank(_call, given, shared=False, refer=BY_NAME)


def _run_copy(
    make: Callable[..., Any],
    given: tuple[Any, ...],
    state: Any = None,  # noqa: ANN401 - the process's own
    *_: object,
) -> None:
    """Run a process as it arrives: made again of its class, and given its state."""
    process = make(*given)
    if hasattr(process, "__setstate__"):
        process.__setstate__(state)
    else:
        vars(process).update(state)
    process.run()


def _call(
    target: Callable[..., object] | None, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    if target is not None:
        target(*args, **kwargs)
