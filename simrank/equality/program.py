"""Programs whose layouts are compared: their functions and settings, and steps of training."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.utils._pytree import tree_flatten, tree_map

from simrank.equality.dropouts import Dropouts
from simrank.equality.dtensors import is_dtensor, part_of
from simrank.equality.precision import cast
from simrank.equality.record import parameters_of, plain_name, taped
from simrank.errors import ConfigError, ConfigProblem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from torch.distributed.device_mesh import DeviceMesh
    from torch.nn import Module
    from torch.overrides import TorchFunctionMode

    from simrank.equality.alignment import BatchRows
    from simrank.equality.dropouts import Place
    from simrank.equality.record import Dropped, Spot, Taped
    from simrank.equality.tape import Tape

WHOLE = "program"  # The name of one that an adapter made.
NEEDED = ("build", "batch", "loss", "parallelize")
GENERATES = ("generate", "forward")  # In place of `loss`, of a program that is served.
TOLERANCE = "TOLERANCE"  # The relative error that a program allows itself, as of quantized weights.
LAYOUT = "LAYOUT"  # The layout of a program that is run without a list of layouts.
_LEARNING_RATE = 0.1  # Of the default update; large, so that a wrong gradient shows.


class TrainedProgram(Protocol):
    """A program that can train as a single one, and on each rank of a layout.

    Attributes:
        axes: Names of the axes that a layout may have, outermost first; none: any, as given.
        shared_axes: Those of axes that lie over the ranks of the others, such as `ep`.
    """

    @property
    def axes(self) -> Sequence[str]:
        """Names of the axes that a layout may have, outermost first; none: any, as given."""

    @property
    def shared_axes(self) -> Sequence[str]:
        """Names of axes that lie over the ranks of the others, such as `ep`."""

    def train(self, setting: ModelSetting, training: Training) -> object:
        """Build the model on the running rank, and do the steps.

        Args:
            setting: The rank's place, and the single program's values.
            training: Gets the model and each step.
        """


class _OnAnyMesh:
    """The axes of a program that is given as functions."""

    @property
    def axes(self) -> Sequence[str]:
        """Any."""
        return ()

    @property
    def shared_axes(self) -> Sequence[str]:
        """None: all axes are those of the mesh."""
        return ()


@dataclass(frozen=True)
class Functions(_OnAnyMesh):
    """The functions of a program.

    Attributes:
        build: `build()` returns the single model.
        batch: `batch(step)` returns the tensors of one step for all ranks, inputs first.
        loss: `loss(model, batch)` returns the loss of the single program.
        parallelize: `parallelize(model, mesh)` returns this rank's model, or a list of its parts.
        train_step: `train(model, batch, mesh)` does the forward, the backward and what finishes
            gradients; it returns the loss, or None where a rank has none.
        update: `update(model, mesh)` does the optimizer's step; the mesh is None in the single
            program.
    """

    build: Callable[[], Module]
    batch: Callable[[int], Sequence[torch.Tensor]]
    loss: Callable[[Any, Any], torch.Tensor]
    parallelize: Callable[[Module, DeviceMesh], Any]
    train_step: Callable[[Any, Any, DeviceMesh], torch.Tensor | None]
    update: Callable[[Any, DeviceMesh | None], object]

    def train(self, setting: ModelSetting, training: Training) -> None:
        """Build the model, let `parallelize` change it, and do the steps."""
        model: Any = setting.prepare(self.build())
        if setting.mesh is not None:
            model = self.parallelize(model, setting.mesh)
        training.watch(model if isinstance(model, list | tuple) else [model])
        for index in range(training.num_steps):
            training.begin()
            batch = setting.place(self.batch(index))
            if setting.mesh is None:
                loss: torch.Tensor | None = self.loss(model, batch)
                assert loss is not None
                if not loss.requires_grad:
                    raise NoGradientError
                loss.backward()
            else:
                loss = self.train_step(model, batch, setting.mesh)
            training.note_gradients()
            self.update(model, setting.mesh)
            training.end(loss)


class NoGradientError(RuntimeError):
    """The loss of a single program does not depend on a parameter: nothing can be trained."""

    def __init__(self) -> None:
        super().__init__("the loss has no gradient")


@dataclass(frozen=True)
class Generation(_OnAnyMesh):
    """The functions of a program that is served: there is no backward.

    Attributes:
        build: As of `Functions`.
        batch: Likewise.
        generate: `generate(model, batch)` calls the model for each decoding step, and returns
            tensors in any structure, such as tokens and logits.
        parallelize: As of `Functions`.
        part: `part(batch, mesh)` returns the rank's part of a batch.
        tolerance: The error that a tensor may have, as a part of its norm.
    """

    build: Callable[[], Module]
    batch: Callable[[int], Any]
    generate: Callable[[Any, Any], object]
    parallelize: Callable[[Module, DeviceMesh], Any]
    part: Callable[[Any, DeviceMesh], Any]
    tolerance: float = 0.0

    def train(self, setting: ModelSetting, training: Training) -> None:
        """Build the model, let `parallelize` change it, and generate from each batch."""
        model: Any = setting.prepare(self.build()).eval()
        if setting.mesh is not None:
            model = self.parallelize(model, setting.mesh)
        parts = model if isinstance(model, list | tuple) else [model]
        for part in parts:
            part.eval()
        training.watch(parts)
        for index in range(training.num_steps):
            with training.generation(), torch.no_grad():
                batch = setting.place(self.batch(index))
                if setting.mesh is not None:
                    batch = self.part(batch, setting.mesh)
                training.note_generated(self.generate(model, batch))


def program_of(names: Mapping[str, Any], path: str, *, has_gradient: bool = True) -> TrainedProgram:
    """Return the program that a file defines: its `program`, or that of its functions.

    Args:
        names: The names of the file.
        path: The file, for the error.
        has_gradient: Whether its loss, if it has one, is trained.

    Raises:
        ConfigError: A function is missing.
    """
    whole: Any = names.get(WHOLE)
    if callable(getattr(whole, "train", None)) and hasattr(whole, "axes"):
        found: TrainedProgram = whole
        return found
    served = next((name for name in GENERATES if callable(names.get(name))), None)
    if not has_gradient:
        served = "loss"
    elif callable(names.get("loss")):
        served = None
    needed = [served if name == "loss" and served else name for name in NEEDED]
    for name in needed:
        if not callable(names.get(name)):
            needs = f"needed are {', '.join(NEEDED)}, or a {WHOLE}"
            expected = f"a function {name}; {needs}; generate in place of loss for inference"
            raise ConfigError(ConfigProblem(path, None, name, expected, "none"))
    tolerance = names.get(TOLERANCE, 0.0)
    is_part = isinstance(tolerance, (int, float)) and 0 <= tolerance < 1
    if not is_part or (tolerance and not served):
        expected = "a relative error below 1, such as 0.02, in a program with generate"
        raise ConfigError(ConfigProblem(path, None, TOLERANCE, expected, repr(tolerance)))
    if served:
        build, batch, parallelize = (names[name] for name in ("build", "batch", "parallelize"))
        part = names["part"] if callable(names.get("part")) else _part
        return Generation(build, batch, names[served], parallelize, part, tolerance)
    loss = names["loss"]
    # A module of that name is none of its functions.
    others = {
        name: names[name] for name in ("part", "train", "update") if callable(names.get(name))
    }
    part = others.get("part", _part)

    def train(model: Any, batch: Any, mesh: DeviceMesh) -> torch.Tensor:  # noqa: ANN401
        value: torch.Tensor = loss(model, part(batch, mesh))
        value.backward()
        return value

    functions = {name: names[name] for name in NEEDED}
    return Functions(
        **functions,
        train_step=others.get("train", train),
        update=others.get("update", _update),
    )


def _part(batch: Any, mesh: DeviceMesh) -> Any:  # noqa: ANN401 - of the program's own types
    """Return this rank's rows: chunks of dimension 0 over the axis `dp`, if there is one."""
    if "dp" not in (mesh.mesh_dim_names or ()):
        return batch
    axis = mesh["dp"]
    return tree_map(lambda each: _chunk(each, axis), batch)


