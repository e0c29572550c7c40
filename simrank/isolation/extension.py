"""The extension that isolates ranks: where isolation takes part in Contexts and spawns."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

from simrank.errors import RankAborted
from simrank.isolation import (
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
_PRIVATE, _MAIN, _LIBRARIES = "private modules", "main module", "libraries in use"  # In plans.
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
        if plan.nprocs and plan.method != "fork":
            private_importers.check_begun(plan.parent)
        if plan.carrier == "auto":
            plan.carrier = "thread" if _needs_threads(plan) else "greenlet"
        plan.local[_LIBRARIES] = libraries.in_use()
        plan.resolve = own_copy

    def plan_modules(self, plan: SpawnPlan) -> None:
        """Choose the modules that each rank executes for itself, as its parent does."""
        private = _private_names(plan)
        plan.local[_PRIVATE] = private
        plan.refer = partial(reference, private)
        if any(map(private_importers.is_main, private)):
            plan.local[_MAIN] = private_importers.of(plan.parent)

    def make_rank(self, plan: SpawnPlan, program: Program) -> None:
        """Give a rank its modules, and on a thread the states of libraries."""
        own = _modules(plan, program)
        task = program.task
        assert task is not None, "it was made for a task"
        if plan.carrier == "thread":
            states = self._states(program, task, plan.local[_LIBRARIES], own)
            task.turn = libraries.keep_states(program, states)

    def _states(
        self,
        program: Program,
        task: Task,
        used: Sequence[libraries.Library],
        own: PrivateModules | None,
    ) -> list[libraries.RankState]:
        context = cast("ContextOfRanks", program.context)
        states: list[libraries.RankState] = [library.state_of(program) for library in used]
        globals_ = _globals(context)
        if not context.strict:  # It sees every switch.
            states.append(GlobalsOfRank(globals_, task))
        if own is not None:
            states.append(own)
        return [*states, PackagesOfRank(globals_.packages, own, program, task)]

    def wrap_rank(self, plan: SpawnPlan, program: Program, run: Body) -> Body:
        """Begin and end a rank as a process: its script, its threads, its finalizers."""
        is_thread = plan.carrier == "thread"

        def wrapped() -> None:
            if is_thread:
                locks.install()
            undo = libraries.begin_thread(program) if is_thread else []
            try:
                private_importers.begin_process(program)
                _run_to_end_of_threads(program, run)
                finalizers.rank_returned(program)
            finally:
                see_handled(program)
                finalizers.forget(program)
                output.rank_ended(program)
                for end in undo:
                    end()

        return wrapped

    # ---- ends ----

    def resume_hub(self, engine: EngineInterface) -> None:
        """Show the main program its own attributes and working directory."""
        mock_patches.hide(engine)
        process_state.show_main(engine)

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


def _run_to_end_of_threads(program: Program, run: Body) -> None:
    """Run a rank's function, then wait for the threads that it has started."""
    try:
        run()
    except SystemExit as error:
        if not isinstance(error, RankAborted):
            threads.rank_returns(program)
        raise
    threads.rank_returns(program)


def _needs_threads(plan: SpawnPlan) -> bool:
    parent = plan.parent
    if parent.task is not None and parent.task.carrier.thread_id is not None:
        return True  # A rank on a thread started them: the program uses a library.
    uses: bool | None = parent.local.get(SCRIPT_USES_LIBRARY)
    return uses_library(plan.fn, plan.args) if uses is None else uses


def _private_names(plan: SpawnPlan) -> frozenset[str]:
    """Return the modules that each rank executes for itself."""
    of_parent = private_modules(plan.parent)
    if of_parent is not None and of_parent.is_swapped:
        return of_parent.names
    if plan.carrier == "thread":
        context = cast("ContextOfRanks", plan.parent.context)
        return private_importers.private_names(plan.fn, context.private)
    return frozenset()


def _modules(plan: SpawnPlan, program: Program) -> PrivateModules | None:
    """Return the modules that a rank has for itself; None if it shares all."""
    is_of_script, is_thread = _is_of_script(program), plan.carrier == "thread"
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


def _is_of_script(program: Program | None) -> bool:
    """Return whether a rank runs a script, or was spawned by one that does."""
    while program is not None:
        if program.local.get(OWN_MODULES):
            return True
        program = program.parent
    return False
