"""DataLoaders in ranks: workers in turns, as processes would be."""

import random

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    get_worker_info,
)

# torch counts the machine's CPUs: some have one.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


class Numbers(Dataset):
    """Eight numbers; asks who reads them, and draws."""

    def __init__(self):
        self.reads = 0

    def __len__(self):
        return 8

    def __getitem__(self, index):
        self.reads += 1
        info = get_worker_info()
        worker = -1 if info is None else info.id
        return torch.tensor([index, worker, random.randrange(1000), int(torch.randint(1000, (1,)))])


class Stream(IterableDataset):
    """Each worker has a part of its own, of another length."""

    def __iter__(self):
        info = get_worker_info()
        yield from range(info.id * 10, info.id * 10 + 3 + info.id)


def test_batches_come_in_order_from_workers_in_turns(spawn):
    """The same on every run, and the rank's own random numbers are left alone."""
    found = {}

    def program(rank):
        dist.init_process_group("gloo")
        torch.manual_seed(1)
        sampler = DistributedSampler(Numbers(), shuffle=False)
        loader = DataLoader(Numbers(), batch_size=2, sampler=sampler, num_workers=2)
        batches = torch.cat(list(loader))
        found[rank] = batches
        assert get_worker_info() is None

    spawn(program)
    first = dict(found)
    spawn(program)
    for rank in range(2):
        assert first[rank][:, 0].tolist() == [rank, rank + 2, rank + 4, rank + 6]
        assert first[rank][:, 1].tolist() == [0, 0, 1, 1]
        assert torch.equal(first[rank], found[rank])


def test_real_worker_processes_deliver_the_same(spawn):
    """Order, workers and random numbers, seeded alike."""
    loader = DataLoader(Numbers(), batch_size=3, num_workers=2, multiprocessing_context="fork")
    torch.manual_seed(5)
    real = [batch[:, [0, 1, 3]].tolist() for batch in loader]
    found = []

    def program(rank):
        torch.manual_seed(5)
        found.extend(
            batch[:, [0, 1, 3]].tolist()
            for batch in DataLoader(Numbers(), batch_size=3, num_workers=2)
        )

    spawn(program, 1)
    assert found == real


def test_streams_end_worker_by_worker(spawn):
    """The longer one goes on alone."""
    found = []

    def program(rank):
        loader = DataLoader(Stream(), batch_size=2, num_workers=2)
        found.extend(batch.tolist() for batch in loader)

    spawn(program, 1)
    assert found == [[0, 1], [10, 11], [2], [12, 13]]


def test_an_error_of_a_worker_says_whose_it_is(spawn):
    """With its own traceback, as torch's does; and each worker has the dataset for itself."""

    class Broken(Numbers):
        def __getitem__(self, index):
            if index == 5:
                raise ValueError("bad record")
            return super().__getitem__(index)

    data = Broken()

    def program(rank):
        loader = DataLoader(data, batch_size=2, num_workers=2)
        with pytest.raises(ValueError, match="Caught ValueError in DataLoader worker process 0"):
            list(loader)
        assert data.reads == 0

    spawn(program, 1)


def test_pinned_memory_is_of_devices(spawn):
    """It turns them on."""

    def program(rank):
        loader = DataLoader(Numbers(), batch_size=4, num_workers=2, pin_memory=True)
        assert all(batch.is_pinned() for batch in loader)
        assert torch.ones(2).pin_memory().is_pinned()

    spawn(program, 1)
