"""The one place where time moves.

Read `loop.Engine.step`, then `task`, `handle`, `activity` and `report`.
"""

from simrank.engine.activity import Activity, ActivityPool, Claim, Resource
from simrank.engine.callsite import CallSite, SourceLine, user_site, user_stack
from simrank.engine.handle import Handle, NamedWait
from simrank.engine.loop import Engine
from simrank.engine.observer import Observer
from simrank.engine.queue import Wakeup
from simrank.engine.task import Task, TaskGroup
from simrank.engine.watchdog import TimeLimitError

__all__ = [
    "Activity", "ActivityPool", "CallSite", "Claim", "Engine", "Handle", "NamedWait", "Observer",
    "Resource", "SourceLine", "Task", "TaskGroup", "TimeLimitError", "Wakeup", "user_site",
    "user_stack",
]  # fmt: skip
