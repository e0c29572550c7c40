"""Random numbers of a rank: its own, the same in every run, whoever draws in between."""

import gc
import queue
import textwrap
import threading

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as functional

from simrank.errors import SpawnException
from simrank.ranks.current import current_engine
from simrank.torch.cuda.library import native


def draws(spawn, **settings):
    """Return what each rank draws without a seed, waits in between."""
    found = {}

    def program(rank):
        dist.init_process_group("gloo")
        first = torch.rand(2)
        dist.barrier()
        found[rank] = [*first.tolist(), *nn.Dropout()(torch.ones(8)).tolist()]

    spawn(program, 3, **settings)
    return found


def test_unseeded_numbers_differ_by_rank_and_repeat_by_run(spawn):
    """Another seed of the run draws others; the process's own generator is left alone."""
    torch.manual_seed(4)
    expected = torch.rand(1)
    torch.manual_seed(4)
    first = draws(spawn)
    assert len({str(values) for values in first.values()}) == 3
    assert draws(spawn) == first
    assert draws(spawn, seed=1) != first
    assert torch.rand(1) == expected


def test_unseeded_numbers_of_devices_differ_by_rank_and_device_and_repeat_by_run(spawn):
    """As CUDA draws the seeds of its generators; a generator that is made starts as ever."""

    def draws_of(**settings):
        found = {}

        def program(rank):
            drawn = [torch.rand(2, device=f"cuda:{device}").tolist() for device in range(2)]
            made = torch.Generator("cuda").initial_seed(), torch.cuda.initial_seed()
            torch.cuda.manual_seed_all(3)
            found[rank] = drawn, made, torch.rand(1, device="cuda").item()

        spawn(program, 3, **settings)
        return found

    first = draws_of()
    assert len({str(values) for drawn, _, _ in first.values() for values in drawn}) == 6
    assert len({made[0] for _, made, _ in first.values()}) == 1
    assert len({made[1] for _, made, _ in first.values()}) == 3
    assert len({seeded for _, _, seeded in first.values()}) == 1
    assert draws_of() == first
    assert draws_of(seed=1) != first


def test_a_seeded_rank_draws_as_a_process_does(spawn):
    """Though others draw and seed between its calls."""
    torch.manual_seed(11)
    expected = torch.rand(6).tolist()
    found = {}

    def program(rank):
        dist.init_process_group("gloo")
        torch.manual_seed(11 if rank == 0 else 5)
        found[rank] = []
        for _ in range(6):
            found[rank] += torch.rand(1).tolist()
            dist.barrier()

    spawn(program)
    assert found[0] == expected != found[1]


