"""Extensions, which take part in the lifecycle of Contexts and ranks.

The core runs greenlets on simulated devices. State that a process would have for itself, threads,
private modules and Triton are extensions: each registers a subclass of `Extension` here, and the
core calls its methods at the points that they name. The core imports no extension; a tidy test and
the import contract hold it to that.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from simrank.engine import EngineInterface, Task
    from simrank.errors import RankState
    from simrank.ranks.current import Program

    Body = Callable[[], None]
    Reference = tuple[Callable[..., Any], tuple[Any, ...]]  # A function, and its arguments.


@dataclass
class SpawnPlan:
    """One call of spawn, before its ranks exist; extensions complete it.

    Attributes:
        parent: The program that spawns.
        fn: The function of every rank.
        args: Its arguments after the rank.
        nprocs: Number of ranks.
        method: Start method of multiprocessing; None: ranks share the arguments and modules.
        is_daemon: Whether the ranks may not spawn.
        carrier: What holds each stack: "greenlet", "thread", or "auto" until an extension decides.
        refer: Returns a call that finds an object by name on a rank; None: the object is copied.
        resolve: Returns the rank's own version of the function.
        local: State of extensions, by their own keys.
    """

    parent: Program
    fn: Callable[..., Any]
    args: Sequence[Any]
    nprocs: int
    method: str | None
    is_daemon: bool
    carrier: str
    refer: Callable[[object, str | None], Reference | None] | None = None
    resolve: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None
    local: dict[str, Any] = field(default_factory=dict)


class Extension:
    """Takes part in the life of Contexts and ranks; each method does nothing by default."""

    # ---- Contexts ----

    def install(self) -> None:
        """Change the process for simulated ranks: the first Context is entered."""

    def remove(self) -> None:
        """Undo `install`, all of it or its first part: the last Context has exited."""

    def take_algorithms(self, algorithms: dict[str, Any]) -> dict[str, Any]:
        """Remove the forced algorithms that this extension runs, and return them prepared."""
        del algorithms
        return {}

    def make_context(self, context: Any) -> None:  # noqa: ANN401 - the Context lives above
        """Prepare state for a new Context."""

    def forget_engine(self, engine: EngineInterface) -> None:
        """Drop the state of an engine whose Context has exited."""

    def check_end(self, context: Any, error: BaseException | None) -> None:  # noqa: ANN401 - likewise
        """Raise or annotate at the end of a Context's block."""

    def leaks(self, context: Any) -> Sequence[RankState]:  # noqa: ANN401 - likewise
        """Return leaks of a Context, which `strict` turns into an error."""
        del context
        return ()

    def findings(self, context: Any) -> Sequence[str]:  # noqa: ANN401 - likewise
        """Return findings for the report at the end of a run, a line each."""
        del context
        return ()

    # ---- Spawns ----

    def plan_spawn(self, plan: SpawnPlan) -> None:
        """Choose the carrier of a spawn, and prepare state that its ranks share."""

    def plan_modules(self, plan: SpawnPlan) -> None:
        """Choose the modules that each rank executes for itself; the carrier is known."""

    def make_rank(self, plan: SpawnPlan, program: Program) -> None:
        """Give a new rank its own state."""

    def wrap_rank(self, plan: SpawnPlan, program: Program, run: Body) -> Body:
        """Return the program of a rank, wrapped in steps before and after it."""
        del plan, program
        return run

    # ---- Ends ----

    def stop_rank(self, task: Task) -> None:
        """Stop the threads of a rank that a signal or `os._exit` is about to end."""

    def bury_rank(self, program: Program) -> None:
        """End the threads of a rank that died while its siblings run on."""

    def drop_rank(self, program: Program) -> None:
        """Drop the threads of an aborted rank."""

    def surface_error(self, error: BaseException) -> None:
        """Adapt an error of a rank to the program that receives it from spawn."""


_loaders: list[Callable[[], Extension]] = []
_extensions: list[Extension] = []
_by_point: dict[str, list[Extension]] = {}


def register_extension(load: Callable[[], Extension]) -> None:
    """Add an extension; it is loaded when the first Context is made. Order is order of calls."""
    _loaders.append(load)


def remove_extension(extension: Extension) -> None:
    """Remove an extension."""
    _extensions.remove(extension)
    _by_point.clear()


def extensions(point: str) -> list[Extension]:
    """Return the extensions that take part at a point: they override that method of `Extension`."""
    while _loaders:
        _extensions.append(_loaders[0]())
        _by_point.clear()
        del _loaders[0]
    found = _by_point.get(point)
    if found is None:
        default = getattr(Extension, point)
        overriding = [each for each in _extensions if getattr(type(each), point) is not default]
        found = _by_point[point] = overriding
    return found


def plan_spawn(plan: SpawnPlan) -> None:
    """Ask the extensions for the carrier of a spawn; the default is greenlets."""
    for extension in extensions("plan_spawn"):
        extension.plan_spawn(plan)
    if plan.carrier == "auto":
        plan.carrier = "greenlet"
