"""Two sides held against each other, rank by rank: start with `compared`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from simrank.errors import at_text, ranks_text
from simrank.validate.compare.differences import Likeness, likeness
from simrank.validate.compare.program import DIED, RAISED, RETURNED, WAITS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from simrank.validate.compare.differences import Tolerance
    from simrank.validate.compare.program import Issued, Job, RankRecord, RunSide

RESULTS, ENDINGS, COLLECTIVES, MESSAGES = "results", "endings", "collectives", "messages"
TOPICS = (ENDINGS, COLLECTIVES, MESSAGES, RESULTS)  # A cause before what it leads to.
_MISMATCH = "CollectiveMismatchError"


@dataclass(frozen=True, slots=True)
class Finding:
    """A difference, on the ranks that have it.

    Attributes:
        topic: One of `TOPICS`.
        ranks: Where.
        text: What differs, as the first of them has it.
        num_texts: How many ranks have it in other words, for example with other numbers.
        file: The user's file, or None.
        line: The line in it, or None.
    """

    topic: str
    ranks: tuple[int, ...]
    text: str
    num_texts: int = 1
    file: str | None = None
    line: int | None = None


@dataclass(slots=True)
class RunComparison:
    """The result of a comparison.

    Attributes:
        job: What ran.
        tolerance: How far numbers might be apart.
        simulated: The one side.
        real: The other; None: it did not run.
        findings: Differences, in the order of `TOPICS`.
        likeness: Of the results, by rank where both returned.
        followed: Ranks whose calls are known on both sides: they were not ended from outside.
        notes: What a reader has to know besides.
        times: The simulated time beside the measured one, or why it is not.
    """

    job: Job
    tolerance: Tolerance
    simulated: RunSide
    real: RunSide | None
    findings: list[Finding] = field(default_factory=list)
    likeness: dict[int, Likeness] = field(default_factory=dict)
    followed: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    times: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Seen:
    """A difference of one rank: `key` is alike where ranks have the same one in other numbers."""

    topic: str
    key: object
    text: str
    file: str | None = None
    line: int | None = None


def compared(
    job: Job, simulated: RunSide, real: RunSide | None, tolerance: Tolerance
) -> RunComparison:
    """Hold the two sides of a job against each other."""
    found = RunComparison(job, tolerance, simulated, real)
    found.times = list(_times(found))
    found.notes = list(_notes(found))
    if real is None:
        return found
    seen: dict[int, list[_Seen]] = {}
    is_mismatch = any(record.error == _MISMATCH for record in simulated.records)
    has_failed = any(record.ending != RETURNED for record in real.records)
    if is_mismatch and has_failed:
        found.notes.append(
            "ranks made different calls: a mismatch where it is simulated; what real processes "
            "make of it (errors, hangs) is not compared"
        )
    for mine, theirs in zip(simulated.records, real.records, strict=True):
        own: list[_Seen] = []
        if not (is_mismatch and has_failed):
            own += _endings(mine, theirs)
        if not {mine.ending, theirs.ending} & {WAITS, DIED}:
            found.followed.append(mine.rank)
            own += _calls(mine, theirs, job.backend)
        if mine.ending == theirs.ending == RETURNED:
            alike = likeness(mine.value, theirs.value, tolerance)
            found.likeness[mine.rank] = alike
            own += [_Seen(RESULTS, each.place, str(each)) for each in alike.differences]
        seen[mine.rank] = own
    found.findings = _grouped(seen)
    return found


def _grouped(seen: dict[int, list[_Seen]]) -> list[Finding]:
    """Return differences with all ranks that have them."""
    ranks: dict[tuple[str, object], dict[int, _Seen]] = {}
    for rank, own in seen.items():
        for each in own:
            ranks.setdefault((each.topic, each.key), {})[rank] = each
    found = []
    for (topic, _), by_rank in ranks.items():
        first = next(iter(by_rank.values()))
        num_texts = len({each.text for each in by_rank.values()})
        found.append(Finding(topic, tuple(by_rank), first.text, num_texts, first.file, first.line))
    return sorted(found, key=lambda each: TOPICS.index(each.topic))


def _notes(found: RunComparison) -> Iterator[str]:
    """Yield the limits of the comparison."""
    sides = [found.simulated, *([] if found.real is None else [found.real])]
    lost = max(record.num_lost for side in sides for record in side.records)
    if lost:
        yield f"the first {lost} calls are not compared: TORCH_FR_BUFFER_SIZE is too small for them"
    per_node = found.simulated.per_node
    if found.real is not None and per_node is not None and per_node < found.job.num_ranks:
        yield f"LOCAL_RANK is 0-{per_node - 1} where it is simulated; real ranks share one node"


def _times(found: RunComparison) -> Iterator[str]:
    """Yield simulated time beside measured time, where one says something of the other."""
    own_us = [each.time_us for each in found.simulated.records if each.time_us is not None]
    if found.job.backend == "gloo":
        yield "not compared: gloo runs on hosts, whose speed no cluster describes"
        return
    if not own_us:
        return
    simulated = f"simulated {max(own_us):.1f} us on the slowest rank"
    real = found.real
    if real is None or not real.device:
        yield simulated
        return
    real_us = [each.time_us for each in real.records if each.time_us is not None]
    if not is_same_device(found.simulated.device, real.device):
        yield f"not compared: {real.device} is not the cluster's {found.simulated.device}"
    elif real_us:
        error = 100 * (max(own_us) / max(real_us) - 1)
        yield f"{simulated}, measured {max(real_us):.1f} us ({error:+.1f} %); a first run, not warm"


def is_same_device(described: str, found: str) -> bool:
    """Return whether a GPU is the one that a cluster describes: its model stands in both names."""
    models = models_of(described)
    words = " ".join(found.upper().replace("-", " ").split())
    return bool(models) and f" {models[0]} " in f" {words} "


def models_of(device: str) -> list[str]:
    """Return the words of a device's name that say its model: `H100`; `RTX PRO 6000`."""
    words = [word.strip("()").upper() for word in device.replace("-", " ").split()]
    models = [word for word in words if any(c.isdigit() for c in word) and word[0].isalpha()]
    numbers = [number for number, word in enumerate(words) if word.isdigit()]
    return models or [" ".join(words[: number + 1]) for number in numbers[:1]]


