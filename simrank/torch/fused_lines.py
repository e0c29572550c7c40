"""Lines of the user's program that a compiled kernel fuses.

Inductor's code names the nodes of Dynamo's graph above each kernel, and a node knows its line.
The code may come from the cache of another run, where lines were others, so each compilation looks
up the lines of its own graph.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any

from torch._guards import TracingContext

from simrank.engine.callsite import is_library
from simrank.errors.base import place_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Patches = list[tuple[Any, str, Any]]

_FRAME = re.compile(r'File "(.+)", line (\d+), in ')
_NODES = "# Nodes of the program: "
_KERNEL = re.compile(r"^(\w+) = async_compile\.triton\(")

_LINES = "simrank_lines"  # Of torch's context of a compilation: lines by the names of nodes.
_loaded: dict[str, str] = {}  # Lines by kernel, of the code that is being loaded.


def of_graphs(module: Any) -> Patches:
    """Return the patches of Dynamo's `output_graph`: each compilation knows its nodes' lines."""
    kind = module.OutputGraph
    original = kind.call_user_compiler

    @functools.wraps(original)
    def call(self: Any, gm: Any, *args: Any, **kwargs: Any) -> Any:
        setattr(_context(), _LINES, _lines_of(gm.graph.nodes))
        return original(self, gm, *args, **kwargs)

    return [(kind, "call_user_compiler", call)]


def _context() -> Any:
    """Return torch's context of the compilation, which a later one of its backward enters again."""
    return TracingContext.try_get()


def _own_lines() -> dict[str, str]:
    found: dict[str, str] = getattr(_context(), _LINES, {})
    return found


def of_comments(module: Any) -> Patches:
    """Return the patches of inductor's `codegen.triton`: a comment names a kernel's nodes."""
    name = "get_kernel_metadata"
    original = getattr(module, name)

    @functools.wraps(original)
    def metadata(node_schedule: Any, wrapper: Any) -> tuple[str, str]:
        origins, detailed = original(node_schedule, wrapper)
        if own := _own_lines():
            nodes = (node for each in node_schedule for node in _origins(each))
            lines = {_line_of(node.meta.get("stack_trace")) for node in nodes}
            names = [node for node, line in own.items() if line in lines]
            origins += f"\n{_NODES}{', '.join(names)}"
        return origins, detailed

    return [(module, name, metadata)]


def _origins(scheduled: Any) -> Iterable[Any]:
    """Return the nodes of graphs that a scheduled node came from."""
    node = getattr(scheduled, "node", None)
    return () if node is None else node.get_origins()


def _lines_of(nodes: Iterable[Any]) -> dict[str, str]:
    found = ((node.name, _line_of(node.meta.get("stack_trace"))) for node in nodes)
    return {name: line for name, line in found if line}


def _line_of(trace: str | None) -> str:
    """Return the user's innermost line in a node's stack, or nothing."""
    frames = [(file, int(line)) for file, line in _FRAME.findall(trace or "")]
    own = [frame for frame in frames if not is_library(frame[0])]
    return place_text(*own[-1]) if own else ""


def note_code(text: str) -> None:
    """Read the lines of kernels from inductor's code, which is about to be loaded."""
    if "async_compile" not in text:  # A kernel's own file, in the midst of the code's.
        return
    _loaded.clear()
    lines, names = _own_lines(), ""
    for line in text.splitlines():
        if line.startswith(_NODES):
            names = line.removeprefix(_NODES)
        elif (found := _KERNEL.match(line)) is not None:
            named = (lines[name] for name in names.split(", ") if name in lines)
            _loaded[found[1]] = ", ".join(dict.fromkeys(named))
            names = ""


def lines_of(kernel: str) -> str:
    """Return the lines that a kernel of the loaded code fuses: `model.py:9, model.py:11`."""
    return _loaded.get(kernel, "")


def with_lines(launch: Callable[..., Any], lines: str, file: str) -> Callable[..., Any]:
    """Wrap the launch of a compiled kernel: timelines and the summary get what it fuses.

    Args:
        launch: It returns the operation.
        lines: Of the program, which the kernel fuses.
        file: The kernel's, which errors name.
    """

    def call(*args: Any) -> None:
        try:
            operation = launch(*args)
        except Exception as error:
            of = f" of {lines}" if lines else ""
            error.add_note(f"simrank: in a kernel{of} that torch.compile has generated: {file}")
            raise
        operation.details = {"fuses": lines}

    return call
