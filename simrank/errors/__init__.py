"""Every exception that simrank raises; start here to see what can go wrong.

```text
SimrankError(Exception)
  ConfigError               a YAML file or option is wrong: file:line: key.path: expected X, got Y
    ScheduleError           an algorithm would wait forever, or computes something else
  UnsupportedError          a feature that simrank refuses, by name
    FoldingError            ranks are folded that do not do the same
  FlightRecordError         a file is no flight record (also a ValueError)
  HubError                  a task drove the engine; only the hub (the main greenlet) may
  NoRankError               called outside a rank, or outside a Context
  UninitializedValueError   a value was read that a shape-only run does not have
  UnknownValueError         the same, of a torch tensor
  OutOfMemoryError          a device's memory is full
  SimulationError           something happened inside a run, at a simulated time
    DeadlockError           nothing can ever complete what the ranks wait for (proved)
    LivelockError           ranks poll forever and nothing changes (suspected)
    CollectiveMismatchError ranks of a group made different calls
    DistBackendError        NCCL would refuse to make the communicator
    DistNetworkError        a port that a rendezvous needs is in use
    IllegalTransportError   a transport does not reach the memory of a buffer
    RaceError               two accesses to the same bytes that nothing orders
    TimeLimitError          too much wall-clock time (in engine/watchdog.py, by simrank.engine)
    TimeOverflowError       simulated time passes its end, after 26 days
    WaitTimeoutError        an explicit time limit passed (also a TimeoutError and a RuntimeError)
    PeerDiedError           a rank died that has a part in what is waited for
    RankInactiveError       a call needs a rank that is inactive
    ProcessException        torch's base of what `spawn` raises
      ProcessRaisedException
        SpawnException      a rank raised; `.errors` has every root cause
      ProcessExitedException  a rank called `sys.exit` with a non-zero code
  PoolError                 a real run failed (simrank.validate)
    RanksRaisedError        the function raised on some ranks; every traceback is in it
    RequestError            the function or its arguments cannot be pickled (also PicklingError)
    ResultError             a rank returned an object that this process cannot rebuild
    RanksPartedError        ranks wait in collectives that others never enter (also a TimeoutError)
    ChannelError            what came from a worker is no frame of simrank's
    PortInUseError          a port is taken, with its owner (also an OSError)
    TooFewDevicesError      fewer GPUs than workers
    InfrastructureError     perhaps the machine's fault; a pool tries once more
      WorkerDiedError       a worker's process ended
      WorkerTimeoutError    a case took too long (also a TimeoutError)
      PoolStartError        workers did not become ready
  BodyError                 what a test's body raised in a worker, as it is shown
  InactiveRanksError        a collective needs ranks that a request left out (also a RuntimeError)
RankAborted(SystemExit)     thrown into the siblings of a rank that failed
```
"""

from simrank.errors.base import (
    MAX_REPORT_LINES,
    ConfigError,
    ConfigProblem,
    FlightRecordError,
    FoldingError,
    HubError,
    NoRankError,
    OutOfMemoryError,
    RankState,
    ScheduleError,
    SimrankError,
    SimulationError,
    UninitializedValueError,
    UnknownValueError,
    UnsupportedError,
    at_text,
    ranks_text,
    states_text,
    us_text,
    who_text,
)
from simrank.errors.runs import (
    CallVariant,
    CollectiveMismatchError,
    DeadlockError,
    DistBackendError,
    DistNetworkError,
    DivergencePoint,
    IllegalTransportError,
    LivelockError,
    OddStep,
    PeerDiedError,
    RaceAccess,
    RaceError,
    RankInactiveError,
    Side,
    TimeOverflowError,
    UnlikeCalls,
    WaitTimeoutError,
)
from simrank.errors.workers import (
    BodyError,
    ChannelError,
    InactiveRanksError,
    InfrastructureError,
    PoolError,
    PoolStartError,
    PortInUseError,
    ProcessException,
    ProcessExitedException,
    ProcessRaisedException,
    RankAborted,
    RanksPartedError,
    RanksRaisedError,
    RequestError,
    ResultError,
    SpawnException,
    TooFewDevicesError,
    WorkerDiedError,
    WorkerFacts,
    WorkerTimeoutError,
)

__all__ = [
    "MAX_REPORT_LINES",
    "BodyError",
    "CallVariant",
    "ChannelError",
    "CollectiveMismatchError",
    "ConfigError",
    "ConfigProblem",
    "DeadlockError",
    "DistBackendError",
    "DistNetworkError",
    "DivergencePoint",
    "FlightRecordError",
    "FoldingError",
    "HubError",
    "IllegalTransportError",
    "InactiveRanksError",
    "InfrastructureError",
    "LivelockError",
    "NoRankError",
    "OddStep",
    "OutOfMemoryError",
    "PeerDiedError",
    "PoolError",
    "PoolStartError",
    "PortInUseError",
    "ProcessException",
    "ProcessExitedException",
    "ProcessRaisedException",
    "RaceAccess",
    "RaceError",
    "RankAborted",
    "RankInactiveError",
    "RankState",
    "RanksPartedError",
    "RanksRaisedError",
    "RequestError",
    "ResultError",
    "ScheduleError",
    "Side",
    "SimrankError",
    "SimulationError",
    "SpawnException",
    "TimeOverflowError",
    "TooFewDevicesError",
    "UninitializedValueError",
    "UnknownValueError",
    "UnlikeCalls",
    "UnsupportedError",
    "WaitTimeoutError",
    "WorkerDiedError",
    "WorkerFacts",
    "WorkerTimeoutError",
    "at_text",
    "ranks_text",
    "states_text",
    "us_text",
    "who_text",
]

for _name in __all__:  # Tracebacks and pickles name the module that programs import from.
    if isinstance(globals()[_name], type):
        globals()[_name].__module__ = __name__
