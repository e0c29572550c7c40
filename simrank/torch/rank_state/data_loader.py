"""Workers of a DataLoader in a rank: run in turns, each with its own dataset and seed."""

from __future__ import annotations

import copy
import random  # noqa: TID251 - a worker seeds it, as torch's own do
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import _utils, dataloader

from simrank.engine import limits
from simrank.ranks.current import current_engine, rank_program

if TYPE_CHECKING:
    from collections.abc import Iterator

    Patches = list[tuple[Any, str, Any]]


def patches() -> Patches:
    """Return the patches of the iterator over workers."""
    original = dataloader._MultiProcessingDataLoaderIter

    class Dispatching(type):
        def __call__(cls, loader: Any) -> Any:
            return (original if rank_program() is None else RankWorkers)(loader)

        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, original | RankWorkers)

    patch = Dispatching(original.__name__, (), {"__doc__": original.__doc__})
    return [(dataloader, original.__name__, patch)]


class _LoaderWorker:
    """One worker: its copy of the dataset, and its random numbers.

    Args:
        loader: Whose it is.
        number: Which of them.
        base_seed: What the loader has drawn.
    """

    def __init__(self, loader: Any, number: int, base_seed: int) -> None:
        self.number = number
        self.has_ended = False
        self._info = _utils.worker.WorkerInfo(
            id=number,
            num_workers=loader.num_workers,
            seed=base_seed + number,
            dataset=_copied(loader.dataset),
        )
        self._states: tuple[Any, Any, Any] | None = None
        with self._running():
            if loader.worker_init_fn is not None:
                loader.worker_init_fn(number)
            self._fetcher = dataloader._DatasetKind.create_fetcher(
                loader._dataset_kind,
                self._info.dataset,
                loader._auto_collation,
                loader.collate_fn,
                loader.drop_last,
            )

    def fetch(self, index: Any) -> Any:
        """Return a batch.

        Raises:
            StopIteration: The worker's part of the data has ended.
        """
        with self._running():
            return self._fetcher.fetch(index)

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Put the worker's random numbers and `get_worker_info` in place."""
        outside = _random_states()
        if self._states is None:
            seed = self._info.seed
            random.seed(seed)
            torch.manual_seed(seed)
            np.random.seed(_utils.worker._generate_state(seed - self.number, self.number))
        else:
            _set_random_states(self._states)
        _utils.worker._worker_info = self._info
        try:
            yield
        finally:
            _utils.worker._worker_info = None
            self._states = _random_states()
            _set_random_states(outside)


def _copied(dataset: Any) -> Any:
    """Return a worker's copy of a dataset; a dataset that cannot be copied is shared."""
    try:
        return copy.deepcopy(dataset)
    except Exception:  # noqa: BLE001 - its parts may raise anything; a fork would share it, too
        return dataset


def _random_states() -> tuple[Any, Any, Any]:
    return random.getstate(), torch.get_rng_state(), np.random.get_state()


def _set_random_states(states: tuple[Any, Any, Any]) -> None:
    random.setstate(states[0])
    torch.set_rng_state(states[1])
    np.random.set_state(states[2])


class RankWorkers(dataloader._BaseDataLoaderIter):
    """Batches of several workers, in the order in which torch's own deliver them.

    The workers run in the rank, one after the other: loading takes no simulated time.
    """

    def __init__(self, loader: Any) -> None:
        super().__init__(loader)
        self._loader = loader
        if not loader.in_order:
            limits.pass_over(current_engine(), "a DataLoader with in_order=False")
        self._reset(loader, first_iter=True)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        if not first_iter:
            super()._reset(loader)
        if first_iter or not self._persistent_workers:
            numbers, seed = range(self._num_workers), int(self._base_seed)
            self._workers = [_LoaderWorker(loader, number, seed) for number in numbers]
        self._num_asked = 0

    def _next_data(self) -> Any:
        while True:
            index = self._next_index()  # type: ignore[no-untyped-call]  # May raise StopIteration.
            worker = self._next_worker()
            try:
                batch = worker.fetch(index)
            except StopIteration:
                worker.has_ended = True
                continue
            except Exception:  # noqa: BLE001 - raised again, as torch's own pass it on
                where = f"in DataLoader worker process {worker.number}"
                torch._utils.ExceptionWrapper(where=where).reraise()
            if self._pin_memory:
                return _utils.pin_memory.pin_memory(batch, self._pin_memory_device)
            return batch

    def _next_worker(self) -> _LoaderWorker:
        """Return the next worker.

        Raises:
            StopIteration: All have ended.
        """
        for _ in range(self._num_workers):
            worker = self._workers[self._num_asked % self._num_workers]
            self._num_asked += 1
            if not worker.has_ended:
                return worker
        raise StopIteration
