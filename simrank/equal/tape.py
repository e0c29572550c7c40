"""What a run recorded: what its modules took in and gave, gradients there, parameters and buffers.

A tape is on a rank's device while the rank runs: copies in the order of its streams, without a wait
of the host, so that what is recorded does not change what the program does.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from simrank.engine import user_site
from simrank.equal.program import plain_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch.nn import Module

    from simrank.engine.callsite import SourceLine

INPUT, OUTPUT = "input", "output"
PARTIAL, REPLICATED = "partial", "replicated"  # Of a DTensor's placements; else a dimension.

Places = dict[str, int | str]


class Spot(NamedTuple):
    """Where a tensor passes: `layers.0.mlp`'s second output.

    Attributes:
        module: Its plain name; "" is the model.
        side: INPUT or OUTPUT.
        index: Among the tensors of that side.
    """

    module: str
    side: str
    index: int


@dataclass(slots=True)
class Taped:
    """A tensor of one rank.

    Attributes:
        value: The rank's own part, a copy.
        places: How a DTensor is placed along each axis of its mesh; None for other tensors.
    """

    value: torch.Tensor
    places: Places | None = None


@dataclass
class Step:
    """One training step of one rank.

    Attributes:
        order: Spots with the number of their call, as they were passed.
        values: Tensors by spot, one per call.
        gradients: Their gradients by spot and call.
        again: Tensors of forwards that the backward recomputed.
        upstream: Of the single program: for each place in `order` the places that it depends on,
            as bits; empty where that is not known.
        reads: Likewise the parameters that it depends on, in the order of `parameter_gradients`.
        loss: The loss, or None.
        parameter_gradients: As the optimizer finds them, by parameter; None where there is none.
        parameters: After the step.
        buffers: After the step.
    """

    order: list[tuple[Spot, int]] = field(default_factory=list)
    values: dict[Spot, list[Taped]] = field(default_factory=lambda: defaultdict(list))
    gradients: dict[Spot, dict[int, Taped]] = field(default_factory=lambda: defaultdict(dict))
    again: dict[Spot, list[Taped]] = field(default_factory=lambda: defaultdict(list))
    upstream: list[int] = field(default_factory=list)
    reads: list[int] = field(default_factory=list)
    loss: torch.Tensor | None = None
    parameter_gradients: dict[str, Taped | None] = field(default_factory=dict)
    parameters: dict[str, Taped] = field(default_factory=dict)
    buffers: dict[str, Taped] = field(default_factory=dict)

    def to_host(self) -> None:
        """Copy everything to host memory."""
        for found in (self.values, self.again):
            for calls in found.values():
                calls[:] = map(on_host, calls)
        for by_call in self.gradients.values():
            by_call.update({call: on_host(each) for call, each in by_call.items()})
        for named in (self.parameters, self.buffers):
            named.update({name: on_host(each) for name, each in named.items()})
        for name, each in self.parameter_gradients.items():
            self.parameter_gradients[name] = None if each is None else on_host(each)
        self.loss = None if self.loss is None else self.loss.cpu()


@dataclass
class Record:
    """What one rank did.

    Attributes:
        initial: Parameters before the first step.
        initial_buffers: Buffers then.
        aliases: Names of one tensor, where a parameter has several.
        kinds: Names of the modules' types.
        sites: Where a module was called, by its plain name.
        homes: File and first line of the forward of modules that are the program's own.
        steps: The steps so far.
        batch: The tensors of each step, of the single program.
    """

    initial: dict[str, Taped] = field(default_factory=dict)
    initial_buffers: dict[str, Taped] = field(default_factory=dict)
    aliases: list[list[str]] = field(default_factory=list)
    kinds: dict[str, str] = field(default_factory=dict)
    sites: dict[str, SourceLine] = field(default_factory=dict)
    homes: dict[str, SourceLine] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    batch: list[list[torch.Tensor]] = field(default_factory=list)


def taped(tensor: torch.Tensor) -> Taped:
    """Return a copy of a rank's part of a tensor, on its device."""
    if isinstance(tensor, DTensor):
        names = tensor.device_mesh.mesh_dim_names or ()
        places: Places = {}
        for name, placement in zip(names, tensor.placements, strict=False):
            if placement.is_partial():
                places[name] = PARTIAL
            else:
                places[name] = getattr(placement, "dim", REPLICATED)
        return Taped(_plain(tensor._local_tensor), places)  # noqa: SLF001 - without a gradient
    return Taped(_plain(tensor))


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    if hasattr(tensor, "elem") and hasattr(tensor, "wait"):  # A functional collective's result.
        tensor = tensor.wait()
    return tensor.detach().clone()