def _chunk(each: Any, axis: DeviceMesh) -> Any:  # noqa: ANN401 - as above
    if not isinstance(each, torch.Tensor) or not each.dim():
        return each
    return each.chunk(axis.size())[axis.get_local_rank()]


def _update(model: Any, _mesh: DeviceMesh | None) -> None:  # noqa: ANN401 - a model or its parts
    """Do a step of plain gradient descent."""
    with torch.no_grad():
        for part in model if isinstance(model, list | tuple) else [model]:
            for parameter in part.parameters():
                if parameter.grad is not None:
                    parameter.sub_(_LEARNING_RATE * parameter.grad)


# ---- Settings ----

_JITTER = 0.02  # Of the parameters, in their own unit: no two elements are alike.
_JITTER_SEED = 3
_JITTER_SERIES, _JITTER_STRIDE = 1 << 16, 7919  # Numbers that are drawn, and a prime.


@dataclass(frozen=True)
class ModelSetting:
    """The precision, place and values with which a program builds its model on a rank.

    Attributes:
        dtype: What parameters and floating inputs are computed in; None: in their own types.
        device: Where models and batches lie: cuda, the rank's own, or cpu.
        sizes: Those of the layout's axes; none: the single program.
        mesh: The axes that are no shared ones; None: the single program.
        initial: The single program's parameters before its first step; None: this is it, and draws
            them.
        exported: Its values under other names, if it exports some.
    """

    dtype: torch.dtype | None
    device: str = "cuda"
    sizes: Mapping[str, int] = field(default_factory=dict)
    mesh: DeviceMesh | None = None
    initial: Mapping[str, Taped] | None = None
    exported: Mapping[str, torch.Tensor] | None = None

    def move(self, model: Module) -> Module:
        """Return a model on the rank's device, in the type that is computed in."""
        return model.to(self.device)._apply(lambda each: cast(each, self.dtype))  # noqa: SLF001

    def prepare(self, model: Module) -> Module:
        """Return the single model on the rank's device, no two elements of it alike.

        Ones and zeros could not be aligned, and would hide faults. In its own types the model gets
        the values that it had in float64.
        """
        if self.dtype is None and self.initial is not None:
            self.fill([model])
            return self.move(model)
        model._apply(lambda each: cast(each, self.dtype))  # noqa: SLF001 - also of its buffers
        jitter = _Jitter()
        with torch.no_grad(), _copies_kept([model]):
            for parameter in model.parameters():
                if parameter.is_floating_point() or parameter.is_complex():
                    jitter.add_to(parameter)
        return self.move(model)

    def with_values(self, model: Module) -> Module:
        """Return a model on the rank's device: the single one prepared, a rank's one filled."""
        if self.mesh is None:
            return self.prepare(model)
        self.move(model)
        self.fill([model])
        return model

    def rows_per_rank(self, num_rows: int, *axes: str) -> int:
        """Return the number of rows that a rank has of a batch which some axes split.

        Raises:
            ValueError: They do not divide it.
        """
        count = prod(self.sizes.get(axis, 1) for axis in axes)
        if num_rows % count:
            raise ValueError(f"a batch of {num_rows} rows for {count} data-parallel ranks")
        return num_rows // count

    def place(self, batch: Any) -> Any:  # noqa: ANN401 - of the program's own types
        """Return the tensors of a step on the rank's device, in their own structure."""

        def placed(tensor: Any) -> Any:  # noqa: ANN401 - of the program's own types
            is_tensor = isinstance(tensor, torch.Tensor)
            return cast(tensor.to(self.device), self.dtype) if is_tensor else tensor

        return tree_map(placed, tuple(batch) if isinstance(batch, list) else batch)

    def rows_per_piece(self, num_rows: int, count: int, axes: Sequence[str]) -> int:
        """Return the rows of each of `count` parts in which a rank takes its rows.

        Raises:
            ValueError: Rows cannot be shared.
        """
        size, rest = divmod(self.rows_per_rank(num_rows, *axes), count)
        if rest:
            raise ValueError(f"{count} micro-batches of {size * count + rest} rows")
        return size

    def pieces(self, batch: Any, count: int, axes: Sequence[str]) -> list[Any]:  # noqa: ANN401
        """Return the parts in which the rank takes its rows of a batch, on its device.

        Args:
            batch: Of all ranks together, rows first, in the program's own structure.
            count: Parts.
            axes: Whose ranks share the rows.

        Raises:
            ValueError: Rows cannot be shared.
        """
        rank = 0
        for axis in axes:
            if self.mesh is not None and axis in (self.mesh.mesh_dim_names or ()):
                rank = rank * self.mesh[axis].size() + self.mesh[axis].get_local_rank()

        def piece(number: int, tensor: Any) -> Any:  # noqa: ANN401 - of the program's own types
            if not isinstance(tensor, torch.Tensor) or not tensor.dim():
                return tensor
            size = self.rows_per_piece(len(tensor), count, axes)
            first = (rank * count + number) * size
            return tensor[first : first + size]

        return [tree_map(partial(piece, number), self.place(batch)) for number in range(count)]

    def fill(self, parts: Sequence[Module], *, only_sharded: bool = False) -> None:
        """Give the parameters of a rank the single program's values, by name and placement.

        Args:
            parts: The rank's model, or its parts.
            only_sharded: Whether only to DTensors.

        Raises:
            KeyError: The single program has no parameter of that name.
        """
        assert self.initial is not None
        with torch.no_grad(), _copies_kept(parts):
            for part in parts:
                for name, parameter in part.named_parameters():
                    if not only_sharded or is_dtensor(parameter):
                        _fill(parameter, self.initial[plain_name(name)].value)


