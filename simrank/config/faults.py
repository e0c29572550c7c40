"""Faults that a run injects; start with `load_faults`.

```yaml
faults:
  - {kill: 3, at: 2 ms}                 # or at_collective: 5, as its fifth one begins
  - {slow: [1, 2], factor: 1.5, from: 1 ms, until: 3 ms}
  - {deactivate: 5, within: 1 ms, for: 200 us}
  - {delay_arrivals: all, up_to: 20 us, probability: 0.1}
  - {port_conflict: 0, port: 29500}
  - {drop_link: "gpu3 -> nvswitch", at: 1 ms}
  - {slow_link: "node 0: gpu3 <-> nvswitch", factor: 4}
```
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from simrank import units
from simrank.config.model import Model, in_file_order, validate
from simrank.config.quantity import Count, Share, Time, choice_text, closest, number_in, reject
from simrank.config.yaml_source import KeyPath, Source, read_yaml
from simrank.errors import ConfigError, ConfigProblem

ALL: tuple[int, ...] | None = None  # What `ranks` is where every rank is meant.
_LAST_PORT = 65535
_LINK = re.compile(r"(?:(?:node|pod) (\d+): *)?(\S+) *(<?->) *(\S+)")


def _ranks(value: object) -> tuple[int, ...] | None:
    """Validate a rank, a list of ranks or `all`."""
    if value == "all":
        return ALL
    items = value if isinstance(value, list | tuple) else [value]
    for item in items:
        if isinstance(item, bool) or not isinstance(item, int) or item < 0:
            raise reject("a rank, a list of ranks, or all")
    if not items:
        raise reject("a rank, a list of ranks, or all")
    return tuple(dict.fromkeys(items))


def _link(value: object) -> tuple[int | None, str, str, bool]:
    """Validate a link as reports write it; `<->` is both of its directions."""
    match = _LINK.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise reject("a link such as gpu3 -> nvswitch, or node 0: gpu3 <-> nvswitch")
    node, tail, arrow, head = match.groups()
    return (None if node is None else int(node), tail, head, arrow == "<->")


def _port(value: object) -> int:
    """Validate the number of a port."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _LAST_PORT:
        raise reject(f"a port from 1 to {_LAST_PORT}")
    return value


Ranks = Annotated[tuple[int, ...] | None, BeforeValidator(_ranks)]
Slowdown = Annotated[float, BeforeValidator(number_in(1, 1e6, "a number above 1, at most 1000000"))]
LinkName = Annotated[tuple[int | None, str, str, bool], BeforeValidator(_link)]


class Kill(Model):
    """A rank dies as by SIGKILL: nothing of it runs on, not even its `finally`.

    Attributes:
        ranks: Which.
        at_ps: When, in picoseconds of simulated time; or
        at_collective: As its n-th collective is called, from 1.
    """

    ranks: Ranks = Field(alias="kill")
    at_ps: Time | None = Field(default=None, alias="at")
    at_collective: Count | None = None


class Deactivate(Model):
    """A rank is declared broken: collectives in flight and later ones skip it.

    Attributes:
        ranks: Which.
        at_ps: When, in picoseconds of simulated time; or
        at_collective: As it calls its n-th collective, from 1; or
        within_ps: At a time before this one, drawn by the seed.
        for_ps: How long, until it comes back; None: forever.
    """

    ranks: Ranks = Field(alias="deactivate")
    at_ps: Time | None = Field(default=None, alias="at")
    at_collective: Count | None = None
    within_ps: Time | None = Field(default=None, alias="within")
    for_ps: Time | None = Field(default=None, alias="for")


class Slow(Model):
    """Kernels and launches of a rank take longer for a while.

    Attributes:
        ranks: Which.
        factor: How many times as long.
        from_ps: From when on; what has begun keeps its time.
        until_ps: Until when, or None forever.
    """

    ranks: Ranks = Field(alias="slow")
    factor: Slowdown
    from_ps: Time = Field(default=0, alias="from")
    until_ps: Time | None = Field(default=None, alias="until")


class DelayArrivals(Model):
    """A rank calls a collective later than it would.

    Attributes:
        ranks: Which.
        by_ps: By how much; or
        up_to_ps: By at most so much, drawn by the seed.
        probability: How often.
        at_collective: Only its n-th collective, from 1; None: every one.
    """

    ranks: Ranks = Field(alias="delay_arrivals")
    by_ps: Time | None = Field(default=None, alias="by")
    up_to_ps: Time | None = Field(default=None, alias="up_to")
    probability: Share = 1.0
    at_collective: Count | None = None


class PortConflict(Model):
    """A port that a rank names is in use: some other program of its host was first.

    Attributes:
        ranks: Whose.
        port: Which; None: any that it names (port 0 names none).
        probability: How often.
        times: How many times for each rank.
    """

    ranks: Ranks = Field(alias="port_conflict")
    port: Annotated[int | None, BeforeValidator(_port)] = None
    probability: Share = 1.0
    times: Count = 1


class DropLink(Model):
    """A link fails: transfers over it never end.

    Attributes:
        link: (node or None, the vertex it leaves, the one it enters, both directions).
        at_ps: From when on.
    """

    link: LinkName = Field(alias="drop_link")
    at_ps: Time = Field(default=0, alias="at")


