"""The Trainer of Hugging Face transformers."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from simrank.equality.precision import cast

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from simrank.equality.program import ModelSetting, Training

_QUIET = {
    "report_to": [],
    "save_strategy": "no",
    "logging_strategy": "no",
    "disable_tqdm": True,
}


@dataclass(frozen=True)
class HuggingFace:
    """A model and the arguments of transformers' Trainer, as `program` for `simrank equal`.

    The steps are those of `Trainer.train`: its loss, accumulation, clipping, optimizer and
    schedule, and accelerate's DDP, FSDP and share of the batch. The single program is the same
    Trainer on one device. Rows are taken in their order.

    Attributes:
        model: `model(sizes)` returns the model, by the sizes of the layout's axes, which are none
            in the single program; it may be sharded.
        batch: `batch(step)` returns tensors of all ranks together by name, rows first.
        arguments: `arguments(sizes)` returns keys of the TrainingArguments, likewise.
        micro_batches: Parts in which a rank takes its rows (gradient accumulation).
        data_axes: Axes whose ranks share the rows.
        trainer: The Trainer's class; None: `transformers.Trainer`.
        options: Further keys of the Trainer, such as a data collator.
    """

    axes: ClassVar[Sequence[str]] = ()
    shared_axes: ClassVar[Sequence[str]] = ()

    model: Callable[[Mapping[str, int]], Any]
    batch: Callable[[int], Mapping[str, torch.Tensor]]
    arguments: Callable[[Mapping[str, int]], Mapping[str, Any]] = lambda _: {}
    micro_batches: int = 1
    data_axes: Sequence[str] = ("dp",)
    trainer: type | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def train(self, setting: ModelSetting, training: Training) -> None:
        """Train the model on the running rank."""
        model = setting.with_values(self.model(setting.sizes))
        rows = [
            {name: cast(each[row], setting.dtype) for name, each in batch.items()}
            for batch in map(self.batch, range(training.num_steps))
            for row in range(_num_rows(batch))
        ]
        pieces = 1 if setting.mesh is None else self.micro_batches
        num_rows = len(rows) // training.num_steps
        size = setting.rows_per_piece(num_rows, pieces, self.data_axes)
        library: Any = import_module("transformers")
        with TemporaryDirectory() as folder:
            arguments = library.TrainingArguments(
                output_dir=folder,
                max_steps=training.num_steps,
                per_device_train_batch_size=size,
                gradient_accumulation_steps=pieces,
                use_cpu=setting.device == "cpu",
                **{**_QUIET, **self.arguments(setting.sizes)},
            )
            kind = _watched(self.trainer or library.Trainer, training)
            trainer = kind(model=model, args=arguments, train_dataset=rows, **self.options)
            trainer.remove_callback(library.trainer_callback.PrinterCallback)
            trainer.add_callback(_watcher(library, trainer, training))
            trainer.train()


def _num_rows(batch: Mapping[str, torch.Tensor]) -> int:
    return len(next(iter(batch.values())))


def _watched(kind: Any, training: Training) -> Any:  # noqa: ANN401 - transformers'
    """Return a kind of Trainer that takes rows in order, and notes losses and gradients."""

    class WatchedTrainer(kind):  # type: ignore[misc]
        """A Trainer that is watched."""

        def __init__(self, **options: Any) -> None:  # noqa: ANN401 - the Trainer's
            super().__init__(**options)
            self.losses: list[torch.Tensor] = []
            self.has_noted = False
            clip = self.accelerator.clip_grad_norm_

            def noted(*args: Any, **keys: Any) -> Any:  # noqa: ANN401 - accelerate's
                self.note()
                return clip(*args, **keys)

            self.accelerator.clip_grad_norm_ = noted

        def note(self) -> None:
            """Note the gradients of a step, once."""
            if not self.has_noted:
                self.has_noted = True
                training.note_gradients()

        def _get_train_sampler(self, *_: object) -> Any:  # noqa: ANN401 - torch's
            return torch.utils.data.SequentialSampler(self.train_dataset)

        def training_step(self, *args: Any, **keys: Any) -> torch.Tensor:  # noqa: ANN401
            loss: torch.Tensor = super().training_step(*args, **keys)
            self.losses.append(loss.detach().clone())
            return loss

        def _mixed_mesh_grad_norm(self, *args: Any) -> Any:  # noqa: ANN401 - the Trainer's
            self.note()
            return super()._mixed_mesh_grad_norm(*args)

    WatchedTrainer.__name__ = kind.__name__
    return WatchedTrainer


def _watcher(library: Any, trainer: Any, training: Training) -> Any:  # noqa: ANN401
    """Return a callback that tells of the model and of each step."""
    base: Any = library.TrainerCallback

    class TrainerSteps(base):  # type: ignore[misc]
        """Tells of each step."""

        def on_train_begin(self, *_: object, **__: object) -> None:
            training.watch([trainer.model_wrapped])

        def on_step_begin(self, *_: object, **__: object) -> None:
            trainer.has_noted = False
            trainer.losses.clear()
            training.begin()

        def on_pre_optimizer_step(self, *_: object, **__: object) -> None:
            trainer.note()

        def on_step_end(self, *_: object, **__: object) -> None:
            training.end(torch.stack(trainer.losses).sum())

    return TrainerSteps()
