"""PyTorch Lightning's Trainer: a LightningModule under its strategies."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from simrank.equality.program import ModelSetting, Training

_QUIET = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
    "limit_val_batches": 0,
}


@dataclass(frozen=True)
class Lightning:
    """A LightningModule, as `program` of a file for `simrank equal`.

    The steps are those of `Trainer.fit`: the module's step and optimizers, accumulation,
    clipping and the strategy. The single program is the same Trainer on one device.

    Attributes:
        module: `module()` returns the LightningModule.
        batch: `batch(step)` returns what `training_step` takes, for all ranks together, rows first.
        strategy: `strategy(sizes)` returns the strategy of a layout, by the sizes of its axes, or
            its name.
        micro_batches: Parts in which a rank takes its rows (gradient accumulation).
        data_axes: Axes whose ranks share the rows.
        trainer: Further keys of the Trainer, such as that of clipping.
    """

    axes: ClassVar[Sequence[str]] = ()
    shared_axes: ClassVar[Sequence[str]] = ()

    module: Callable[[], Any]
    batch: Callable[[int], Any]
    strategy: Callable[[Mapping[str, int]], Any] = lambda _: "ddp"
    micro_batches: int = 1
    data_axes: Sequence[str] = ("dp",)
    trainer: Mapping[str, Any] = field(default_factory=dict)

    def train(self, setting: ModelSetting, training: Training) -> None:
        """Fit the module on the running rank."""
        module = setting.with_values(self.module())
        library = _library_of(module)
        is_single = setting.mesh is None
        pieces = 1 if is_single else self.micro_batches
        batches = [
            piece
            for step in range(training.num_steps)
            for piece in setting.pieces(self.batch(step), pieces, self.data_axes)
        ]
        options = {**_QUIET, **self.trainer}
        if not is_single:
            options |= {
                "strategy": self.strategy(setting.sizes),
                "plugins": [*options.get("plugins", ()), _environment(library)],
            }
        trainer = import_module(library).Trainer(
            accelerator=setting.device,
            devices=1 if is_single else dist.get_world_size(),
            max_steps=training.num_steps,
            accumulate_grad_batches=pieces,
            callbacks=[*options.pop("callbacks", ()), _watcher(library, setting, training, pieces)],
            **options,
        )
        trainer.fit(module, _Loader(batches))


@dataclass(frozen=True)
class _Loader:
    """The batches of a rank; a list would be several loaders."""

    batches: Sequence[Any]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


def _library_of(module: Any) -> str:  # noqa: ANN401 - Lightning's
    """Return `lightning.pytorch` or `pytorch_lightning`, whichever a module is of."""
    kinds = [kind for kind in type(module).__mro__ if kind.__name__ == "LightningModule"]
    if not kinds:
        raise TypeError(f"expected a LightningModule, got {type(module).__name__}")
    return kinds[0].__module__.partition(".core")[0]


def _environment(library: str) -> Any:  # noqa: ANN401 - Lightning's
    """Return a cluster whose processes are the ranks that run."""
    base: Any = import_module(f"{library}.plugins.environments").ClusterEnvironment

    class Ranks(base):  # type: ignore[misc]
        """The ranks of the default process group."""

        creates_processes_externally = True
        main_address, main_port = "127.0.0.1", 29500

        def detect(self) -> bool:
            return True

        def world_size(self) -> int:
            return dist.get_world_size()

        def set_world_size(self, size: int) -> None:
            """Nothing: it is known."""

        def global_rank(self) -> int:
            return dist.get_rank()

        def set_global_rank(self, rank: int) -> None:
            """Nothing: it is known."""

        def local_rank(self) -> int:
            return dist.get_rank()

        def node_rank(self) -> int:
            return 0

    return Ranks()


def _watcher(
    library: str,
    setting: ModelSetting,
    training: Training,
    pieces: int,
) -> Any:  # noqa: ANN401 - Lightning's
    """Return a callback that tells of the model and of each step."""
    base: Any = import_module(library).Callback

    class LightningSteps(base):  # type: ignore[misc]
        """Tells of each step."""

        def __init__(self) -> None:
            self.losses: list[Any] = []

        def on_train_start(self, trainer: Any, module: Any) -> None:  # noqa: ANN401
            if setting.mesh is not None:
                setting.fill([module], only_sharded=True)
            training.watch([trainer.strategy.model])

        def on_train_batch_start(self, _: Any, __: Any, ___: Any, index: int) -> None:  # noqa: ANN401
            if not index % pieces:
                self.losses.clear()
                training.begin()

        def on_before_optimizer_step(self, *_: object) -> None:
            training.note_gradients()

        def on_train_batch_end(
            self,
            _: Any,  # noqa: ANN401
            __: Any,  # noqa: ANN401
            outputs: Any,  # noqa: ANN401
            ___: Any,  # noqa: ANN401
            index: int,
        ) -> None:
            self.losses.append(outputs["loss"])
            if not (index + 1) % pieces:
                training.end(sum(self.losses))

    return LightningSteps()
