"""Megatron-core's models, schedules, data parallelism and optimizers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch.nn import Module

    from simrank.equality.program import ModelSetting, Training

_SIZES = {
    "pp": "pipeline_model_parallel_size",
    "vpp": "virtual_pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "tp": "tensor_model_parallel_size",
    "ep": "expert_model_parallel_size",
    "etp": "expert_tensor_parallel_size",
}
_NONE_AT_FIRST = ("vpp", "etp")  # Their sizes are None where the layout has no such axis.

Batch = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Megatron:
    """A model of megatron-core, as `program` of a file for `simrank equal`.

    Every step runs Megatron's schedule (`get_forward_backward_func`), its
    `DistributedDataParallel`, `finalize_model_grads` and `get_megatron_optimizer`. A layout's axes
    are `pp`, `dp`, `cp`, `tp`; `ep` and `etp` lie over the ranks of the others, and `vpp` is the
    number of model chunks of a rank. Values of parameters go to ranks by `sharded_state_dict`.

    Attributes:
        config: The `TransformerConfig` of one device; sizes and types are the layout's.
        model: `model(config, pre_process, post_process, vp_stage)` returns a model chunk.
        batch: `batch(step)` returns tensors of all ranks together by name, rows first: `tokens`,
            `labels`, and others that `forward_step` takes.
        forward_step: `forward_step(batches, model)` as Megatron's schedules call it; the batches
            are dicts on the device. None: of a GPT, whose loss is the mean over tokens, with the
            columns of `get_batch_on_this_cp_rank`.
        micro_batch_size: Rows of a micro-batch.
        sequence_parallel: Whether layouts with `tp` split the sequence, too.
        ddp: Keys of the `DistributedDataParallelConfig`.
        optimizer: Keys of the `OptimizerConfig`.
    """

    axes: ClassVar[Sequence[str]] = ("pp", "dp", "cp", "tp")
    shared_axes: ClassVar[Sequence[str]] = ("ep", "etp", "vpp")

    config: Any
    model: Callable[[Any, bool, bool, int | None], Module]
    batch: Callable[[int], Batch]
    forward_step: Callable[[Iterator[Batch], Module], Any] | None = None
    micro_batch_size: int = 1
    sequence_parallel: bool = False
    ddp: Mapping[str, Any] = field(default_factory=dict)
    optimizer: Mapping[str, Any] = field(default_factory=dict)

    def train(self, setting: ModelSetting, training: Training) -> None:
        """Build the model's chunks on the running rank, and do the steps."""
        if setting.dtype is None:
            raise NotImplementedError("Megatron's own types: its Float16Module is not built")
        setting.rows_per_rank(len(self.batch(0)["tokens"]), "dp")
        if not dist.is_initialized():
            dist.init_process_group("nccl")
        sizes, is_single = setting.sizes, setting.mesh is None
        state = _core("parallel_state")
        if state.is_initialized():
            state.destroy_model_parallel()
        state.initialize_model_parallel(
            sizes.get("tp", 1),
            sizes.get("pp", 1),
            sizes.get("vpp"),
            context_parallel_size=sizes.get("cp", 1),
            expert_model_parallel_size=sizes.get("ep", 1),
            expert_tensor_parallel_size=sizes.get("etp"),
        )
        _core("tensor_parallel.random").model_parallel_cuda_manual_seed(1)
        config = self._configured(setting)
        chunks = []
        for number in range(sizes.get("vpp", 1)):
            stage = number if "vpp" in sizes else None
            ends = {"ignore_virtual": False, "vp_stage": stage}
            first = state.is_pipeline_first_stage(**ends)
            chunks.append(self.model(config, first, state.is_pipeline_last_stage(**ends), stage))
        exported: dict[str, torch.Tensor] = {}
        for chunk in chunks:
            if is_single:
                setting.prepare(chunk)
                _export(chunk, exported)
            else:
                setting.move(chunk)
                _import(chunk, setting.exported or {})
        wrapped, optimizer = self._wrapped(config, chunks, is_single=is_single)
        training.watch(chunks, exported)
        for index in range(training.num_steps):
            training.begin()
            losses = self._forward_and_backward(wrapped, optimizer, index)
            training.note_gradients()
            optimizer.step()
            training.end(torch.stack(losses).mean() if losses else None)

    def _configured(self, setting: ModelSetting) -> Any:  # noqa: ANN401 - Megatron's
        sizes = setting.sizes
        given = {
            key: sizes.get(axis, None if axis in _NONE_AT_FIRST else 1)
            for axis, key in _SIZES.items()
        }
        if "vpp" in sizes:  # As many as stages, which is the default.
            given["microbatch_group_size_per_vp_stage"] = sizes.get("pp", 1)
        return replace(
            self.config,
            **given,
            sequence_parallel=self.sequence_parallel and sizes.get("tp", 1) > 1,
            params_dtype=setting.dtype,
            pipeline_dtype=setting.dtype,
            fp16=False,
            bf16=False,
        )

    def _wrapped(
        self,
        config: Any,  # noqa: ANN401 - Megatron's
        chunks: Sequence[Module],
        *,
        is_single: bool,
    ) -> tuple[Sequence[Any], Any]:
        """Return the chunks in Megatron's data parallelism, and their optimizer."""
        distributed, optimizers = _core("distributed"), _core("optimizer")
        sharded = bool(self.optimizer.get("use_distributed_optimizer")) and not is_single
        ddp = distributed.DistributedDataParallelConfig(
            **{**self.ddp, "use_distributed_optimizer": sharded}
        )
        wrapped = [distributed.DistributedDataParallel(config, ddp, chunk) for chunk in chunks]
        keys = {"optimizer": "adam", "lr": 0.01, **self.optimizer}
        keys["use_distributed_optimizer"] = sharded
        optimizer = optimizers.get_megatron_optimizer(optimizers.OptimizerConfig(**keys), wrapped)
        config.finalize_model_grads_func = distributed.finalize_model_grads
        if ddp.overlap_grad_reduce:
            syncs = [each.no_sync for each in wrapped]
            config.no_sync_func = syncs if len(syncs) > 1 else syncs[0]
        return wrapped, optimizer

    def _forward_and_backward(
        self,
        wrapped: Sequence[Any],
        optimizer: Any,  # noqa: ANN401 - Megatron's
        index: int,
    ) -> list[torch.Tensor]:
        """Do the schedule of a step; return the losses of the last stage's micro-batches."""
        state, size = _core("parallel_state"), self.micro_batch_size
        ranks, rank = state.get_data_parallel_world_size(), state.get_data_parallel_rank()
        batch = self.batch(index)
        mine = {name: each.chunk(ranks)[rank].cuda() for name, each in batch.items()}
        pieces = {name: each.split(size) for name, each in mine.items()}
        count = len(pieces["tokens"])
        batches = [{name: each[n] for name, each in pieces.items()} for n in range(count)]
        for chunk in wrapped:
            chunk.zero_grad_buffer()
        optimizer.zero_grad()
        losses: list[torch.Tensor] = []
        _core("pipeline_parallel").get_forward_backward_func()(
            forward_step_func=partial(_noting, self.forward_step or _gpt_step, losses),
            data_iterator=[iter(batches) for _ in wrapped],
            model=list(wrapped),
            num_microbatches=count,
            seq_length=mine["tokens"].shape[1],
            micro_batch_size=size,
            forward_only=False,
        )
        for chunk in wrapped:
            if chunk.ddp_config.use_distributed_optimizer:
                _gather_gradients(chunk)
        return losses


