"""Runs of a program: the single one, the same with rounding errors, and its layouts."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from simrank.context import Context
from simrank.equal.precision import computing_in
from simrank.equal.program import EqualProgram, program_of
from simrank.equal.tape import Record, Tape, on_host, parameters_of
from simrank.multiprocessing.script import run_calls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch.distributed.device_mesh import DeviceMesh
    from torch.nn import Module

    from simrank.equal.layout import Layout
    from simrank.multiprocessing.script import Script

_JITTER = 0.02  # Of the parameters, in their own unit: no two elements are alike.
_JITTER_SEED, _NOISE_SEED, _TRAIN_SEED = 3, 7, 1


@dataclass(frozen=True)
class Options:
    """What is run.

    Attributes:
        path: The program's file.
        num_steps: Training steps.
        dtype_name: What parameters and floating inputs are computed in.
        cluster: The cluster, by name, or None: of nodes as large as needed.
    """

    path: str
    num_steps: int = 3
    dtype_name: str = "float64"
    cluster: str | None = None

    @property
    def dtype(self) -> torch.dtype:
        """Return torch's type."""
        found: torch.dtype = getattr(torch, self.dtype_name)
        return found


@dataclass
class Reference:
    """The single program.

    Attributes:
        record: What it did.
        noisy: The same with one rounding error at each module's output and gradient, drawn anew.
    """

    record: Record
    noisy: list[Record] = field(default_factory=list)


def run_single(options: Options, *, num_noisy: int = 2) -> Reference:
    """Run the single program, and again with rounding errors."""
    records: list[Record] = []

    def call(_: int, script: Script) -> None:
        torch.cuda.set_device(0)
        with computing_in(options.dtype):
            program = _program(script)
            for number in range(1 + num_noisy):
                records.append(_single(program, options, number))

    context = _context(options, 1)
    with context:
        run_calls(context.program, options.path, call, 1)
    return Reference(records[0], records[1:])


def run_layout(options: Options, layout: Layout, reference: Record) -> list[Record]:
    """Run the program on a layout; the records are those of the ranks."""
    records: dict[int, Record] = {}
    tapes: dict[int, Tape] = {}

    def call(rank: int, script: Script) -> None:
        torch.cuda.set_device(rank % torch.cuda.device_count())
        dist.init_process_group("nccl")
        sizes, names = tuple(layout.axes.values()), tuple(layout.axes)
        with computing_in(options.dtype):
            program = _program(script)
            mesh = init_device_mesh("cuda", sizes, mesh_dim_names=names)
            records[rank] = _rank(program, options, mesh, reference, tapes)
        dist.destroy_process_group()

    context = _context(options, layout.num_ranks)
    with context, _trials_paused(tapes):
        run_calls(context.program, options.path, call, layout.num_ranks)
    return [records[rank] for rank in range(layout.num_ranks)]


def _context(options: Options, num_ranks: int) -> Context:
    if options.cluster is None:
        return Context.for_ranks(num_ranks)
    return Context(options.cluster)


def _program(script: Script) -> EqualProgram:
    """Run the program's file on a rank, and return its functions."""
    names: dict[str, Any] = {"__name__": "program", "__file__": script.path}
    exec(script.code, names)  # noqa: S102 - the user's own file
    return program_of(names, script.path)


def _built(program: EqualProgram, options: Options) -> Module:
    """Return the single model, with parameters of which no two elements are alike.

    Ones and zeros could not be aligned, and would hide faults.
    """
    torch.manual_seed(0)
    model = program.build().cuda().to(options.dtype)
    drawn = torch.Generator().manual_seed(_JITTER_SEED)
    with torch.no_grad():
        for parameter in model.parameters():
            jitter = torch.randn(parameter.shape, generator=drawn, dtype=torch.float64)
            parameter.add_((_JITTER * jitter).to(parameter.device, parameter.dtype))
    return model


