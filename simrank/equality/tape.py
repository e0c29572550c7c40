"""Records what a model does.

A tape is on a rank's device while the rank runs: copies in the order of its streams, without a wait
of the host, so that what is recorded does not change what the program does.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping
from contextlib import contextmanager
from inspect import signature
from itertools import zip_longest
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from simrank.engine import user_site
from simrank.engine.callsite import SourceLine, is_library
from simrank.equality.alignment import rows_of
from simrank.equality.record import (
    AGAIN,
    GENERATED,
    INPUT,
    OPAQUE,
    OUTPUT,
    UNKNOWN,
    DecodingStep,
    Dropped,
    Record,
    Spot,
    Step,
    Taped,
    buffers_of,
    is_readable,
    next_number,
    on_host,
    parameters_of,
    plain_name,
    taped,
)
from simrank.equality.verdict import GENERATE, LOSS_MODULE, MODEL

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Sequence

    from torch.nn import Module

    from simrank.equality.alignment import BatchRows
    from simrank.equality.record import Names
    from simrank.equality.tensor_file import TensorFile


_MODULE_CALL = torch.nn.Module._call_impl.__code__  # noqa: SLF001 - of any module
_NO_MODULE = "(no module)"  # In place of one: of random numbers that an update draws.
_Seen = dict[int, "ref[torch.Tensor]"]  # Tensors by their identities, which are used again.


def _is_in_backward() -> bool:
    """Return whether a backward is running: what forwards do then are recomputations."""
    return bool(torch._C._current_graph_task_id() != -1)  # noqa: SLF001 - torch has no other


def _is_in_module() -> bool:
    """Return whether a module is running, recorded or not."""
    frame = sys._getframe(1).f_back  # noqa: SLF001 - the documented way to a frame
    while frame is not None and frame.f_code is not _MODULE_CALL:
        frame = frame.f_back
    return frame is not None


class Tape:
    """Records the steps of a model.

    Args:
        parts: The model, or its parts.
        noise: Changes what modules give and gradients there; None: nothing is changed.
        single: What the single program did, where this is a rank of a layout.
        names: By part, names of a rank's modules and those of the single program.
        watched: Modules that are recorded; None: all.
        file: For large tensors; None: they stay in memory.
    """

    def __init__(
        self,
        parts: Sequence[Module],
        noise: Callable[[torch.Tensor], torch.Tensor] | None = None,
        single: Record | None = None,
        names: Names = (),
        watched: Container[str] | None = None,
        file: TensorFile | None = None,
    ) -> None:
        kinds = None if single is None else single.kinds
        self._modules: dict[str, Module] = {}
        self.record = Record()
        self._single, self._file = single, file
        self._stack: list[str] = []
        self._is_in_step = False
        self._rows: BatchRows | None = None
        self._step = Step()
        self._nodes: list[Any] = []
        self._roots: list[Any] = []
        self._noise = noise
        self._paused = 0
        self._is_at_work = False
        self._taken: dict[str, _Seen] = {}  # Inputs of the modules that are running.
        self._given: _Seen = {}  # Outputs of modules, of one call of the model.
        self._optimizers: list[torch.optim.Optimizer] = []  # Of this step.
        self._keyed: set[str] = set()  # Modules whose inputs' names are noted.
        self._root: str | None = None  # The module whose calls begin decoding steps.
        self._opened: dict[str, int] = {}  # By running module, the tensors that passed before.
        self._held: dict[str, object] = {}  # What that module is given and may write into.
        for part, renamed in zip_longest(parts, names):
            for name, module in part.named_modules():
                plain = plain_name(name, renamed)
                is_part = name or len(parts) == 1  # The whole is none of several parts.
                if is_part and (watched is None or plain in watched):
                    self._modules[plain] = module
                    self._watch(plain, module, kinds)
        self._parts, self._names = parts, names
        self._attributes = dict(self._texts_of_attributes())
        self.record.initial = {name: self._copy(each) for name, each in self._parameters().items()}
        self.record.initial_buffers = {n: self._copy(each) for n, each in self._buffers().items()}
        shared: dict[int, list[str]] = defaultdict(list)
        for name, each in self._parameters().items():
            shared[id(each)].append(name)
        self.record.aliases = [found for found in shared.values() if len(found) > 1]

    # Where a part has an Identity in place of a module, it is not that module.
    def _watch(self, name: str, module: Module, kinds: Mapping[str, str] | None) -> None:
        kind = type(module).__name__
        if kinds is not None and kind == "Identity" and kinds.get(name, kind) != kind:
            return
        forward = getattr(type(module), "forward", None)
        code = forward.__code__ if isinstance(forward, FunctionType) else None
        is_new = name not in self.record.kinds
        self.record.kinds[name] = kind  # That of the innermost, where wrappers share a name.
        if code is not None:
            self._note_home(name, code)
        if not is_new:
            return

        def before(_: Module, args: Any, kwargs: Any) -> Any:  # noqa: ANN401 - any program's
            with self._at_work():
                return self._enter(name, args, kwargs)

        def after(_: Module, _args: object, out: Any) -> Any:  # noqa: ANN401 - any program's
            with self._at_work():
                return self._leave(name, out)

        module.register_forward_pre_hook(before, with_kwargs=True)
        module.register_forward_hook(after)

    def _note_home(self, name: str, code: Any) -> None:  # noqa: ANN401 - a code object
        if not is_library(code.co_filename):
            self.record.homes[name] = SourceLine(code.co_filename, code.co_firstlineno)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Record one training step."""
        self._begin(Step())
        yield
        self._is_in_step = False
        self._end()
        if self._single is None and self._nodes:
            self._note_dependencies()
        self._nodes, self._roots = [], []

    @contextmanager
    def batch(self, number: int) -> Iterator[None]:
        """Record the decoding steps of a batch: each begins with a call of the model.

        Args:
            number: Of the batch, from 0.
        """
        self._root = None
        self._begin(Step(decoding=DecodingStep(number, 0)))
        yield
        self._is_in_step = False
        self._end()

    def _begin(self, step: Step) -> None:
        self._step, self._nodes, self._roots = step, [], []
        self.record.steps.append(step)
        self._stack.clear()
        self._is_in_step = True
        step.span = next_number(), 0

    def _end(self) -> None:
        if self._step.decoding is not None:
            self._note_caches()
        self._step.span = self._step.span[0], next_number()

    def _begin_decoding_step(self, module: str) -> None:
        """Begin the next decoding step where the module that began this one is called again."""
        batch, number = self._step.decoding or (0, 0)
        if self._root is None:
            self._root = module
        elif module == self._root:
            self._step.is_last = False
            self._end()
            self._begin(Step(decoding=DecodingStep(batch, number + 1)))
        self._held.clear()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Record nothing: trial runs, which find out shapes."""
        self._paused += 1
        try:
            yield
        finally:
            self._paused -= 1

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """Note that calls of torch are the tape's own."""
        self._is_at_work = True
        try:
            yield
        finally:
            self._is_at_work = False

    def _enter(self, name: str, args: Any, kwargs: Any) -> Any:  # noqa: ANN401 - any program's
        """Record what a module takes in, and give each tensor a node of its own.

        The gradient there is then that of this module, not of all that read the tensor.
        """
        if self._paused:
            return None
        self._open(name)
        if self._step.decoding is not None:
            self._opened[name] = len(self._step.order)
            if self._stack == [name]:
                self._note_inputs(name, args, kwargs)
        site = user_site()
        if site is not None:
            self.record.sites.setdefault(name, site.line())
        if kwargs and name not in self._keyed:
            self._note_keywords(name, args, kwargs)
        direct = {id(each) for each in _direct_tensors((args, *kwargs.values()))}
        own: dict[int, list[torch.Tensor]] = {}  # A tensor may be given twice.
        for place, given in enumerate(tree_leaves((args, kwargs))):
            if isinstance(given, torch.Tensor):
                each = given
                if each.requires_grad and torch.is_grad_enabled() and id(given) in direct:
                    each = given.view_as(given)
                    each.__dict__ = given.__dict__  # Attributes that modules read and write.
                    own.setdefault(id(given), []).append(each)
                self._see(Spot(name, INPUT, place), each)
                self._taken.setdefault(name, {})[id(each)] = ref(each)
                if self._rows is None:
                    self._find_rows(Spot(name, INPUT, place), each)
            self._note_argument(Spot(name, INPUT, place), given)
        return _with_own(args, own), {key: _with_own(each, own) for key, each in kwargs.items()}

    def _note_argument(self, spot: Spot, given: object) -> None:
        """Note an argument that is no tensor."""
        if given is not None and not (isinstance(given, torch.Tensor) and is_readable(given)):
            key = self.record.keywords.get(spot, f"argument {spot.index}")
            self.record.arguments[f"{spot.module or MODEL}: {key}"].add(_text(given))

    def _note_keywords(self, name: str, args: Any, kwargs: Mapping[str, Any]) -> None:  # noqa: ANN401
        """Note the names of the inputs that a module's first call gives by name."""
        self._keyed.add(name)
        place = len(tree_flatten(args)[0])
        for key, value in kwargs.items():
            count = len(tree_flatten(value)[0])
            for index in range(place, place + count):
                self.record.keywords[Spot(name, INPUT, index)] = key
            place += count

    def _open(self, name: str) -> None:
        """Note which modules are running; those that a recomputation left early are not."""
        while self._stack and self._stack[-1] and not name.startswith(self._stack[-1] + "."):
            self._stack.pop()
        if self._stack == [""] and not name:
            self._stack.clear()
        if not self._stack:
            self._rows = None  # Another part of the batch.
            self._given.clear()
            if self._step.decoding is not None and self._is_in_step:
                self._begin_decoding_step(name)
        self._stack.append(name)

    def _find_rows(self, spot: Spot, tensor: torch.Tensor) -> None:
        """Find out which rows of the batch a rank is working on, if it must know."""
        if self._step.decoding is not None:
            return
        number = len(self.record.steps) - 1
        if self._single is None or not self._single.steps[number].dropped or tensor.is_meta:
            return
        found = rows_of(self._single.steps[number].values.get(spot, []), [Taped(on_host(tensor))])
        self._rows = None if found is None else found[0]

    def counts_draws(self, *, has_generator: bool) -> bool:
        """Return whether random numbers are drawn in a step; those of a generator in a module.

        Elsewhere these are data, or initial values.
        """
        return self._is_in_step and (not has_generator or _is_in_module())

    def is_in(self, module: str, step: int) -> bool:
        """Return whether a step is in the forward of a module, or in the loss.

        The modules of the single program that are within a rank's one are not part of it.
        """
        is_open = self._is_in_step and not self._paused and not self._is_at_work
        if not is_open or len(self.record.steps) - 1 != step or _is_in_backward():
            return False
        if module in (LOSS_MODULE, GENERATE):
            return not self._stack
        if self._single is None:
            return module in self._stack
        known = [name for name in self._stack if name in self._single.kinds]
        return bool(known) and known[-1] == module

    def is_gradient(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is the gradient of a parameter."""
        if tensor.requires_grad:  # It is part of a graph.
            return False
        return any(each.grad is tensor for part in self._parts for each in part.parameters())

    def find_dropout(
        self, *, is_draw: bool = False
    ) -> tuple[list[Dropped], Dropped | None, BatchRows | None]:
        """Return the list of a running dropout, the single program's one, and the rows.

        Random numbers that no module draws, as those of an optimizer, have no rows.
        """
        if self._paused:
            return [], None, None
        if is_draw and not self._stack:
            return self._step.dropped[_NO_MODULE], None, None
        name = self._stack[-1] if self._stack else ""
        known = self._single and self._single.steps[len(self.record.steps) - 1].dropped
        while known and name not in known and "." in name:  # A rank's wrapper around the module.
            name = name.rpartition(".")[0]
        is_again = _is_in_backward()
        here = self._step.dropped[name + AGAIN if is_again else name]
        every = known.get(name, []) if known else []
        single = every[len(here) % len(every)] if every else None
        return here, single, self._rows

    def _leave(self, name: str, out: Any) -> Any:  # noqa: ANN401 - any program's
        if self._paused:
            return None
        if name in self._stack:
            del self._stack[self._stack.index(name) :]
        found, form = tree_flatten(out)
        is_changed = self._noise is not None
        taken = self._taken.pop(name, {})
        for place, each in enumerate(found):
            if isinstance(each, torch.Tensor):
                if self._noise is not None:
                    found[place] = self._noise(each)
                elif self._is_of_others(each, taken):
                    found[place] = each.clone()  # Schedules of pipelines detach no views.
                    is_changed = True
                if found[place] is not each:
                    found[place].__dict__ = each.__dict__
                self._given[id(found[place])] = ref(found[place])
                self._see(Spot(name, OUTPUT, place), found[place])
        return tree_unflatten(found, form) if is_changed else None

    def _is_of_others(self, out: torch.Tensor, taken: _Seen) -> bool:
        """Return whether an output is a parameter, an input, or that of a module within.

        Its gradient has other parts, or is seen there before it is seen here.
        """
        if not out.requires_grad or not torch.is_grad_enabled():
            return False
        seen = (each.get(id(out)) for each in (taken, self._given))
        return out.is_leaf or any(found is not None and found() is out for found in seen)

    def _see(self, spot: Spot, tensor: torch.Tensor) -> None:
        step = self._step
        if not is_readable(tensor) or not (tensor.is_floating_point() or spot.side == INPUT):
            return
        is_again = _is_in_backward()
        kept = (step.again if is_again else step.values)[spot]
        call = len(kept)
        kept.append(self._copy(tensor))
        if not is_again:
            if step.decoding is not None:
                first = self._opened.get(spot.module, 0) if spot.side == OUTPUT else None
                now = len(step.order)
                step.within.append(0 if first is None else (1 << now) - (1 << first))
            step.order.append((spot, call))
            self._nodes.append(tensor.grad_fn)
        if tensor.requires_grad and torch.is_grad_enabled():

            def hook(gradient: torch.Tensor | None) -> torch.Tensor | None:
                if gradient is None:
                    return None
                step.gradients[spot][call] = self._copy(gradient)
                return None if self._noise is None else self._noise(gradient)

            tensor.register_hook(hook)

    # ---- decoding steps ----

    def _note_inputs(self, name: str, args: Any, kwargs: Mapping[str, Any]) -> None:  # noqa: ANN401
        """Note the names of what the outermost module takes, and what of it is written into."""
        module = self._modules.get(name)
        known = [] if module is None else [*signature(module.forward).parameters]
        named = {**dict(zip_longest(known[: len(args)], args)), **kwargs}
        place = 0
        for key, value in named.items():
            count = len(tree_leaves(value))
            for index in range(place, place + count):
                self._step.names[Spot(name, INPUT, index)] = key
            place += count
            if not isinstance(value, torch.Tensor):
                self._held[key] = value

    def _copy(self, tensor: torch.Tensor) -> Taped:
        return taped(tensor, self._file)

    def note_generated(self, value: object) -> None:
        """Record what a batch's generation returns: tensors, in any structure."""
        for place, each in enumerate(_tensors_of(value)):
            spot = Spot(GENERATED, OUTPUT, place)
            self._step.values[spot].append(self._copy(each))
            self._step.order.append((spot, 0))
            self._step.within.append(0)

    def _note_caches(self) -> None:
        """Record the tensors that the outermost module was given to keep, and modules' own."""
        kept = dict(_tensors_within(self._held))
        for part, renamed in zip_longest(self._parts, self._names):
            for name, module in part.named_modules():
                plain = plain_name(name, renamed)
                own = {n: e for n, e in vars(module).items() if n not in _OF_MODULES}
                found = {**own, **module._buffers}  # noqa: SLF001 - torch has no other
                kept.update(_tensors_within(found, f"{plain}." if plain else ""))
        self._step.caches = {name: self._copy(each) for name, each in kept.items()}

    def note_roots(self, tensors: Sequence[torch.Tensor]) -> None:
        """Note which tensors a backward begins with."""
        if self._is_in_step and self._single is None:
            self._roots += [each.grad_fn for each in tensors]

    def _note_dependencies(self) -> None:
        """Find out which recorded tensors depend on which, by the graphs of the backwards."""
        at: dict[Any, int] = defaultdict(int)
        for place, node in enumerate(self._nodes):
            if node is not None:
                at[node] |= 1 << place
        first = len(self._nodes)
        leaves = {id(e): n for n, e in enumerate(self._parameters().values())}
        found: dict[Any, int] = {}
        stack = [(root, False) for root in self._roots]
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
        self._step.upstream = [
            UNKNOWN if node is None else each & ((1 << first) - 1)
            for node, each in zip(self._nodes, every, strict=True)
        ]
        self._step.reads = [each >> first for each in every]
        for place, node in enumerate(self._nodes):
            if node is not None and node not in found and self._roots:
                self._step.unused |= 1 << place

    def _parameters(self) -> dict[str, torch.Tensor]:
        return parameters_of(self._parts, self._names)

    def _buffers(self) -> dict[str, torch.Tensor]:
        return buffers_of(self._parts, self._names)

    def note_gradients(self) -> None:
        """Record the gradients of the parameters, as the optimizer finds them."""
        for name, each in self._parameters().items():
            gradient = each.grad if each.grad is not None else getattr(each, "main_grad", None)
            self._step.parameter_gradients[name] = (
                None if gradient is None else self._copy(gradient)
            )

    def note_state(self) -> None:
        """Record the parameters and buffers after the step."""
        self._step.parameters = {
            name: self._copy(each) for name, each in self._parameters().items()
        }
        self._step.buffers = {name: self._copy(each) for name, each in self._buffers().items()}
        for optimizer in self._optimizers:
            self._note_states(optimizer)
        self._optimizers.clear()
        self.record.attributes = {
            name: {text}
            for name, text in self._texts_of_attributes()
            if text == _TENSORS or text != self._attributes.get(name)
        }

    def note_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Note an optimizer of this step, whose states are recorded after it."""
        if optimizer not in self._optimizers:
            self._optimizers.append(optimizer)

    def _note_states(self, optimizer: torch.optim.Optimizer) -> None:
        """Record an optimizer's states of the parameters' shapes and types; note other names."""
        parameters = {id(each): name for name, each in self._parameters().items()}
        names: dict[str, None] = {}
        for parameter, states in optimizer.state.items():
            for key, value in states.items() if isinstance(states, dict) else ():
                name = parameters.get(id(parameter))
                if name is not None and _is_alike(value, parameter):
                    self._step.states[str(key)][name] = self._copy(value)
                else:
                    names[str(key)] = None
        if names:
            self.record.optimizers[f"{type(optimizer).__name__}: {', '.join(names)}"] = None

    def _texts_of_attributes(self) -> Iterator[tuple[str, str]]:
        """Yield the attributes of the program's own modules, with what can be compared of them."""
        for part, renamed in zip_longest(self._parts, self._names):
            for name, module in part.named_modules():
                plain = plain_name(name, renamed)
                for key, value in vars(module).items() if plain in self.record.homes else ():
                    if key not in _OF_MODULES:
                        yield f"{plain}.{key}".lstrip("."), _text(value)


def _is_alike(value: object, parameter: torch.Tensor) -> bool:
    """Return whether a state has the shape and type of its parameter."""
    if not isinstance(value, torch.Tensor) or not is_readable(value):
        return False
    return (value.shape, value.dtype) == (parameter.shape, parameter.dtype)


# ---- values that are no tensors, as texts ----

_OF_MODULES = frozenset(vars(torch.nn.Module()))
_TENSORS = f"{OPAQUE}tensors>"
_NO_CACHES = ("builtins", "torch", "simrank", "greenlet")  # Whose objects hold no caches.
_PLAIN = (bool, int, float, complex, str, torch.dtype, torch.device)


def _text(value: object) -> str:
    """Return the text of a plain value; of others what they are."""
    if isinstance(value, _PLAIN):
        return repr(value)
    if not isinstance(value, dict | list | tuple | set):
        is_tensor = isinstance(value, torch.Tensor)
        return _TENSORS if is_tensor else f"{OPAQUE}{type(value).__name__}>"
    entries = value.values() if isinstance(value, dict) else value
    if any(isinstance(each, torch.Tensor) for each in entries):
        return _TENSORS
    return f"{OPAQUE}{type(value).__name__} of {len(value)}>"


# ---- tensors that objects hold, such as caches of keys and values ----

_MAX_DEPTH = 6  # Of containers and objects in each other; assumed.


def _tensors_within(
    values: Mapping[str, object], prefix: str = "", depth: int = _MAX_DEPTH
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield name and tensor of containers and plain objects; modules are left out."""
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, torch.Tensor):
            if is_readable(value) and not isinstance(value, torch.nn.Parameter):
                yield name, value
        elif depth and not isinstance(value, torch.nn.Module | type | ModuleType):
            yield from _tensors_within(_entries_of(value), f"{name}.", depth - 1)


def _entries_of(value: object) -> Mapping[str, object]:
    if isinstance(value, Mapping):
        return {str(key): each for key, each in value.items()}
    if isinstance(value, list | tuple):
        return {str(number): each for number, each in enumerate(value)}
    is_plain = type(value).__module__.partition(".")[0] in _NO_CACHES
    return {} if is_plain else getattr(value, "__dict__", {})


def _tensors_of(value: object) -> list[torch.Tensor]:
    """Return the tensors of what a program returns, in their order."""
    return [each for _, each in _tensors_within({"": value})]


# ---- the arguments of a module ----
# Lists, dicts and objects are handed on as they are: a module may write into them. Tensors in them
# get no node of their own.


def _direct_tensors(value: object) -> Iterator[torch.Tensor]:
    """Yield the tensors of arguments that no mutable container holds."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple):
        for each in value:
            yield from _direct_tensors(each)


def _with_own(value: Any, own: Mapping[int, list[torch.Tensor]]) -> Any:  # noqa: ANN401 - an argument
    """Return an argument with the views that a module gets of its tensors."""
    if isinstance(value, torch.Tensor):
        return own[id(value)].pop(0) if id(value) in own else value
    if not isinstance(value, tuple) or not any(id(each) in own for each in _direct_tensors(value)):
        return value
    entries = [_with_own(each, own) for each in value]
    return type(value)(*entries) if hasattr(value, "_fields") else type(value)(entries)