def _core(name: str) -> Any:  # noqa: ANN401 - a module of Megatron's
    return import_module(f"megatron.core.{name}")


def _gpt_step(batches: Iterator[Batch], model: Module) -> Any:  # noqa: ANN401 - Megatron's
    """Return the output of a GPT, and the function of its loss."""
    batch = dict(next(batches))
    length = batch["tokens"].shape[1]
    at = torch.arange(length, device=batch["tokens"].device)
    batch.setdefault("position_ids", at.expand(len(batch["tokens"]), length).contiguous())
    batch = _core("utils").get_batch_on_this_cp_rank(batch)
    keys = batch["tokens"], batch["position_ids"], batch.get("attention_mask")
    output = model(*keys, labels=batch["labels"])
    size = _core("parallel_state").get_context_parallel_world_size()

    def loss(losses: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        mean = losses.mean()
        return mean / size, {"lm loss": mean.detach()}

    return output, loss


def _noting(
    forward: Callable[[Iterator[Batch], Module], Any],
    losses: list[torch.Tensor],
    batches: Iterator[Batch],
    model: Module,
) -> Any:  # noqa: ANN401 - Megatron's
    """Call a forward step whose losses are noted."""
    output, loss = forward(batches, model)

    def noted(given: torch.Tensor) -> Any:  # noqa: ANN401 - Megatron's
        found = loss(given)
        if len(found) == 2:  # Otherwise a sum, and how many tokens it is of.
            losses.append(found[0].detach().clone())
        return found

    return output, noted


# ---- Values of parameters ----


def _shards(chunk: Any) -> Iterator[Any]:  # noqa: ANN401 - Megatron's
    """Yield the parts of global tensors that a chunk's parameters are."""
    mapping = _core("dist_checkpointing.mapping")
    stack = [chunk.sharded_state_dict()]
    while stack:
        each = stack.pop()
        if isinstance(each, mapping.ShardedTensorFactory):
            each = each.build()
        if isinstance(each, mapping.ShardedTensor):
            yield each
        elif isinstance(each, dict):
            stack += each.values()
        elif isinstance(each, list | tuple):
            stack += each


def _export(chunk: Module, found: dict[str, torch.Tensor]) -> None:
    """Gather the whole tensors of the single program by their global names."""
    for shard in _shards(chunk):
        if shard.key not in found:
            found[shard.key] = torch.zeros(shard.global_shape, dtype=shard.data.dtype)
        found[shard.key][_place(shard)] = shard.data.detach().cpu()


def _import(chunk: Module, found: Mapping[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for shard in _shards(chunk):
            whole, target = found[shard.key], shard.data.detach()
            # A vocabulary may be padded to a multiple of the ranks: zeros.
            places = [
                at if isinstance(at, int) else slice(at.start, min(at.stop, size))
                for at, size in zip(_place(shard), whole.shape, strict=True)
            ]
            value = whole[tuple(places)]
            target.zero_()
            target[tuple(slice(size) for size in value.shape)].copy_(value)


def _place(shard: Any) -> tuple[int | slice, ...]:  # noqa: ANN401 - Megatron's
    found: tuple[int | slice, ...] = shard.global_slice()
    return found


def _gather_gradients(chunk: Any) -> None:  # noqa: ANN401 - Megatron's
    """Give each rank the gradients of all parts, of which its optimizer needs one alone."""
    for buffer in (*chunk.buffers, *chunk.expert_parallel_buffers):
        group = buffer.data_parallel_group
        for bucket in buffer.buckets:
            part = bucket.grad_data.chunk(group.size())[group.rank()].clone()
            dist.all_gather_into_tensor(bucket.grad_data, part, group=group)