def test_backward_interleaves_exactly_with_modes_of_each_rank(spawn):
    """Collectives in backward, on 2 to 64 ranks; afterwards some are without grad."""
    gradients = {}

    class Sum(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            x = x.clone()
            dist.all_reduce(x)
            return x

        @staticmethod
        def backward(ctx, gradient):
            gradient = gradient.clone()
            dist.all_reduce(gradient)
            return gradient

    def program(rank, world):
        dist.init_process_group("gloo")
        x = torch.ones(1, dtype=torch.float64, requires_grad=True)
        a = Sum.apply(x * 2)
        b = Sum.apply(x * 3)
        c = Sum.apply(a + b)
        (c + a).sum().backward()
        gradients[rank] = x.grad.item()
        with torch.no_grad() if rank % 2 else torch.enable_grad():
            dist.barrier()
            assert torch.is_grad_enabled() != bool(rank % 2)

    for world in (2, 4, 16, 64):
        gradients.clear()
        spawn(program, world, world)
        # d(c)/dx: 5 * world^2 by c's and a's or b's sums; d(a)/dx: 2 * world.
        assert gradients == dict.fromkeys(range(world), 5.0 * world**2 + 2.0 * world)


@pytest.mark.parametrize("ending", ["returns", "raises", "hangs"])
def test_the_main_programs_numbers_go_on_whatever_ranks_draw_and_however_they_end(spawn, ending):
    """Ranks that pass the turn on among themselves do not put them back each time."""
    torch.manual_seed(8)
    expected = torch.rand(4).tolist()
    torch.manual_seed(8)

    def program(rank):
        dist.init_process_group("gloo")
        for _ in range(3):
            torch.rand(rank + 1)
            dist.barrier()
        if rank == 1 and ending == "raises":
            raise KeyError
        if rank == 1 and ending == "hangs":
            dist.recv(torch.ones(1), 0)

    found = []
    for _ in range(4):
        found.append(torch.rand(1).item())
        if ending == "returns":
            spawn(program, 4)
        else:
            with pytest.raises(Exception, match=r"KeyError|deadlock"):
                spawn(program, 4)
    assert found == expected


def test_a_simulation_inside_a_rank_leaves_that_ranks_numbers_and_the_others_alone(spawn):
    """Its ranks draw from their own, and so do the ranks around it."""

    def found(inner):
        drawn = {}

        def program(rank):
            dist.init_process_group("gloo")
            drawn[rank] = []
            for _ in range(3):
                drawn[rank] += torch.rand(1).tolist()
                dist.barrier()
                if inner and rank:
                    draws(spawn)
                drawn[rank] += torch.rand(1).tolist()

        spawn(program, 3)
        return drawn

    assert found(inner=True) == found(inner=False)


def test_other_threads_of_a_rank_find_its_groups_by_name(spawn):
    """In Python as in C++: a loader's workers ask a device mesh, and reduce."""
    from concurrent.futures import ThreadPoolExecutor

    from torch.distributed import _functional_collectives as functional
    from torch.distributed.device_mesh import init_device_mesh

    found = {}

    def program(rank):
        dist.init_process_group("gloo")
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))

        def work():
            value = functional.all_reduce(torch.ones(3) * rank, "sum", (mesh, 1))
            return mesh["tp"].get_local_rank(), (value + 0).tolist()

        with ThreadPoolExecutor(2) as pool:
            found[rank] = pool.submit(work).result()

    spawn(program, 4)
    assert found == {rank: (rank % 2, [rank // 2 * 4 + 1.0] * 3) for rank in range(4)}


def test_a_thread_of_a_rank_finds_groups_that_another_has_made_since(spawn):
    """In C++, where each thread has a registry: made, destroyed and made again by either."""
    import threading

    from torch.distributed import _functional_collectives as functional

    found = {}

    def program(rank):
        dist.init_process_group("gloo")
        steps, answers = queue.Queue(), queue.Queue()

        def reduced(group):
            return (functional.all_reduce(torch.ones(1), "sum", group) + 0).item()

        def work():
            for step in iter(steps.get, None):
                answers.put(step())

        thread = threading.Thread(target=work)
        thread.start()

        def there(step):
            steps.put(step)
            return answers.get()

        seen = found[rank] = [there(lambda: reduced(dist.group.WORLD))]
        mine = dist.new_group([0, 1])
        seen.append(there(lambda: reduced(mine)))
        theirs = there(lambda: dist.new_group([0, 1]))
        seen.append(reduced(theirs))
        name = mine.group_name
        dist.destroy_process_group(mine)
        with pytest.raises(RuntimeError, match="Could not resolve"):
            resolve(name)
        seen.append(there(lambda: is_known(name)))
        there(dist.destroy_process_group)
        seen.append(is_known(theirs.group_name))
        dist.init_process_group("gloo")
        seen.append(there(lambda: reduced(dist.group.WORLD)))
        steps.put(None)
        thread.join()
        seen.append(reduced(dist.new_group([0, 1])))

    def resolve(name):
        return torch._C._distributed_c10d._resolve_process_group(name)

    def is_known(name):
        try:
            return resolve(name) is not None
        except RuntimeError:
            return False

    spawn(program, 2)
    assert found == {rank: [2.0, 2.0, 2.0, False, False, 2.0, 2.0] for rank in range(2)}


# ---- methods of torch's classes that a rank replaces: its own, at waits and in its threads ----


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


LAYERS = """
    import functools
    import torch

    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()

    class Plain(Own):
        pass

    def local():
        class Local(torch.nn.Module):
            def forward(self, x):
                return x
        return Local

    def below(kind):
        return {kind}.union(*map(below, kind.__subclasses__()))

    def wrap(kind, calls):
        if "__init__" in vars(kind):
            kind.before = kind.__init__
            @functools.wraps(kind.before)
            def init(self, *args, before=kind.before, **kwargs):
                calls.append(type(self).__name__)
                before(self, *args, **kwargs)
            kind.__init__ = init
"""


def test_a_rank_that_wraps_all_subclasses_wraps_none_of_another_rank(spawn, tmp_path, monkeypatch):
    """Copies of a private module derive from torch's classes, which all ranks share."""
    (tmp_path / "own_layers.py").write_text(textwrap.dedent(LAYERS))
    monkeypatch.syspath_prepend(tmp_path)
    seen = {}

    def program(rank):
        import own_layers

        dist.init_process_group("gloo")
        kinds, calls = [own_layers.local()], []
        dist.barrier()
        found = own_layers.below(nn.Module)
        kinds += [own_layers.Own, own_layers.Plain]
        assert {kind for kind in found if kind.__module__ == "own_layers"} == {*kinds}
        assert nn.Linear in found
        for kind in found:
            own_layers.wrap(kind, calls)
        dist.barrier()
        own_layers.Plain()
        seen[rank] = calls
        dist.barrier()
        for kind in found:
            if "before" in vars(kind):
                kind.__init__ = kind.before
                del kind.before
        own_layers.Plain()

    spawn(program, 2, private=["own_layers"])
    assert seen == {rank: ["Plain", "Plain"] for rank in range(2)}  # Its own class and torch's.
    assert "__subclasses__" not in vars(nn.Module)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        return value * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


class Counted:
    """In place of `Function.apply`, as tracers put it: calls it, and counts."""

    def __init__(self, original, calls):
        self.original, self.calls = original, calls

    def __get__(self, owner, kind=None):
        """Count, and give the original."""
        self.calls.append(kind.__name__)
        return self.original.__get__(owner, kind)


def test_so_is_one_of_a_class_of_its_own_kind_and_a_function_of_a_private_module(spawn):
    """Their code says which: `torch.autograd.Function.apply = mine`."""
    seen = {}
    import torch._functorch.vmap as vmap

    before = vars(torch.autograd.Function)["apply"], vmap._flat_vmap

    def program(rank):
        dist.init_process_group("gloo")
        calls = []
        flat = vmap._flat_vmap
        if rank != 1:
            torch.autograd.Function.apply = Counted(before[0], calls)
            vmap._flat_vmap = lambda *args, **kwargs: [calls.append("vmap"), flat(*args, **kwargs)][
                1
            ]
        dist.barrier()
        Doubled.apply(torch.ones(2))
        torch.vmap(lambda value: value + 1)(torch.ones(2))
        dist.barrier()
        if rank == 2:
            torch.autograd.Function.apply = before[0]
        dist.barrier()
        Doubled.apply(torch.ones(2))
        seen[rank] = calls

    spawn(program, 3)
    assert seen == {0: ["Doubled", "vmap", "Doubled"], 1: [], 2: ["Doubled", "vmap"]}
    assert (vars(torch.autograd.Function)["apply"], vmap._flat_vmap) == before


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


@pytest.mark.parametrize("has_data", [True, False])
def test_functional_calls_that_no_rank_waits_for_end_with_the_rank(spawn, has_data):
    """They stay in a registry of torch; device memory and addresses are given back."""
    addresses = set()

    def program(rank):
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        mine = torch.ones(4, device="cuda")
        addresses.add((rank, mine.data_ptr()))
        functional.all_reduce(mine, "sum", dist.group.WORLD)
        functional.all_reduce_coalesced([mine, mine + 1], "sum", dist.group.WORLD)
        if rank == 1:
            raise ValueError("before it waits")
        functional.wait_tensor(mine)
        dist.barrier()

    for _ in range(3):
        with pytest.raises(SpawnException, match="before it waits"):
            spawn(program, data=has_data)
    gc.collect()
    assert native().simrank_num_live_blocks() == 0
    assert len(addresses) == 2
