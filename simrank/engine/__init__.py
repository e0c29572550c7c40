"""The one place where time moves.

Read `loop.Engine.run`, then `task`, `activity` and `report`.
"""

from simrank.engine.activity import Activity, ActivityPool, Claim, Resource
from simrank.engine.callsite import CallSite, SourceLine, user_site, user_stack
from simrank.engine.interface import EngineInterface
from simrank.engine.loop import Engine
from simrank.engine.queue import Wakeup
from simrank.engine.task import Handle, NamedWait, Observer, Task, TaskGroup
from simrank.engine.watchdog import TimeLimitError

__all__ = [
    "Activity", "ActivityPool", "CallSite", "Claim", "Engine", "EngineInterface", "Handle",
    "NamedWait", "Observer", "Resource", "SourceLine", "Task", "TaskGroup", "TimeLimitError",
    "Wakeup", "user_site", "user_stack",
]  # fmt: skip