@contextmanager
def _copies_kept(parts: Iterable[Module]) -> Iterator[None]:
    """Copy parameters that change in the block to the buffers that were copies of them.

    Such as averages of weights. Where all elements are equal, as in a norm, its name decides.
    """
    copies = []
    for part in parts:
        parameters = [(_words_of(name), each) for name, each in part.named_parameters()]
        for name, buffer in part.named_buffers():
            for own, each in parameters if buffer.is_floating_point() else ():
                is_named = _words_of(name).endswith(own)
                if _is_copy(buffer, each, is_named=is_named):
                    copies.append((buffer, each))
                    break
    yield
    for buffer, parameter in copies:
        buffer.copy_(parameter)


def _words_of(name: str) -> str:
    return plain_name(name).replace(".", "_")


def _is_copy(buffer: torch.Tensor, parameter: torch.Tensor, *, is_named: bool) -> bool:
    """Return whether a buffer has the values of a parameter, and not by chance."""
    if is_dtensor(parameter) or buffer.shape != parameter.shape:
        return False
    is_plain = buffer.dtype == parameter.dtype and buffer.device == parameter.device
    if not is_plain or not buffer.numel() or not torch.equal(buffer, parameter):
        return False
    return is_named or bool((buffer != buffer.flatten()[0]).any())


