"""torchtitan's trainer: its model, loss, optimizer and steps, of 0.2 and 0.3."""

from __future__ import annotations

import copy
import gc
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch.nn import Module

    from simrank.equality.program import ModelSetting, Training

_DEGREES = {
    "pp": "pipeline_parallel_degree",
    "dp_replicate": "data_parallel_replicate_degree",
    "dp_shard": "data_parallel_shard_degree",
    "cp": "context_parallel_degree",
    "tp": "tensor_parallel_degree",
    "ep": "expert_parallel_degree",
    "etp": "expert_tensor_parallel_degree",
}
_SHARED = ("ep", "etp")
_MARK = "notes_gradients_for_simrank"
_note: ContextVar[Callable[[], None] | None] = ContextVar("note", default=None)

Batch = tuple[dict[str, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class TorchTitan:
    """A configuration of torchtitan's trainer, as `program` of a file for `simrank equal`.

    The single program is the model without `parallelize_fn`. A layout's axes are torchtitan's:
    `pp`, `dp_replicate`, `dp_shard`, `cp`, `tp`; `ep` and `etp` lie over the ranks of the others.
    Parameters, mixed precision and reductions are in the type that is compared in.

    Attributes:
        config: A `Trainer.Config` (0.3), or a `JobConfig` (0.2).
        batch_size: Rows of a step's batch on all ranks together.
        seq_len: Tokens of a row.
        batch: `batch(step)` returns a dict with `input`, of shape [batch_size, seq_len], and
            the labels; None: random tokens.
    """

    axes: ClassVar[Sequence[str]] = tuple(name for name in _DEGREES if name not in _SHARED)
    shared_axes: ClassVar[Sequence[str]] = _SHARED

    config: Any
    batch_size: int = 8
    seq_len: int = 64
    batch: Callable[[int], Batch] | None = None

    def train(self, setting: ModelSetting, training: Training) -> None:
        """Build the trainer on the running rank, and do the steps."""
        if not dist.is_initialized():
            dist.init_process_group("nccl")
        config = self._configured(setting)
        is_single = setting.mesh is None
        with _gc_kept():
            make = _trainer if hasattr(config, "model_spec") else _older_trainer
            trainer = make(config, is_single=is_single)
        _note_before_clipping(import_module(type(trainer).__module__).dist_utils)
        losses = _losses_of(trainer)
        if is_single:
            for part in trainer.model_parts:
                setting.prepare(part)
        else:
            setting.fill(trainer.model_parts)
        training.watch(trainer.model_parts)
        token = _note.set(training.note_gradients)
        try:
            for index in range(training.num_steps):
                training.begin()
                losses.clear()
                trainer.step = index + 1
                rows = trainer.dataloader.of(self._batch_of(trainer, index))
                trainer.train_step(trainer.batch_generator(rows))
                is_last = getattr(trainer, "pp_has_last_stage", True)
                training.end(torch.stack(losses).sum() if is_last else None)
        finally:
            _note.reset(token)

    def _configured(self, setting: ModelSetting) -> Any:  # noqa: ANN401 - torchtitan's
        config = copy.deepcopy(self.config)
        for axis, key in _DEGREES.items():
            if hasattr(config.parallelism, key):
                setattr(config.parallelism, key, setting.sizes.get(axis, 1))
        training = config.training
        num_rows = setting.rows_per_rank(self.batch_size, "dp_replicate", "dp_shard")
        training.local_batch_size = num_rows
        training.global_batch_size = -1
        training.seq_len = self.seq_len
        if setting.dtype is None:
            if setting.mesh is None:  # Only FSDP computes in the type of mixed precision.
                training.dtype = training.mixed_precision_param
        else:
            name = str(setting.dtype).removeprefix("torch.")
            import_module("torchtitan.config").TORCH_DTYPE_MAP.setdefault(name, setting.dtype)
            training.dtype = training.mixed_precision_param = name
            training.mixed_precision_reduce = name
        config.checkpoint.enable = False
        for key in ("validator", "validation"):
            if hasattr(config, key):
                getattr(config, key).enable = False
        if hasattr(training, "disable_cuda_graphs"):
            training.disable_cuda_graphs = True
        return config

    def _batch_of(self, trainer: Any, step: int) -> Batch:  # noqa: ANN401 - torchtitan's
        if self.batch is None:
            return self._random_batch(trainer, step)
        inputs, labels = self.batch(step)
        if tuple(labels.shape[:2]) != (self.batch_size, self.seq_len):
            expected = f"[{self.batch_size}, {self.seq_len}], as batch_size and seq_len say"
            raise ValueError(f"labels of shape {list(labels.shape)}, and not {expected}")
        return inputs, labels

    def _random_batch(self, trainer: Any, step: int) -> Batch:  # noqa: ANN401 - torchtitan's
        model = trainer.model_config if hasattr(trainer, "model_config") else trainer.model_args
        drawn = torch.Generator().manual_seed(step)
        shape = self.batch_size, self.seq_len + 1
        tokens = torch.randint(0, model.vocab_size, shape, generator=drawn)
        inputs = {"input": tokens[:, :-1].contiguous()}
        if hasattr(trainer, "model_config"):
            inputs["positions"] = torch.arange(self.seq_len).repeat(self.batch_size, 1)
        return inputs, tokens[:, 1:].contiguous()


class _Rows:
    """The rows of the rank, in place of a data loader or its configuration."""

    def __init__(self) -> None:
        self.rank, self.num_ranks, self.count = 0, 1, 1

    def build(
        self,
        *,
        dp_rank: int,
        dp_world_size: int,
        local_batch_size: int,
        **_: object,
    ) -> _Rows:
        """Take note of the rank's place."""
        self.rank, self.num_ranks, self.count = dp_rank, dp_world_size, local_batch_size
        return self

    def of(self, batch: Batch) -> Iterator[Batch]:
        """Yield the rank's part of a batch, in pieces of as many rows as it asks for."""
        inputs, labels = batch
        total = len(labels) // self.num_ranks
        first = self.rank * total
        for at in range(first, first + total, self.count):
            rows = slice(at, at + self.count)
            yield {name: each[rows] for name, each in inputs.items()}, labels[rows]

    def __iter__(self) -> Iterator[Batch]:
        """Nothing: each step has its own batch."""
        return iter(())

    def state_dict(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing."""


class _Tokenizer:
    """A tokenizer without files, in place of the configured one."""

    eos_id = -1

    def build(self, **_: object) -> _Tokenizer:
        """Return itself."""
        return self


def _trainer(config: Any, *, is_single: bool) -> Any:  # noqa: ANN401 - torchtitan's
    """Return the trainer of a `Trainer.Config`."""
    config.dataloader, config.tokenizer = _Rows(), _Tokenizer()
    if is_single:
        config.model_spec = replace(config.model_spec, parallelize_fn=_unchanged)
        config.parallelism.spmd_backend = "partial_dtensor"  # Of plain tensors.
    return config.build()


def _older_trainer(config: Any, *, is_single: bool) -> Any:  # noqa: ANN401 - torchtitan's
    """Return the trainer of a `JobConfig`, whose model is registered by name."""

    def rows(dp_rank: int, dp_world_size: int, **_: object) -> _Rows:
        count = config.training.local_batch_size
        return _Rows().build(dp_rank=dp_rank, dp_world_size=dp_world_size, local_batch_size=count)

    specs = import_module("torchtitan.protocols.train_spec")
    spec = specs.get_train_spec(config.model.name)
    changed = {"build_dataloader_fn": rows, "build_tokenizer_fn": lambda _: _Tokenizer()}
    if is_single:
        changed["parallelize_fn"] = _unchanged
    named = specs._extra_train_specs  # noqa: SLF001 - registering a name twice is an error
    before = dict(named)
    named[config.model.name] = replace(spec, **changed)
    try:
        return import_module("torchtitan.train").Trainer(config)
    finally:
        named.clear()
        named.update(before)


def _unchanged(model: Module, *_: object, **__: object) -> Module:
    return model


@contextmanager
def _gc_kept() -> Iterator[None]:
    """Leave the garbage collector as it was: a trainer switches it off."""
    was_enabled = gc.isenabled()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _note_before_clipping(utils: Any) -> None:  # noqa: ANN401 - torchtitan.distributed.utils
    """Call a running step's note of the gradients before they are clipped."""
    original = utils.clip_grad_norm_
    if hasattr(original, _MARK):  # Ranks may share the module.
        return

    @wraps(original)
    def clip(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - torchtitan's
        note = _note.get()
        if note is not None:
            note()
        return original(*args, **kwargs)

    setattr(clip, _MARK, True)
    utils.clip_grad_norm_ = clip


def _losses_of(trainer: Any) -> list[torch.Tensor]:  # noqa: ANN401 - torchtitan's
    """Return a list that gets the losses of a trainer's micro-batches."""
    losses: list[torch.Tensor] = []
    step = trainer.forward_backward_step

    @wraps(step)
    def kept(**kwargs: Any) -> torch.Tensor:  # noqa: ANN401 - torchtitan's
        loss: torch.Tensor = step(**kwargs)
        losses.append(loss.detach().clone())
        return loss

    trainer.forward_backward_step = kept
    return losses
