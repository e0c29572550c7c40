"""A worker's published state: its stage, or its current collective, in shared memory.

The functions of torch.distributed are wrapped when torch has been imported, before the program's
modules bind them. A nested call belongs to the outermost one, which is the program's.

Nothing is sent: a rank that hangs in C code, is stopped, or has died can still be asked. The writer
counts up before and after, so a reader that sees an odd or changed count reads again.
"""

from __future__ import annotations

import functools
import inspect
import json
import mmap
import os
import struct
import sys
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from simrank.errors import InactiveRanksError, ranks_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

COLLECTIVES = (
    "all_gather", "all_gather_coalesced", "all_gather_into_tensor", "all_gather_object",
    "all_gather_single", "all_reduce", "all_reduce_coalesced", "all_to_all", "all_to_all_single",
    "barrier", "broadcast", "broadcast_object_list", "gather", "gather_object",
    "monitored_barrier", "new_group", "reduce", "reduce_scatter", "reduce_scatter_single",
    "reduce_scatter_tensor", "scatter", "scatter_object_list",
)  # fmt: skip
# Two names of one call.
_SAME = {
    "all_gather_single": "all_gather_into_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
}
SENDS, RECEIVES = ("send", "isend", "send_object_list"), ("recv", "irecv", "recv_object_list")
_OWN = os.path.dirname(__file__)


class WorkerCalls:
    """The calls of a worker.

    Attributes:
        counts: Group, or pair of ranks -> the number of calls that this case has made on it.
        members: Group, or pair of ranks -> its members.
        active: The ranks that take part in the current request, or None: all.
    """

    def __init__(self, page: Page, rank: int) -> None:
        self.counts: dict[str, int] = {}
        self.members: dict[str, list[int]] = {}
        self.active: frozenset[int] | None = None
        self._page = page
        self._pid = os.getpid()
        self._rank = rank
        self._depth = 0
        self._stage = ""
        self._works: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()
        self._is_watching = False
        self._ranks: WeakKeyDictionary[Any, tuple[int, ...]] = WeakKeyDictionary()
        self._libraries: tuple[str, ...] = (_OWN,)

    def move_to(self, pid: int) -> None:
        """Publish from another process: a fork of the worker, or the worker again."""
        self._pid = pid
        self._page.write({**self._page.read(), "pid": pid})

    def stage(self, name: str) -> None:
        """Publish that this worker is in no collective, but at some stage of its life."""
        self._stage = name
        self._depth = 0
        self._publish({})

    @contextmanager
    def during(self, op: str, group: str, ranks: Sequence[int]) -> Iterator[dict[str, Any]]:
        """Publish a collective while it lasts.

        Raises:
            InactiveRanksError: A rank of it takes no part in this request.
        """
        if self._depth:
            yield {}
            return
        self._check(op, group, ranks)
        seq = self._count(group, ranks)
        yield from self._enter({"op": op, "group": group, "ranks": list(ranks), "seq": seq})

    def _count(self, name: str, ranks: Sequence[int]) -> int:
        self.counts[name] = self.counts.get(name, 0) + 1
        self.members[name] = list(ranks)
        return self.counts[name]

    @contextmanager
    def _message(self, op: str, group: str, peer: int | None) -> Iterator[dict[str, Any]]:
        """Publish a message during its call, numbered per pair of ranks."""
        ranks = [] if peer is None else [peer]
        self._check(op, group, ranks)
        seq = 0
        if peer is not None:
            src, dst = (self._rank, peer) if op in SENDS else (peer, self._rank)
            seq = self._count(message_key(group, src, dst), (src, dst))
        call = {"op": op, "group": group, "ranks": ranks, "seq": seq, "is_message": True}
        yield from self._enter(call)

    def _enter(self, call: dict[str, Any]) -> Iterator[dict[str, Any]]:
        file, line = self._site()
        call |= {"file": file, "line": line}
        self._publish({"call": call})
        self._depth += 1
        try:
            yield call
        finally:
            self._depth -= 1
            self._publish({"last": call})

    def _publish(self, call: dict[str, Any]) -> None:
        self._page.write({"pid": self._pid, "stage": self._stage, "counts": self.counts, **call})

    def _check(self, op: str, group: str, ranks: Sequence[int]) -> None:
        if self.active is not None and not self.active.issuperset(ranks):
            inactive = sorted(set(ranks) - self.active)
            raise InactiveRanksError(f"{op} on group {group!r}", inactive)

    def _site(self) -> tuple[str | None, int | None]:
        """Return the user's line: the innermost frame that is neither torch's nor simrank's."""
        frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - what inspect uses, at a hundredth of the cost
        while frame is not None:
            name = frame.f_code.co_filename
            if not name.startswith(self._libraries) and "contextlib" not in name:
                return name, frame.f_lineno
            frame = frame.f_back
        return None, None

    def watch_torch(self) -> None:
        """Wrap torch.distributed, if it has been imported since."""
        dist: Any = sys.modules.get("torch.distributed")
        if self._is_watching or dist is None or not hasattr(dist, "all_reduce"):
            return
        self._is_watching = True
        torch: Any = sys.modules["torch"]
        self._libraries = (_OWN, os.path.dirname(torch.__file__))
        c10d: Any = sys.modules["torch.distributed.distributed_c10d"]
        for name in (*COLLECTIVES, *SENDS, *RECEIVES):
            original = getattr(c10d, name, None)
            if original is not None:
                wrapped = self._wrapped(name, original, dist)
                for module in (c10d, dist):
                    setattr(module, name, wrapped)
        self._watch_waits(dist)

    def _wrapped(self, name: str, original: Callable[..., Any], dist: Any) -> Callable[..., Any]:  # noqa: ANN401 - a module
        signature = inspect.signature(original)
        is_message = name in SENDS + RECEIVES

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the original's
            if self._depth or not dist.is_initialized():
                return original(*args, **kwargs)
            try:
                given = signature.bind_partial(*args, **kwargs).arguments
            except TypeError:  # The original says what is wrong.
                return original(*args, **kwargs)
            group, ranks = self._group_of(given.get("group"), dist)
            if given.get("use_local_synchronization"):  # A new group, made by its members alone.
                ranks = tuple(given["ranks"])
                group = f"ranks {ranks_text(ranks)}"
            if is_message:
                peer = given.get("dst" if name in SENDS else "src")
                # Of a peer that is no member the original says what is wrong.
                during = self._message(name, group, peer if peer in ranks else None)
            else:
                during = self.during(_SAME.get(name, name), group, ranks)
            with during as issued:
                work = original(*args, **kwargs)
                if self._is_queued(given.get("group"), dist):
                    issued["is_queued"] = True
            if hasattr(type(work), "wait"):  # Of one that is illegal to ask, too.
                self._works[work] = issued
            return work

        return call

    def _watch_waits(self, dist: Any) -> None:  # noqa: ANN401 - a module
        original = dist.Work.wait

        @functools.wraps(original)
        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the original's
            call = self._works.get(work)
            if self._depth or call is None:
                return original(work, *args, **kwargs)
            with contextmanager(self._enter)(dict(call)):
                return original(work, *args, **kwargs)

        dist.Work.wait = wait

    def _group_of(self, group: Any, dist: Any) -> tuple[str, tuple[int, ...]]:  # noqa: ANN401 - torch's
        """Return a group's name and its global ranks."""
        if group is None or group is dist.GroupMember.WORLD:
            group = dist.group.WORLD
        if group is dist.GroupMember.NON_GROUP_MEMBER or not hasattr(group, "group_name"):
            return "none", (self._rank,)
        if group not in self._ranks:
            if not _is_known(group, dist):
                return f"{self._label(group, dist)}, destroyed", (self._rank,)
            self._ranks[group] = tuple(dist.get_process_group_ranks(group))
        return self._label(group, dist), self._ranks[group]

    def _is_queued(self, group: Any, dist: Any) -> bool:  # noqa: ANN401 - torch's
        """Return whether a call returns once it is queued on a stream."""
        is_members = group is not dist.GroupMember.NON_GROUP_MEMBER
        if not (is_members and _is_known(group or dist.group.WORLD, dist)):
            return False
        backend: str = dist.get_backend(group)
        return backend == "nccl"

    def _label(self, group: Any, dist: Any) -> str:  # noqa: ANN401 - torch's
        described = getattr(group, "group_desc", "undefined")
        return (
            "default_pg"
            if group is dist.group.WORLD
            else (group.group_name if described == "undefined" else described)
        )

    def begin(self) -> None:
        """Begin a case: reset the counts of calls."""
        self.counts.clear()
        self.members.clear()