# ---- how ranks ended ----


def ending_text(record: RankRecord, *, several: bool = False) -> str:
    """Return the text of how equal ranks ended."""
    at = at_text(record.file, record.line)
    if record.ending == RAISED:
        text = f": {record.text}" if record.text else ""
        return f"raised {record.error}{at}{text}"
    if record.ending == WAITS:
        verb = "wait" if several else "waits"
        return f"{verb} forever{f' in {record.error}' if record.error else ''}{at}"
    if record.ending == DIED:
        return f"died: {record.error}"
    return "returned"


def _endings(mine: RankRecord, theirs: RankRecord) -> Iterator[_Seen]:
    is_same = _IS_SAME.get(mine.ending)
    if mine.ending == theirs.ending and (is_same is None or is_same(mine, theirs)):
        return
    text = f"simulated {ending_text(mine)}; real {ending_text(theirs)}"
    key = (mine.ending, mine.error, theirs.ending, theirs.error)
    place = mine if mine.ending != RETURNED else theirs
    yield _Seen(ENDINGS, key, text, place.file, place.line)


def _is_same_error(mine: RankRecord, theirs: RankRecord) -> bool:
    """Return whether errors share a class; simrank's errors match their base classes."""
    return mine.error == theirs.error or theirs.error in mine.error_kinds


def _is_same_wait(mine: RankRecord, theirs: RankRecord) -> bool:
    """Return whether ranks wait in the same operation; unknown for real waits in C++."""
    words = [record.error.partition(" ")[0] for record in (mine, theirs)]
    is_known = " on group " in mine.error and " on group " in theirs.error
    return words[0] == words[1] or not is_known


_IS_SAME = {RAISED: _is_same_error, WAITS: _is_same_wait}


# ---- what they issued ----


def call_text(call: Issued) -> str:
    """Return a call in words, with its line."""
    group = f"ranks {ranks_text(call.ranks)}" if call.ranks else "a group of unknown ranks"
    shapes = f"{call.shapes} " if call.shapes else ""
    return f"{call.op} {shapes}on {group}{at_text(call.file, call.line)}"


def _calls(mine: RankRecord, theirs: RankRecord, backend: str) -> Iterator[_Seen]:
    """Yield the first collective and the first message that differ.

    A failure on one side only is reported as such, and ends its list.
    """
    for topic, one, other in (
        (COLLECTIVES, mine.collectives, theirs.collectives),
        (MESSAGES, mine.messages, theirs.messages),
    ):
        diverged_at = first_parting(one, other, backend)
        is_cut = (
            mine.ending != theirs.ending
            and diverged_at is not None
            and (diverged_at[0] == len(one) or diverged_at[1] == len(other))
        )
        if diverged_at is not None and not is_cut:
            yield _diverged(topic, one, other, *diverged_at)