class _Jitter:
    """Small numbers that all differ: sums of one number of each of two series."""

    def __init__(self) -> None:
        drawn = torch.Generator().manual_seed(_JITTER_SEED)
        shape = 2, _JITTER_SERIES
        self._rows, self._columns = _JITTER * torch.randn(shape, generator=drawn).double()
        self._num_used = 0  # Of the rows.

    def add_to(self, parameter: torch.Tensor) -> None:
        """Add to each element, in place, a share of it, so that it keeps its sign."""
        columns = self._columns.roll(_JITTER_STRIDE * self._num_used)
        columns = columns.to(parameter.device, parameter.dtype)
        elements = parameter.view(-1) if parameter.is_contiguous() else parameter.flatten()
        for piece in elements.split(_JITTER_SERIES):  # As much as caches hold.
            row = self._rows[self._num_used % _JITTER_SERIES].item()
            self._num_used += 1
            share = torch.where(piece == 0, 1, piece)
            piece.addcmul_(columns[: len(piece)] + row, share)
        if not parameter.is_contiguous():
            parameter.copy_(elements.view(parameter.shape))


def _fill(parameter: torch.Tensor, value: torch.Tensor) -> None:
    if is_dtensor(parameter):
        value = part_of(value, parameter)
        parameter = parameter.to_local()
    parameter.copy_(value)