def _is_known(group: Any, dist: Any) -> bool:  # noqa: ANN401 - torch's
    """Return whether a group has not been destroyed: calls on one go on or fail as torch likes."""
    return group in dist.distributed_c10d._world.pg_group_ranks  # noqa: SLF001 - torch has no question for it


def message_key(group: str, src: int, dst: int) -> str:
    """Return under which name messages of two ranks are counted."""
    return f"{group}: {src}->{dst}"


# ---- a page of shared memory with a worker's state, which its parent may read at any time ----

SIZE_BYTES = 1 << 14
_HEAD = struct.Struct("QI")  # version, length
_TRIES = 100


def memory_file(name: str) -> int:
    """Return the descriptor of a file without a name on any disk, for parent and worker."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class Page:
    """The page, mapped.

    Args:
        fd: Of a memory file; it may be closed afterwards.
    """

    def __init__(self, fd: int) -> None:
        if os.fstat(fd).st_size < SIZE_BYTES:
            os.ftruncate(fd, SIZE_BYTES)
        self._map = mmap.mmap(fd, SIZE_BYTES)

    def write(self, record: dict[str, Any]) -> None:
        """Publish a record of plain data; the longest values are dropped if it does not fit."""
        body = json.dumps(record).encode()
        while len(body) > SIZE_BYTES - _HEAD.size:
            record = dict(record)
            del record[max(record, key=lambda key: len(json.dumps(record[key])))]
            body = json.dumps(record).encode()
        version = (_HEAD.unpack_from(self._map, 0)[0] | 1) + 1  # A fork may have written the last.
        _HEAD.pack_into(self._map, 0, version - 1, 0)
        self._map[_HEAD.size : _HEAD.size + len(body)] = body
        _HEAD.pack_into(self._map, 0, version, len(body))

    def read(self) -> dict[str, Any]:
        """Return the last record; empty if its writer died during the write."""
        for _ in range(_TRIES):
            version, length = _HEAD.unpack_from(self._map, 0)
            body = self._map[_HEAD.size : _HEAD.size + length]
            if version % 2 == 0 and _HEAD.unpack_from(self._map, 0)[0] == version:
                found: dict[str, Any] = json.loads(body) if body else {}
                return found
        return {}

    def close(self) -> None:
        """Unmap it."""
        self._map.close()