def _diverged(topic: str, one: Sequence[Issued], other: Sequence[Issued], i: int, j: int) -> _Seen:
    """Return the first calls that differ, one of which may be missing."""
    word = topic.removesuffix("s")
    mine, theirs = (calls[k] if k < len(calls) else None for calls, k in ((one, i), (other, j)))
    extra = mine or theirs
    assert extra is not None, "they part before the end of one"
    if mine is not None and theirs is not None:
        text = f"{word} {i + 1}: simulated {call_text(mine)}; real {call_text(theirs)}"
    else:
        side, place = ("simulated", i) if theirs is None else ("real", j)
        counts = f"{len(one)} simulated, {len(other)} real"
        text = f"{counts}; {word} {place + 1} is only {side}: {call_text(extra)}"
    key = (i, *((call.op, call.line) if call else None for call in (mine, theirs)))
    return _Seen(topic, key, text, extra.file, extra.line)


def counts_text(records: Sequence[RankRecord]) -> str:
    """Return the text of call counts: `7 collectives`, or `7-9 collectives, 1 message`."""
    parts = []
    for topic in (COLLECTIVES, MESSAGES):
        numbers = [len(getattr(record, topic)) for record in records]
        if any(numbers):
            low, high = min(numbers), max(numbers)
            number = str(high) if low == high else f"{low}-{high}"
            parts.append(f"{number} {topic if high != 1 else topic.removesuffix('s')}")
    return ", ".join(parts) or "nothing"


def ops_text(records: Sequence[RankRecord]) -> str:
    """Return the text of operations with their counts, most frequent first."""
    ops = Counter(call.op for record in records for call in record.collectives)
    return ", ".join(f"{number} {op}" for op, number in ops.most_common(6))


# ---- Which calls of one side are which of the other ----
# torch's recorder sits inside of gloo's process group, below that; the simulator's records what
# was asked for. nccl records that, too, so its calls are compared one by one.

# Source: ProcessGroupGloo of torch 2.13, and simrank.torch.groups.group.
_SPARSE = "sparse_all_reduce"
_PER_SPARSE = 3  # How many are non-zero, where, and what.


def first_parting(
    mine: Sequence[Issued], theirs: Sequence[Issued], backend: str
) -> tuple[int, int] | None:
    """Return the places of the first calls that differ, or None; a place may be behind the end.

    Args:
        mine: The simulated rank's.
        theirs: The real one's.
        backend: "gloo" or "nccl".
    """
    i = j = 0
    while i < len(mine) and j < len(theirs):
        taken = (1, 1) if mine[i] == theirs[j] else None
        if taken is None and backend == "gloo":
            taken = next(_made_by_gloo(mine[i:], theirs[j:]), None)
        if taken is None:
            return i, j
        i, j = i + taken[0], j + taken[1]
    return None if i == len(mine) and j == len(theirs) else (i, j)


def _made_by_gloo(mine: Sequence[Issued], theirs: Sequence[Issued]) -> Iterator[tuple[int, int]]:
    """Yield how many calls of each side are the same ones, if the first are."""
    one, other = mine[0], theirs[0]
    if one.ranks != other.ranks:
        return
    if (one.op, other.op) == ("reduce_scatter", "all_reduce"):
        for num in _nums(one):
            if _are(theirs[:num], num, other) and _total(theirs[:num]) == Counter(one.elements):
                yield 1, num
    elif one.op == other.op == "all_gather":  # What a single output holds is not recorded.
        num = len(other.inputs)
        if _are(mine[:num], num, one) and _total(mine[:num]) == Counter(other.elements):
            yield num, 1
    elif other.op == _SPARSE and one.op == "all_gather" and _are(mine[:3], _PER_SPARSE, one):
        yield _PER_SPARSE, 1


def _nums(one: Issued) -> tuple[int, ...]:
    """Return the possible numbers of calls of a reduce_scatter: one per tensor, or one."""
    size = len(one.ranks)
    if any(one.elements.values()):
        return 1, size  # The reduced elements decide.
    is_list = len(one.inputs) == 1 and len(one.inputs[0]) > 1 and one.inputs[0][0] == size
    return (size if is_list else 1,)


def _are(calls: Sequence[Issued], num: int, like: Issued) -> bool:
    """Return whether so many calls are of the operation, group and line of one."""
    facts = {(call.op, call.ranks, call.file, call.line) for call in calls}
    return len(calls) == num and facts == {(like.op, like.ranks, like.file, like.line)}


def _total(calls: Sequence[Issued]) -> Counter[str]:
    """Return the elements that go into calls, by type."""
    found: Counter[str] = Counter()
    for call in calls:
        found.update(call.elements)
    return found
