"""Records of runs: tensors that passed modules, calls, gradients, parameters; also on disk."""

from __future__ import annotations

import pickle
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, zip_longest
from math import prod
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import torch

from simrank.distributed.flight_recorder import FlightRecorder
from simrank.equality.dtensors import is_dtensor, local_part
from simrank.equality.tensor_file import TensorInFile

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from torch.nn import Module

    from simrank.distributed.flight_recorder import CallRecord
    from simrank.distributed.group import ProcessGroup
    from simrank.distributed.p2p import End
    from simrank.distributed.request import Request
    from simrank.engine.callsite import SourceLine
    from simrank.equality.layout import Layout
    from simrank.equality.tensor_file import TensorFile
    from simrank.equality.verdict import FirstDifference

INPUT, OUTPUT, CACHE = "input", "output", "cache"
GENERATED = "(generated)"  # In place of a module: of what `generate` returns.
UNKNOWN = -1  # In place of bits: a tensor without a gradient.
AGAIN = " (again)"  # After a module's name: in a recomputation.
PARTIAL, REPLICATED = "partial", "replicated"  # Of a DTensor's placements; else a dimension.

OPAQUE = "<"  # Begins the text of a value that cannot be compared.

_LISTS = ("ModuleList", "ModuleDict")  # They have no code between their modules.

# Parts of a module's name that wrappers add.
_WRAPPERS = frozenset({"module", "_checkpoint_wrapped_module", "_orig_mod", "_fsdp_wrapped_module"})

Places = dict[str, int | str]


def plain_name(name: str, renamed: Mapping[str, str] | None = None) -> str:
    """Return the name of a module or parameter without the parts that wrappers add.

    Args:
        name: As torch gives it.
        renamed: Names of modules here, and those to use.
    """
    plain = ".".join(part for part in name.split(".") if part not in _WRAPPERS)
    for here in sorted(renamed or {}, key=len, reverse=True):
        if not here or plain == here or plain.startswith(f"{here}."):
            rest = plain[len(here) :].lstrip(".")
            return ".".join(filter(None, [(renamed or {})[here], rest]))
    return plain


class Spot(NamedTuple):
    """A place that a tensor passes: the second output of `layers.0.mlp`.

    Attributes:
        module: Its plain name; "" is the model.
        side: INPUT or OUTPUT.
        index: Among the tensors of that side.
    """

    module: str
    side: str
    index: int  # type: ignore[assignment]  # Hides tuple.index, which is unused.


class Taped:
    """A tensor of one rank.

    Args:
        value: As below.
        places: As below.
        order: As below.

    Attributes:
        places: How a DTensor is placed along each axis of its mesh; None for other tensors.
        order: Its number among all that passed on any rank, in the order of the run.
    """

    __slots__ = ("_held", "order", "places")

    def __init__(
        self, value: torch.Tensor | TensorInFile, places: Places | None = None, order: int = 0
    ) -> None:
        self._held = value
        self.places, self.order = places, order

    @property
    def value(self) -> torch.Tensor:
        """The rank's own part, a copy in host memory; it may be read from a file."""
        return self._held.read() if isinstance(self._held, TensorInFile) else self._held


@dataclass(slots=True)
class Dropped:
    """One dropout of the single program, or of a rank; or random numbers that are drawn by hand.

    Attributes:
        mask: What the elements are multiplied by; or the numbers.
        taken: What they were; of numbers that are drawn by hand nothing, since they may be no mask.
        is_aligned: Of a rank: whether its elements are known among the single program's.
        cuts: Of a rank: the axes along which its elements may be a part of the single program's;
            several where parts are equal, or their ranks stand at the same coordinates.
        has_own_numbers: Whether it was on a device of the rank's own, whose random numbers programs
            set apart by rank; those of the CPU are not always.
    """

    mask: torch.Tensor
    taken: torch.Tensor
    is_aligned: bool = True
    cuts: tuple[tuple[str, ...], ...] = ()
    has_own_numbers: bool = True

    def to_host(self) -> Dropped:
        """Return the same in host memory."""
        return replace(self, mask=self.mask.cpu(), taken=self.taken.cpu())


class DecodingStep(NamedTuple):
    """The place of a decoding step.

    Attributes:
        batch: Number of the batch, from 0.
        number: The call of the model within it: 0 is the prefill.
    """

    batch: int
    number: int