# ---- The training steps of a program on a rank ----

_SEED = 1 << 40  # Of a program that sets none; one that a program would not set, as its rank.
_NO_MODEL = "the program trained nothing: it has to call watch with its model"
_NOT_NOTED = "the program has to call note_gradients before it clips and uses them"
_TOO_FEW = "the program ended after {} of {} steps"


class Training:
    """The steps of a program on a rank.

    A program calls `watch` once its model has its values, and at each of `num_steps` steps
    `begin`, `note_gradients` and `end`: in a loop, or where a trainer calls it back.

    Args:
        num_steps: As below.
        make_tape: Returns the tape of a model's parts.
        place: Where the rank stands, and its model lies; None in the single program.
        has_dropout: Whether dropouts drop anything.
        records: Whether dropouts are recorded.

    Attributes:
        num_steps: Steps to do.
    """

    def __init__(
        self,
        num_steps: int,
        make_tape: Callable[[Sequence[Module]], Tape],
        place: Place | None = None,
        *,
        has_dropout: bool = True,
        records: bool = True,
    ) -> None:
        self.num_steps = num_steps
        self._make_tape = make_tape
        self._parts: Sequence[Module] = ()
        self._tape: Tape | None = None
        self._step = ExitStack()
        self._num_ended, self._seed = 0, 0
        self._off: set[str] = set()
        self._dropouts = Dropouts(
            self._find_dropout,
            lambda given: self._tape is not None and self._tape.counts_draws(has_generator=given),
            self._off,
            place,
            is_off=not has_dropout,
            records=records,
        )

    @property
    def tape(self) -> Tape:
        """The tape of the model.

        Raises:
            RuntimeError: The program has none yet.
        """
        if self._tape is None:
            raise RuntimeError(_NO_MODEL)
        return self._tape

    def watch(
        self, parts: Sequence[Module], exported: Mapping[str, torch.Tensor] | None = None
    ) -> None:
        """Record the modules of a model from now on.

        Args:
            parts: The model, or its parts.
            exported: Of the single program: its values under names that ranks look them up by.
        """
        self._parts = list(parts)
        self._tape = self._make_tape(self._parts)
        self._tape.record.exported = exported or {}

    def begin(self) -> None:
        """Begin a step: before its forward."""
        self._set_seed_of_step()
        self._step.enter_context(self.tape.step())

    def _set_seed_of_step(self) -> None:
        if torch.initial_seed() == self._seed:  # Otherwise the program has set its own.
            self._set_seed(_SEED + 1 + self._num_ended)

    @contextmanager
    def generation(self) -> Iterator[None]:
        """Record the decoding steps of a batch, in place of a training step."""
        self._dropouts.is_plain = True  # Random numbers choose tokens, on ranks their own.
        self._set_seed_of_step()
        with self.tape.batch(self._num_ended):
            yield
        torch.cuda.synchronize()
        self._num_ended += 1

    def note_generated(self, value: object) -> None:
        """Record what a generation returns: tensors in any structure, such as tokens and logits."""
        self.tape.note_generated(value)

    def note_gradients(self) -> None:
        """Record the gradients: when they are final, before they are clipped."""
        self.tape.note_gradients()

    def end(self, loss: object = None) -> None:
        """End a step: after its update.

        Args:
            loss: Of the rank's part of the batch; None where a rank has none.

        Raises:
            RuntimeError: The gradients were not noted.
        """
        step = self.tape.record.steps[-1]
        if not step.parameter_gradients:
            raise RuntimeError(_NOT_NOTED)
        step.loss = None if loss is None else taped(torch.as_tensor(loss)).value
        self.tape.note_state()
        self._step.close()
        for part in self._parts:
            part.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        step.to_host()
        self._num_ended += 1

    @contextmanager
    def recorded(self, modes: list[TorchFunctionMode]) -> Iterator[None]:
        """Record the steps that a block does, and all dropouts there and in its backwards.

        Args:
            modes: Those of the rank's backwards.

        Raises:
            RuntimeError: It did fewer.
        """
        self._set_seed(_SEED)
        dropouts = self._dropouts
        before = list(modes)
        modes.append(dropouts)
        try:
            with dropouts:
                yield
        finally:
            modes[:] = before
        if self._num_ended < self.num_steps:
            raise RuntimeError(_TOO_FEW.format(self._num_ended, self.num_steps))
        self.tape.record.switched_off |= self._off

    def _set_seed(self, seed: int) -> None:
        self._seed = seed
        torch.manual_seed(seed)

    def _find_dropout(
        self, is_draw: bool
    ) -> tuple[list[Dropped], Dropped | None, BatchRows | None]:
        return self.tape.find_dropout(is_draw=is_draw)


