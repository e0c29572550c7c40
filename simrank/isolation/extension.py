"""The extension that isolates ranks: where isolation takes part in Contexts and spawns."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

from simrank.errors import RankAborted
from simrank.isolation import (
    exits,
    finalizers,
    libraries,
    locks,
    mock_patches,
    output,
    private_importers,
    process_state,
    stdlib,
    threads,
)
from simrank.isolation.carrier_choice import uses_library
from simrank.isolation.module_globals import GlobalsOfRank, ModuleGlobals
from simrank.isolation.package_state import PackagesOfRank, see_handled
from simrank.isolation.private_modules import (
    PrivateModules,
    own_copy,
    private_modules,
    reference,
    take_class_here,
)
from simrank.ranks.extensions import Extension

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simrank.engine import EngineInterface, Task
    from simrank.errors import RankState
    from simrank.ranks.current import Program
    from simrank.ranks.extensions import Body, SpawnPlan

OWN_MODULES = "each rank executes the modules of the program"  # In `Program.local`.
SCRIPT_USES_LIBRARY = "the script imports a registered library"  # Likewise.
# Likewise, in plans.
_PRIVATE, _MAIN, _LIBRARIES = "private modules", "main module", "libraries in use"
_IS_OF_SCRIPT = "ranks run a script, or were spawned by one that does"
_GLOBALS = "names that ranks set"  # In the main program's `local`: they hold the Context.


class ContextOfRanks(Protocol):
    """The settings of a Context that isolation reads.

    Attributes:
        strict: Whether names of shared modules that ranks set are an error.
        private: Packages that each rank executes for itself.
        program: The main program, which keeps the state of extensions.
    """

    program: Program
    strict: bool
    private: Sequence[str]


def _leave(program: Program) -> None:
    """End a rank as Python ends a process: its threads, then what it has for its exit."""
    threads.rank_returns(program)
    exits.run(program)


class RankIsolation(Extension):
    """Gives each rank the state that a process would have for itself."""

    def install(self) -> None:
        """Replace names of the standard library, which ranks share."""
        stdlib.install()

    def remove(self) -> None:
        """Restore the standard library."""
        finalizers.stop()
        stdlib.remove()

    def make_context(self, context: Any) -> None:  # noqa: ANN401 - the Context lives above
        """Watch the names that ranks set in modules that they share."""
        watch = context.program.local[_GLOBALS] = ModuleGlobals(is_strict=context.strict)
        if context.strict:
            context.engine.observers.append(watch)

    def forget_engine(self, engine: EngineInterface) -> None:
        """Drop patches and working directories of its ranks."""
        mock_patches.forget(engine)
        process_state.forget_folders(engine)

    def check_end(self, context: Any, error: BaseException | None) -> None:  # noqa: ANN401 - likewise
        """Warn of names of shared modules that several ranks have set."""
        globals_ = _globals(context)
        globals_.packages.end()
        globals_.check(error, fails=context.checks.fails)

    def leaks(self, context: Any) -> list[RankState]:  # noqa: ANN401 - likewise
        """Return the names of shared modules that ranks have set."""
        return _globals(context).report()

    def findings(self, context: Any) -> list[str]:  # noqa: ANN401 - likewise
        """Return the threads that ranks have left running."""
        return threads.threads_left(context.engine)

    # ---- spawns ----

    def plan_spawn(self, plan: SpawnPlan) -> None:
        """Choose threads for programs of libraries that keep state per native thread."""
        if private_importers.beginning and plan.nprocs and plan.method != "fork":
            private_importers.check_begun(plan.parent)
        if plan.carrier == "auto":
            parent = plan.parent
            uses: bool | None = parent.local.get(SCRIPT_USES_LIBRARY)
            if parent.task is not None and parent.task.carrier.thread_id is not None:
                uses = True  # A rank on a thread started them: the program uses a library.
            elif uses is None:
                uses = uses_library(plan.fn, plan.args)
            plan.carrier = "thread" if uses else "greenlet"
        if plan.carrier == "thread":
            plan.local[_LIBRARIES] = libraries.in_use()

    def plan_modules(self, plan: SpawnPlan) -> None:
        """Choose the modules that each rank executes for itself, as its parent does."""
        of_parent, private = private_modules(plan.parent), frozenset[str]()
        if of_parent is not None and of_parent.is_swapped:
            private = of_parent.names
        elif plan.carrier == "thread":
            context = cast("ContextOfRanks", plan.parent.context)
            private = private_importers.private_names(plan.fn, context.private)
        above: Program | None = plan.parent
        while above is not None and not above.local.get(OWN_MODULES):
            above = above.parent
        plan.local[_PRIVATE], plan.local[_IS_OF_SCRIPT] = private, above is not None
        if above is not None or private:
            plan.resolve = own_copy
        if of_parent is not None or private:
            plan.refer = partial(reference, private)
        if any(map(private_importers.is_main, private)):
            plan.local[_MAIN] = private_importers.of(plan.parent)

    def make_rank(self, plan: SpawnPlan, program: Program) -> None:
        """Give a rank its modules, and on a thread the states of libraries."""
        own = None if plan.resolve is None else _modules(plan, program)
        if plan.carrier == "thread":
            task = program.task
            assert task is not None, "it was made for a task"
            states = self._states(program, task, plan.local[_LIBRARIES], own)
            task.turn = libraries.keep_states(program, states)

    def _states(
        self,
        program: Program,
        task: Task,
        used: Sequence[libraries.RegisteredLibrary],
        own: PrivateModules | None,
    ) -> list[libraries.LibraryState]:
        context = cast("ContextOfRanks", program.context)
        states: list[libraries.LibraryState] = [library.state_of(program) for library in used]
        globals_ = _globals(context)
        if not context.strict:  # It sees every switch.
            states.append(GlobalsOfRank(globals_, task))
        if own is not None:
            states.append(own)
        return [*states, PackagesOfRank(globals_.packages, own, program, task)]

    def wrap_rank(self, plan: SpawnPlan, program: Program, run: Body) -> Body:
        """Begin and end a rank as a process: its script, its threads, its finalizers."""
        is_thread = plan.carrier == "thread"
        is_process = is_thread or plan.resolve is not None  # Else it shares all that these end.

        def wrapped() -> None:
            if is_thread:
                locks.install()
            undo = libraries.begin_thread(program) if is_thread else []
            try:
                if is_process:
                    exits.begin(program, is_forked=plan.method == "fork")
                    private_importers.begin_process(program)
                run()
                if is_process:
                    _leave(program)
                    finalizers.rank_returned(program)
            except SystemExit as error:
                if is_process and not isinstance(error, RankAborted):
                    _leave(program)
                raise
            finally:
                if is_process:
                    see_handled(program)
                    finalizers.forget(program)
                    exits.forget(program)
                if output.KEYS & program.local.keys():
                    output.rank_ended(program)
                for end in undo:
                    end()

        return wrapped

    # ---- ends ----

    def stop_rank(self, task: Task) -> None:
        """Park the threads of a rank."""
        threads.park_threads(task)

    def bury_rank(self, program: Program) -> None:
        """End the threads of a rank that died."""
        threads.end_threads(program)

    def drop_rank(self, program: Program) -> None:
        """Drop the threads of an aborted rank."""
        threads.forget_threads(program)

    def surface_error(self, error: BaseException) -> None:
        """Give an error the class of that name that the receiving program knows."""
        take_class_here(error)


def _globals(context: ContextOfRanks) -> ModuleGlobals:
    globals_: ModuleGlobals = context.program.local[_GLOBALS]
    return globals_


def _modules(plan: SpawnPlan, program: Program) -> PrivateModules | None:
    """Return the modules that a rank has for itself; None if it shares all."""
    is_of_script, is_thread = bool(plan.local[_IS_OF_SCRIPT]), plan.carrier == "thread"
    names: frozenset[str] = plan.local[_PRIVATE] if is_thread else frozenset()
    if not names and not is_of_script:
        return None
    own = PrivateModules(
        program, names, is_own_private=is_of_script and is_thread, is_swapped=is_thread
    )
    of_parent = None if program.parent is None else private_modules(program.parent)
    if plan.method is not None and of_parent is not None:
        own.inherit(of_parent, plan.method)
    elif any(map(private_importers.is_main, names)):
        own.begins_with = plan.local.get(_MAIN)
    return own
