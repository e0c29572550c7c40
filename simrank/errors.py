"""Every exception that simrank raises; start here to see what can go wrong.

```text
SimrankError(Exception)
  ConfigError               a YAML file or option is wrong: file:line: key.path: expected X, got Y
  UnsupportedError          a feature that simrank refuses, by name
  SimulationError           something happened inside a run, at a simulated time
    DeadlockError           nothing can ever complete what the ranks wait for (proved)
    LivelockError           ranks poll for ever and nothing changes (suspected)
    CollectiveMismatchError ranks of a group made different calls
    WaitTimeoutError        an explicit time limit passed
RankAborted(SystemExit)     thrown into the siblings of a rank that failed
```
"""

from __future__ import annotations

from dataclasses import dataclass


class SimrankError(Exception):
    """Base of every error that simrank raises."""


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """One thing that is wrong in a configuration.

    Attributes:
        file: The file as the user named it, or "command line".
        line: 1-based line, or None where there is no line.
        key_path: The key as the user would write it, for example `links[0].bandwidth`.
        expected: What would have been accepted.
        got: What was found.
        to_fix: A sentence that says what to write, or None where that is not certain.
    """

    file: str
    line: int | None
    key_path: str
    expected: str
    got: str
    to_fix: str | None = None

    def __str__(self) -> str:
        """Return `file:line: key.path: expected X, got Y`."""
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        key = f" {self.key_path}:" if self.key_path else ""
        text = f"{where}:{key} expected {self.expected}, got {self.got}"
        return text if self.to_fix is None else f"{text}\n  to fix: {self.to_fix}"


class ConfigError(SimrankError):
    """A configuration is wrong; the command line exits with status 2.

    Attributes:
        problems: Every problem that was found, in file order.
    """

    def __init__(self, *problems: ConfigProblem) -> None:
        self.problems = problems
        super().__init__("\n".join(str(problem) for problem in problems))