class _Seen(Exception):  # noqa: N818 - it ends a step, and is no error
    """The gradients of a step are known: the rest of it is not needed."""


class PartOfBatch(Training):
    """Steps of the single program, the last of which has the gradients of a part of its batch.

    Args:
        num_steps: As above; the last of them ends with its gradients.
        make_tape: As above.
        output: A tensor that passes.
        flows: By call of it, the elements through which its gradient flows in the last step.
        has_dropout: As above.

    Attributes:
        gradients: Of the last step, by parameter.
    """

    def __init__(
        self,
        num_steps: int,
        make_tape: Callable[[Sequence[Module]], Tape],
        output: Spot,
        flows: Mapping[int, Sequence[int]],
        *,
        has_dropout: bool = True,
    ) -> None:
        super().__init__(num_steps, make_tape, has_dropout=has_dropout)
        self.gradients: dict[str, torch.Tensor] = {}
        self._output, self._flows = output, flows
        self._num_calls = 0

    def watch(
        self, parts: Sequence[Module], exported: Mapping[str, torch.Tensor] | None = None
    ) -> None:
        """Record the modules of a model from now on."""
        super().watch(parts, exported)
        named = ((name, m) for part in parts for name, m in part.named_modules())
        module = next(each for name, each in named if plain_name(name) == self._output.module)
        module.register_forward_hook(self._see)

    def begin(self) -> None:
        """Begin a step."""
        super().begin()
        self._num_calls = 0

    def note_gradients(self) -> None:
        """Record the gradients, and end the last step."""
        super().note_gradients()
        if self._is_last:
            self.gradients = {
                name: each.grad.detach().cpu().clone()
                for name, each in parameters_of(self._parts).items()
                if each.grad is not None
            }
            raise _Seen

    @contextmanager
    def recorded(self, modes: list[TorchFunctionMode]) -> Iterator[None]:
        """Run the steps of a block up to the last one's gradients."""
        try:
            with super().recorded(modes):
                yield
        except _Seen:
            pass

    @property
    def _is_last(self) -> bool:
        return self._num_ended == self.num_steps - 1

    def _see(self, _module: Module, _args: object, out: object) -> None:
        elements = self._flows.get(self._num_calls)
        self._num_calls += 1
        if elements is not None and self._is_last:
            tree_flatten(out)[0][self._output.index].register_hook(partial(_cut, elements))


def _cut(elements: Sequence[int], gradient: torch.Tensor) -> torch.Tensor:
    """Return a gradient that is zero but for some elements."""
    mask = torch.zeros(gradient.numel(), dtype=gradient.dtype)
    mask[list(elements)] = 1
    return gradient * mask.view(gradient.shape).to(gradient.device)