@dataclass
class Step:
    """One training step of one rank, or one decoding step.

    Attributes:
        order: Spots with the number of their call, as they were passed.
        values: Tensors by spot, one per call.
        gradients: Their gradients by spot and call.
        span: Numbers of the first and the last of all that passed in the step.
        again: Tensors of forwards that the backward recomputed.
        upstream: Of the single program: for each place in `order` the places that it depends on,
            as bits, or UNKNOWN; empty where none is known.
        reads: Likewise the parameters that it depends on, in the order of `parameter_gradients`.
        unused: Likewise the places, as bits, of tensors that the loss does not depend on.
        dropped: Dropouts by module; of a recomputation under the module's name and AGAIN.
        loss: The loss, or None.
        parameter_gradients: As the optimizer finds them, by parameter; None where there is none.
        parameters: After the step.
        states: Those of optimizers then that have a parameter's shape: by name and parameter.
        buffers: After the step.
        decoding: Of a decoding step its place; None: it is a training step.
        is_last: Whether it ends its batch; a training step always does.
        within: Of a decoding step of the single program: by place in `order`, for an output the
            places, as bits, of the tensors that passed while its module ran.
        names: Of a decoding step: names of the inputs that its outermost module takes.
        caches: Of a decoding step: tensors that modules and objects keep, after it.
    """

    order: list[tuple[Spot, int]] = field(default_factory=list)
    values: dict[Spot, list[Taped]] = field(default_factory=lambda: defaultdict(list))
    gradients: dict[Spot, dict[int, Taped]] = field(default_factory=lambda: defaultdict(dict))
    span: tuple[int, int] = (0, 0)
    again: dict[Spot, list[Taped]] = field(default_factory=lambda: defaultdict(list))
    upstream: list[int] = field(default_factory=list)
    reads: list[int] = field(default_factory=list)
    unused: int = 0
    dropped: dict[str, list[Dropped]] = field(default_factory=lambda: defaultdict(list))
    loss: torch.Tensor | None = None
    parameter_gradients: dict[str, Taped | None] = field(default_factory=dict)
    parameters: dict[str, Taped] = field(default_factory=dict)
    states: dict[str, dict[str, Taped]] = field(default_factory=lambda: defaultdict(dict))
    buffers: dict[str, Taped] = field(default_factory=dict)
    decoding: DecodingStep | None = None
    is_last: bool = True
    within: list[int] = field(default_factory=list)
    names: dict[Spot, str] = field(default_factory=dict)
    caches: dict[str, Taped] = field(default_factory=dict)

    def to_host(self) -> None:
        """Copy to host memory what is not there."""
        for masks in self.dropped.values():
            masks[:] = [each.to_host() for each in masks]
        self.loss = None if self.loss is None else self.loss.cpu()


@dataclass
class Record:
    """The record of one rank.

    Attributes:
        initial: Parameters before the first step.
        initial_buffers: Buffers then.
        aliases: Names of one tensor, where a parameter has several.
        kinds: Names of the modules' types.
        sites: Where a module was called, by its plain name.
        homes: File and first line of the forward of modules that are the program's own.
        keywords: Names of inputs that modules take by name.
        steps: The steps so far.
        calls: Collectives and messages.
        switched_off: Functions of torch whose own dropout was left out.
        arguments: Texts of the arguments of modules that are no tensors, by name; OPAQUE if they
            are objects.
        attributes: Likewise attributes of the program's modules that hold tensors, or that changed.
        optimizers: Types of the optimizers, with the names of states that no parameter's shape has.
        axes: Of the single program: names of the axes that layouts may have; none: any.
        shared_axes: Of the single program: axes that lie over the ranks of others.
        exported: Of the single program: its values under other names.
        tolerance: Of the single program: the error that it allows a tensor, as a part of its norm.
    """

    initial: dict[str, Taped] = field(default_factory=dict)
    initial_buffers: dict[str, Taped] = field(default_factory=dict)
    aliases: list[list[str]] = field(default_factory=list)
    kinds: dict[str, str] = field(default_factory=dict)
    sites: dict[str, SourceLine] = field(default_factory=dict)
    homes: dict[str, SourceLine] = field(default_factory=dict)
    keywords: dict[Spot, str] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    calls: list[GroupCall] = field(default_factory=list)
    switched_off: set[str] = field(default_factory=set)
    arguments: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    attributes: dict[str, set[str]] = field(default_factory=dict)
    optimizers: dict[str, None] = field(default_factory=dict)
    axes: Sequence[str] = ()
    shared_axes: Sequence[str] = ()
    exported: Mapping[str, torch.Tensor] = field(default_factory=dict)
    tolerance: float = 0.0

    def batches(self) -> list[Step]:
        """Return the training steps, or the last decoding step of each batch."""
        return [step for step in self.steps if step.is_last]

    def parent(self, module: str) -> str:
        """Return the module that calls a module; "" is the model."""
        name = module.rpartition(".")[0]
        while name and self.kinds.get(name, _LISTS[0]) in _LISTS:
            name = name.rpartition(".")[0]
        return name