def on_host(each: Taped) -> Taped:
    """Return the same in host memory."""
    return Taped(each.value.cpu(), each.places)


def named_tensors(
    parts: Sequence[Module], find: Callable[[Module], Iterator[tuple[str, Any]]]
) -> dict[str, torch.Tensor]:
    """Return parameters or buffers of a model's parts by their plain names."""
    return {plain_name(name): each for part in parts for name, each in find(part)}


def parameters_of(parts: Sequence[Module]) -> dict[str, torch.Tensor]:
    """Return the parameters of a model's parts, shared ones under each of their names."""
    return named_tensors(parts, lambda part: part.named_parameters(remove_duplicate=False))


def buffers_of(parts: Sequence[Module]) -> dict[str, torch.Tensor]:
    """Return the buffers of a model's parts."""
    return named_tensors(parts, lambda part: part.named_buffers(remove_duplicate=False))


class Tape:
    """Records the steps of a model.

    Args:
        parts: The model, or its parts.
        kinds: Of the single model's modules: where a part has an Identity in place of a module, it
            is not that module.
        noise: Changes what modules give and gradients there; None: nothing is changed.
    """

    def __init__(
        self,
        parts: Sequence[Module],
        kinds: Mapping[str, str] | None = None,
        noise: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> None:
        self.record = Record()
        self._step = Step()
        self._nodes: list[Any] = []
        self._noise = noise
        self._paused = 0
        for part in parts:
            for name, module in part.named_modules():
                if name or len(parts) == 1:  # The whole is none of several parts.
                    self._watch(plain_name(name), module, kinds)
        self._parts = parts
        self.record.initial = {name: taped(each) for name, each in parameters_of(parts).items()}
        self.record.initial_buffers = {n: taped(each) for n, each in buffers_of(parts).items()}
        names: dict[int, list[str]] = defaultdict(list)
        for name, each in parameters_of(parts).items():
            names[id(each)].append(name)
        self.record.aliases = [found for found in names.values() if len(found) > 1]

    def _watch(self, name: str, module: Module, kinds: Mapping[str, str] | None) -> None:
        kind = type(module).__name__
        if kinds is not None and kind == "Identity" and kinds.get(name, kind) != kind:
            return
        code = getattr(type(module).forward, "__code__", None)
        is_new = name not in self.record.kinds
        self.record.kinds[name] = kind  # That of the innermost, where wrappers share a name.
        if code is not None:
            self._note_home(name, code)
        if not is_new:
            return

        def before(_: Module, args: Any, kwargs: Any) -> Any:  # noqa: ANN401 - any program's
            return self._enter(name, args, kwargs)

        def after(_: Module, _args: object, out: Any) -> Any:  # noqa: ANN401 - any program's
            return self._leave(name, out)

        module.register_forward_pre_hook(before, with_kwargs=True)
        module.register_forward_hook(after)

    def _note_home(self, name: str, code: Any) -> None:  # noqa: ANN401 - a code object
        from simrank.engine.callsite import SourceLine, is_library  # noqa: PLC0415

        if not is_library(code.co_filename):
            self.record.homes[name] = SourceLine(code.co_filename, code.co_firstlineno)

    @contextmanager
    def step(self) -> Iterator[Step]:
        """Record one step."""
        self._step, self._nodes = Step(), []
        self.record.steps.append(self._step)
        yield self._step

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Record nothing: trial runs, which find out shapes."""
        self._paused += 1
        try:
            yield
        finally:
            self._paused -= 1

    def _enter(self, name: str, args: Any, kwargs: Any) -> Any:  # noqa: ANN401 - any program's
        """Record what a module takes in, and give each tensor a node of its own.

        The gradient there is then that of this module, not of all that read the tensor.
        """
        if self._paused:
            return None
        site = user_site()
        if site is not None:
            self.record.sites.setdefault(name, site.line())
        found, form = tree_flatten((args, kwargs))
        for place, each in enumerate(found):
            if isinstance(each, torch.Tensor):
                if each.requires_grad and torch.is_grad_enabled():
                    found[place] = each.view_as(each)
                self._see(Spot(name, INPUT, place), found[place])
        return tree_unflatten(found, form)

    def _leave(self, name: str, out: Any) -> Any:  # noqa: ANN401 - any program's
        if self._paused:
            return None
        found, form = tree_flatten(out)
        for place, each in enumerate(found):
            if isinstance(each, torch.Tensor):
                if self._noise is not None:
                    found[place] = self._noise(each)
                self._see(Spot(name, OUTPUT, place), found[place])
        return None if self._noise is None else tree_unflatten(found, form)

    def _see(self, spot: Spot, tensor: torch.Tensor) -> None:
        step = self._step
        if tensor.is_meta or not (tensor.is_floating_point() or spot.side == INPUT):
            return
        is_again = torch._C._current_graph_task_id() != -1  # noqa: SLF001 - inside a backward
        kept = (step.again if is_again else step.values)[spot]
        call = len(kept)
        kept.append(taped(tensor))
        if not is_again:
            step.order.append((spot, call))
            self._nodes.append(tensor.grad_fn)
        if tensor.requires_grad and torch.is_grad_enabled():

            def hook(gradient: torch.Tensor) -> torch.Tensor | None:
                step.gradients[spot][call] = taped(gradient)
                return None if self._noise is None else self._noise(gradient)

            tensor.register_hook(hook)

    def note_dependencies(self, loss: torch.Tensor) -> None:
        """Find out which recorded tensors depend on which; before the backward of the loss."""
        at: dict[Any, int] = defaultdict(int)
        for place, node in enumerate(self._nodes):
            if node is not None:
                at[node] |= 1 << place
        first = len(self._nodes)
        leaves = {id(e): n for n, e in enumerate(parameters_of(self._parts).values())}
        found: dict[Any, int] = {}
        stack = [(loss.grad_fn, False)]
        while stack:
            node, is_done = stack.pop()
            if node is None or (node in found and not is_done):
                continue
            below = [each for each, _ in node.next_functions if each is not None]
            if is_done:
                found[node] = at.get(node, 0)
                leaf = leaves.get(id(getattr(node, "variable", None)))
                if leaf is not None:
                    found[node] |= 1 << (first + leaf)
                for each in below:
                    found[node] |= found.get(each, 0)
            else:
                stack.append((node, True))
                stack += [(each, False) for each in below]
        every = [found.get(node, 0) & ~(1 << place) for place, node in enumerate(self._nodes)]
        self._step.upstream = [each & ((1 << first) - 1) for each in every]
        self._step.reads = [each >> first for each in every]
        self._nodes = []

    def note_gradients(self, parts: Sequence[Module]) -> None:
        """Record the gradients of the parameters, as the optimizer finds them."""
        for name, each in parameters_of(parts).items():
            gradient = each.grad if each.grad is not None else getattr(each, "main_grad", None)
            self._step.parameter_gradients[name] = None if gradient is None else taped(gradient)

    def note_state(self, parts: Sequence[Module]) -> None:
        """Record the parameters and buffers after the step."""
        self._step.parameters = {name: taped(each) for name, each in parameters_of(parts).items()}
        self._step.buffers = {name: taped(each) for name, each in buffers_of(parts).items()}
