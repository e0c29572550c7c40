"""Methods of torch's classes that a rank replaces: its own, at waits and in its threads."""

import threading

import torch
import torch.distributed as dist
from torch import nn

from simrank.ranks.current import current_engine


def one_layer():
    """Return a layer that doubles."""
    layer = nn.Linear(1, 1, bias=False)
    layer.weight.data.fill_(2)
    return layer


def test_a_method_that_every_rank_wraps_is_wrapped_once(spawn):
    """Of a module's class, its base, an optimizer and a tensor; nothing of it is left."""
    seen = {}

    def program(rank):
        dist.init_process_group("gloo")
        linear, register, step = nn.Linear.forward, nn.Module.register_buffer, torch.optim.SGD.step
        names = []
        nn.Linear.forward = lambda self, x: linear(self, x) + 1
        nn.Module.register_buffer = lambda self, name, *args: (
            names.append((rank, name)), register(self, name, *args)
        )  # fmt: skip
        torch.optim.SGD.step = lambda self: [step(self), names.append((rank, "step"))]
        torch.Tensor.of_rank = property(lambda self: self + rank)
        dist.barrier()
        layer = one_layer()
        layer.register_buffer("mine", None)
        torch.optim.SGD(layer.parameters(), lr=0.1).step()
        value = layer(torch.ones(1, 1)).item()
        dist.barrier()
        seen[rank] = value, names, torch.ones(1).of_rank.item()

    before = nn.Linear.forward, nn.Module.register_buffer
    spawn(program, 3)
    assert seen == {r: (3, [(r, "mine"), (r, "step")], 1 + r) for r in range(3)}
    assert (nn.Linear.forward, nn.Module.register_buffer) == before
    assert not hasattr(torch.Tensor, "of_rank")


def test_a_block_that_replaces_a_method_is_not_seen_by_others(spawn):
    """They run while it waits; and once it has put the method back, nobody watches any more."""
    seen, observers = {}, []

    def program(rank):
        dist.init_process_group("gloo")
        if rank == 0:
            forward = nn.Linear.forward
            nn.Linear.forward = lambda self, x: x
            dist.barrier()
            seen[rank] = one_layer()(torch.ones(1, 1)).item()
            nn.Linear.forward = forward
        else:
            dist.barrier()
            seen[rank] = one_layer()(torch.ones(1, 1)).item()
        dist.barrier()
        observers.append(list(current_engine().observers))

    spawn(program, 2)
    assert seen == {0: 1, 1: 2}
    assert observers[-1] == []


def test_threads_of_a_rank_have_what_it_has_replaced(spawn):
    """A function of a module, too."""
    seen = {}

    def program(rank):
        dist.init_process_group("gloo")
        nn.Linear.forward = lambda self, x: x + rank
        torch.nn.functional.of_rank = rank

        def work():
            seen[rank] = one_layer()(torch.ones(1, 1)).item(), torch.nn.functional.of_rank

        dist.barrier()
        thread = threading.Thread(target=work)
        thread.start()
        dist.barrier()
        thread.join()

    spawn(program, 2)
    assert seen == {0: (1, 0), 1: (2, 1)}


def test_what_the_main_program_has_replaced_all_ranks_have(spawn, monkeypatch):
    """Before they start; a rank's first optimizer, which changes its class, is no patch."""
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: 7 * x)
    seen = []

    def program(rank):
        dist.init_process_group("gloo")
        torch.optim.Adagrad(one_layer().parameters())
        dist.barrier()
        assert current_engine().observers == []
        seen.append(one_layer()(torch.ones(1, 1)).item())

    spawn(program, 2)
    assert seen == [7, 7]