def _batch(program: EqualProgram, options: Options, step: int) -> tuple[torch.Tensor, ...]:
    def placed(tensor: Any) -> Any:  # noqa: ANN401 - of the program's own types
        if not isinstance(tensor, torch.Tensor):
            return tensor
        return tensor.cuda().to(options.dtype) if tensor.is_floating_point() else tensor.cuda()

    return tuple(map(placed, program.batch(step)))


def _noise(options: Options, number: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return what multiplies each element of a tensor by 1 and a rounding error."""
    drawn = torch.Generator().manual_seed(_NOISE_SEED + number)
    epsilon = torch.finfo(options.dtype).eps / 2

    def noisy(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point():
            return tensor
        errors = torch.randn(tensor.shape, generator=drawn, dtype=torch.float64)
        return tensor * (1 + epsilon * errors).to(tensor.device, tensor.dtype)

    return noisy


def _single(program: EqualProgram, options: Options, number: int) -> Record:
    """Run the single program; with a number above 0 with rounding errors."""
    model = _built(program, options)
    noise = _noise(options, number) if number else None
    if noise is not None:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(noise(parameter))
    tape = Tape([model], noise=noise)
    for index in range(options.num_steps):
        batch = _batch(program, options, index)
        torch.manual_seed(_TRAIN_SEED + index)
        with tape.step() as step:
            loss = program.loss(model, batch)
            tape.note_dependencies(loss)
            loss.backward()
            step.loss = loss.detach().clone()
            tape.note_gradients([model])
            program.update(model, None)
            tape.note_state([model])
        _forget_gradients([model])
        torch.cuda.synchronize()
        step.to_host()
        tape.record.batch.append([each.cpu() for each in batch if isinstance(each, torch.Tensor)])
    _initial_to_host(tape.record)
    return tape.record


def _rank(  # noqa: PLR0913 - what all ranks share
    program: EqualProgram,
    options: Options,
    mesh: DeviceMesh,
    reference: Record,
    tapes: dict[int, Tape],
) -> Record:
    """Run the program on one rank of a layout."""
    model = program.parallelize(_built(program, options), mesh)
    parts = list(model) if isinstance(model, list | tuple) else [model]
    tape = tapes[dist.get_rank()] = Tape(parts, reference.kinds)
    for index in range(options.num_steps):
        batch = _batch(program, options, index)
        torch.manual_seed(_TRAIN_SEED + index)
        with tape.step() as step:
            loss = program.train(model, batch, mesh)
            step.loss = None if loss is None else torch.as_tensor(loss).detach().clone()
            tape.note_gradients(parts)
            program.update(model, mesh)
            tape.note_state(parts)
        _forget_gradients(parts)
        torch.cuda.synchronize()
        step.to_host()
    _initial_to_host(tape.record)
    return tape.record


def _forget_gradients(parts: Sequence[Module]) -> None:
    for parameter in parameters_of(parts).values():
        parameter.grad = None


def _initial_to_host(record: Record) -> None:
    record.initial = {name: on_host(each) for name, each in record.initial.items()}
    record.initial_buffers = {n: on_host(each) for n, each in record.initial_buffers.items()}


@contextmanager
def _trials_paused(tapes: Mapping[int, Tape]) -> Iterator[None]:
    """Record nothing while stages of a pipeline find out shapes by trial."""
    stage: Any = import_module("torch.distributed.pipelining.stage").PipelineStage
    with ExitStack() as stack:
        for name in ("_prepare_forward_infra", "_prepare_backward_infra"):
            stack.enter_context(_wrapped(stage, name, tapes))
        yield


@contextmanager
def _wrapped(kind: Any, name: str, tapes: Mapping[int, Tape]) -> Iterator[None]:  # noqa: ANN401
    original = getattr(kind, name)

    @wraps(original)
    def run(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - torch's own
        tape = tapes.get(dist.get_rank())
        with nullcontext() if tape is None else tape.paused():
            return original(*args, **kwargs)

    setattr(kind, name, run)
    try:
        yield
    finally:
        setattr(kind, name, original)
