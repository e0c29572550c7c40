"""The event loop that the main program may be running, in a notebook say: it is not the ranks'."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


_NOTHING = nullcontext()


def loop_set_aside() -> AbstractContextManager[None]:
    """Return a block in which no loop of this thread runs; asyncio is not imported to ask."""
    events: Any = sys.modules.get("asyncio.events")
    loop = None if events is None else events._get_running_loop()  # noqa: SLF001 - as loops do
    return _NOTHING if loop is None else _set_aside(loop)


@contextmanager
def _set_aside(loop: Any) -> Iterator[None]:  # noqa: ANN401 - an asyncio loop
    """Let no loop run within the block, as at the start of a process."""
    events: Any = sys.modules["asyncio.events"]
    hooks = sys.get_asyncgen_hooks()
    events._set_running_loop(None)  # noqa: SLF001 - as loops do
    sys.set_asyncgen_hooks(None, None)
    try:
        yield
    finally:
        events._set_running_loop(loop)  # noqa: SLF001 - as loops do
        sys.set_asyncgen_hooks(*hooks)