class SlowLink(Model):
    """A link carries less for a while.

    Attributes:
        link: (node or None, the vertex it leaves, the one it enters, both directions).
        factor: By how many times its bandwidth falls.
        from_ps: From when on; collectives that have begun keep their time.
        until_ps: Until when, or None forever.
    """

    link: LinkName = Field(alias="slow_link")
    factor: Slowdown
    from_ps: Time = Field(default=0, alias="from")
    until_ps: Time | None = Field(default=None, alias="until")


Fault = Kill | Deactivate | Slow | DelayArrivals | PortConflict | DropLink | SlowLink


class FaultList(tuple[Fault, ...]):
    """Checked faults that know where they were written.

    Attributes:
        source: Where, for messages about what a cluster has not.
    """

    source: Source

    @classmethod
    def of(cls, faults: Sequence[Fault], source: Source) -> "FaultList":
        """Return faults with their source."""
        listed = cls(faults)
        listed.source = source
        return listed


FaultsRef = str | Path | Sequence[Mapping[str, object] | Fault]
_KINDS: dict[str, type[Fault]] = {
    "kill": Kill,
    "deactivate": Deactivate,
    "slow": Slow,
    "delay_arrivals": DelayArrivals,
    "port_conflict": PortConflict,
    "drop_link": DropLink,
    "slow_link": SlowLink,
}
# Of these keys exactly one must be given.
_ONE_OF: dict[type[Fault], tuple[str, ...]] = {
    Kill: ("at", "at_collective"),
    Deactivate: ("at", "at_collective", "within"),
    DelayArrivals: ("by", "up_to"),
}


class _FaultsFile(Model):
    faults: Any


def load_faults(faults: FaultsRef) -> FaultList:
    """Read and check faults.

    Args:
        faults: The path of a YAML file with the key `faults`, or the list itself.

    Raises:
        ConfigError: With every problem, in file order.
    """
    if isinstance(faults, FaultList):
        return faults
    if isinstance(faults, str | Path):
        source = read_yaml(faults)
        validate(_FaultsFile, source)
    else:
        source = Source("faults", {"faults": faults})
    return faults_from_source(source)


def faults_from_source(source: Source) -> FaultList:
    """Return the faults under the key `faults` of a source; none without it.

    Raises:
        ConfigError: With every problem, in file order.
    """
    assert isinstance(source.data, Mapping)
    listed = source.data.get("faults", ())
    if not isinstance(listed, list | tuple):
        problem = source.problem(("faults",), "a list of faults", source.describe((), listed))
        raise ConfigError(problem)
    faults: list[Fault] = []
    problems: list[ConfigProblem] = []
    for index, entry in enumerate(listed):
        try:
            faults.append(_fault(source, ("faults", index), entry))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(*in_file_order(problems))
    return FaultList.of(faults, source)


def describe(fault: Fault) -> str:
    """Return a fault as it is written in YAML."""
    parts = []
    for name, field in type(fault).model_fields.items():
        if name in fault.model_fields_set:
            value = getattr(fault, name)
            parts.append(f"{field.alias or name}: {_as_written(name, value)}")
    return "{" + ", ".join(parts) + "}"


def _as_written(name: str, value: Any) -> str:  # noqa: ANN401 - of any field
    if name == "link":
        node, tail, head, both = value
        where = "" if node is None else f"node {node}: "
        return f"{where}{tail} {'<->' if both else '->'} {head}"
    if name == "ranks":
        return "all" if value is ALL else str(value[0] if len(value) == 1 else list(value))
    return units.format_time(value) if name.endswith("_ps") else f"{value}"


def _fault(source: Source, key_path: KeyPath, entry: object) -> Fault:
    if isinstance(entry, Fault):
        return entry
    if not isinstance(entry, Mapping):
        expected = "a mapping such as {kill: 3, at: 2 ms}"
        raise ConfigError(source.problem(key_path, expected, source.describe(key_path, entry)))
    kinds = [kind for kind in _KINDS if kind in entry]
    if len(kinds) != 1:
        got = " and ".join(kinds) or "the keys " + ", ".join(map(str, entry))
        near = None if kinds else closest(str(next(iter(entry), "")), _KINDS)
        expected = f"a fault: {choice_text(_KINDS)}"
        raise ConfigError(source.problem(key_path, expected, got, near and f"write `{near}`"))
    model = _KINDS[kinds[0]]
    fault = validate(model, source, key_path)
    until_ps = getattr(fault, "until_ps", None)
    if until_ps is not None and until_ps <= getattr(fault, "from_ps", 0):
        got = source.describe((*key_path, "until"), entry["until"])
        raise ConfigError(source.problem((*key_path, "until"), "a time after `from`", got))
    either = _ONE_OF.get(model)
    given = [key for key in either or () if key in entry]
    if either is not None and len(given) != 1:
        got = "neither" if not given else "both" if len(either) == 2 else " and ".join(given)
        raise ConfigError(source.problem(key_path, f"either {' or '.join(either)}", got))
    return fault