_numbers = count()  # Of all ranks, which one process runs.


def next_number() -> int:
    """Return the next number of what passes on any rank, in the order of the run."""
    return next(_numbers)


def taped(tensor: torch.Tensor, file: TensorFile | None = None) -> Taped:
    """Return a host copy of a rank's part of a tensor, in the order of its stream.

    The host does not wait on the simulated clock, though it has the elements at once.

    Args:
        tensor: The tensor.
        file: For a large one; None: it stays in memory.
    """
    if is_dtensor(tensor):
        names = tensor.device_mesh.mesh_dim_names or ()
        places: Places = {}
        for name, placement in zip(names, tensor.placements, strict=False):
            if placement.is_partial():
                places[name] = PARTIAL
            else:
                places[name] = getattr(placement, "dim", REPLICATED)
        return Taped(_copied(local_part(tensor), file), places, next_number())
    return Taped(_copied(tensor, file), None, next_number())


def is_readable(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has elements of its own that can be recorded.

    One of `torch.func` ends with its transformation, and FSDP frees the storage of some.
    """
    is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    if is_plain and tensor.numel() and not tensor.untyped_storage().nbytes():
        return False
    is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor(tensor)  # noqa: SLF001 - as below
    return tensor.layout == torch.strided and not tensor.is_meta and not is_wrapped


def _copied(tensor: torch.Tensor, file: TensorFile | None) -> torch.Tensor | TensorInFile:
    copy = _plain(tensor).to("cpu", non_blocking=True, copy=True)
    return copy if file is None else file.keep(copy)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    if hasattr(tensor, "elem") and hasattr(tensor, "wait"):  # A functional collective's result.
        tensor = tensor.wait()
    tensor = tensor.detach()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_complex():  # Norms and sums then need no case of their own.
        tensor = torch.view_as_real(tensor)
    return tensor


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return a rank's part of a tensor in host memory, once it is there."""
    return _plain(local_part(tensor)).cpu()


Names = Sequence[Mapping[str, str]]  # By part of a model.


def parameters_of(parts: Sequence[Module], names: Names = ()) -> dict[str, torch.Tensor]:
    """Return the parameters of a model's parts, shared ones under each of their names."""
    return {
        plain_name(name, renamed): each
        for part, renamed in zip_longest(parts, names)
        for name, each in part.named_parameters(remove_duplicate=False)
    }


def buffers_of(parts: Sequence[Module], names: Names = ()) -> dict[str, torch.Tensor]:
    """Return the buffers of a model's parts."""
    return {
        plain_name(name, renamed): each
        for part, renamed in zip_longest(parts, names)
        for name, each in part.named_buffers(remove_duplicate=False)
    }


@dataclass
class Reference:
    """The single program.

    Attributes:
        record: What it did.
        noisy: What one rounding error at each module's output and gradient does, drawn again: in
            place of tensors, norms of differences.
        changed: That it is another program without recording; None: it is the same.
        notes: Remarks on it for each verdict.
    """

    record: Record
    noisy: list[Record] = field(default_factory=list)
    changed: FirstDifference | None = None
    notes: list[str] = field(default_factory=list)


# ---- the collectives and messages of a run, in the order of the tensors that passed modules ----

_CALL_WRAPPERS = "typing_extensions.py"
_BATCH = "coalesced"  # The end of a batch of messages.
# Names of torch's records -> those of its functions.
_NAMES = {
    "_all_gather_base": "all_gather_into_tensor",
    "_reduce_scatter_base": "reduce_scatter_tensor",
}
_MAX_NAMED = 3  # Calls in a line of a report.


@dataclass(frozen=True)
class GroupCall:
    """A call of a process group.

    Attributes:
        name: The collective or message, such as `all_reduce`.
        group: Ranks of the group.
        place: Line of the program; "" where there is none.
        order: Its number among all tensors and calls, in the order of the run.
        count: Elements that the rank gives to it.
    """

    name: str
    group: tuple[int, ...]
    place: str
    order: int
    count: int = 0

    def text(self, layout: Layout) -> str:
        """Return `all_reduce on tp at layers.py:8`."""
        axes = layout.axes_of(self.group)
        over = "/".join(axes) if axes else f"ranks {', '.join(map(str, self.group))}"
        return f"{self.name} on {over}" + (f" at {self.place}" if self.place else "")


class CallLog(FlightRecorder):
    """Records the calls of each rank in memory.

    Attributes:
        calls: By rank.
    """

    def __init__(self) -> None:
        super().__init__("")
        self.calls: dict[int, list[GroupCall]] = defaultdict(list)

    def collective(
        self, group: ProcessGroup, rank: int, backend: str, request: Request
    ) -> CallRecord:
        """Note a collective."""
        entry = super().collective(group, rank, backend, request)
        self._note(rank, [entry])
        return entry

    def messages(
        self, group: ProcessGroup, rank: int, backend: str, ends: Sequence[End]
    ) -> list[CallRecord]:
        """Note a message, or a batch of them."""
        entries = super().messages(group, rank, backend, ends)
        self._note(rank, entries)
        return entries

    def _note(self, rank: int, entries: Iterable[CallRecord]) -> None:
        for entry in entries:
            name = entry.facts["profiling_name"].partition(":")[2].partition(" ")[0]
            if name == _BATCH:
                continue
            ranks = tuple(int(each) for each in entry.log.group.ranks)
            # A wrapper of deprecated functions is no line of the program.
            lines = (str(site.line()) for site in entry.stack)
            place = next((line for line in lines if not line.startswith(_CALL_WRAPPERS)), "")
            count = sum(prod(shape) for shape in entry.facts["input_sizes"])
            name = _NAMES.get(name, name)
            self.calls[rank].append(GroupCall(name, ranks, place, next_number(), count))

    def write(self) -> None:
        """Write nothing: the calls are read from memory."""


def calls_text(calls: Iterable[GroupCall], layout: Layout) -> str:
    """Return `all_reduce on tp at layers.py:8 (4 times), ...`, the most frequent first."""
    counts = Counter(call.text(layout) for call in calls)
    named = [
        text if count == 1 else f"{text} ({count} times)"
        for text, count in counts.most_common(_MAX_NAMED)
    ]
    return ", ".join(named) + (", ..." if len(counts) > _MAX_NAMED else "")


# ---- records on disk: tensors in one file, which is mapped and read where it is used ----

_ALIGNED_BYTES = 64


class _Pickler(pickle.Pickler):
    """Writes tensors to a file of their own.

    Args:
        file: For everything else.
        data: For the bytes of the tensors.
    """

    def __init__(self, file: IO[bytes], data: IO[bytes]) -> None:
        super().__init__(file, protocol=5)
        self._data = data

    def persistent_id(self, obj: Any) -> object:  # noqa: ANN401 - of pickle's protocol
        """Return the place of a tensor's bytes; None for other objects."""
        if not isinstance(obj, torch.Tensor):
            return None
        place = -(-self._data.tell() // _ALIGNED_BYTES) * _ALIGNED_BYTES
        self._data.seek(place)
        self._data.write(obj.detach().contiguous().flatten().view(torch.uint8).numpy().data)
        return place, obj.dtype, tuple(obj.shape)


class _Unpickler(pickle.Unpickler):
    """Reads what `_Pickler` has written.

    Args:
        file: As written.
        data: The bytes of all tensors.
    """

    def __init__(self, file: IO[bytes], data: torch.Tensor) -> None:
        super().__init__(file)
        self._data = data

    def persistent_load(self, pid: tuple[int, torch.dtype, Sequence[int]]) -> torch.Tensor:
        """Return a tensor that shares the mapped bytes."""
        place, dtype, shape = pid
        count = torch.Size(shape).numel() * dtype.itemsize
        return self._data[place : place + count].view(dtype).view(shape)


def write_record(found: object, path: Path) -> None:
    """Write an object with its tensors to `path` and a file beside it."""
    with path.open("wb") as file, path.with_suffix(".data").open("wb") as data:
        _Pickler(file, data).dump(found)
        data.truncate(max(data.tell(), 1))  # An empty file cannot be mapped.


def read_record(path: Path) -> Any:  # noqa: ANN401 - as written
    """Return an object that `write` wrote; its tensors are read where they are used."""
    beside = path.with_suffix(".data")
    data = torch.from_file(str(beside), size=beside.stat().st_size, dtype=torch.uint8)
    with path.open("rb") as file:
        return _Unpickler(file, data).load()
