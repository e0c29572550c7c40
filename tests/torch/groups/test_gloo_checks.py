"""Errors of calls with wrong roots and sizes are gloo's own, on every member alike."""

import pytest
import torch
import torch.distributed as dist

from simrank.errors import DeadlockError, UnsupportedError

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # New names of collectives.
    pytest.mark.filterwarnings("ignore:Sparse invariant checks"),
]

ROOTED = {
    "broadcast": lambda root: dist.broadcast(torch.ones(1), src=root),
    "reduce": lambda root: dist.reduce(torch.ones(1), dst=root),
    "gather": lambda root: dist.gather(torch.ones(1), None, dst=root),
    "scatter": lambda root: dist.scatter(torch.ones(1), None, src=root),
}
OBJECTS = {
    "broadcast": [
        lambda root: dist.broadcast_object_list([1], src=root),
        lambda root: dist.scatter_object_list([None], None, src=root),
    ],
    "gather": [lambda root: dist.gather_object(1, None, dst=root)],
}


def test_a_root_that_is_no_member_is_gloos_error(spawn):
    """A RuntimeError, where nccl has a ValueError; the group goes on."""

    def program(rank):
        dist.init_process_group("gloo")
        half = dist.new_group([0, 1])
        for root in (-1, 2):
            for name, call in ROOTED.items():
                with pytest.raises(RuntimeError, match=f"{name}: invalid root rank: {root}$"):
                    call(root)
            for name, calls in OBJECTS.items():
                for call in calls:
                    with pytest.raises(RuntimeError, match=f"{name}: invalid root rank: {root}$"):
                        call(root)
        with pytest.raises(ValueError, match="Global rank 2 is not part of group"):
            dist.broadcast(torch.ones(1), src=2, group=half)
        with pytest.raises(RuntimeError, match="broadcast: invalid root rank: 3"):
            dist.broadcast(torch.ones(1), group_src=3, group=half)
        x = torch.ones(1)
        dist.all_reduce(x)
        assert x.item() == 2.0

    spawn(program, 2)


def test_sizes_that_do_not_fit_are_gloos_errors(spawn):
    """Of single tensors, which it cuts into parts, and of lists."""

    def program(rank):
        dist.init_process_group("gloo")
        for num_rows, reported in (
            (7, r"invalid tensor size at index 0 \(expected \(2\), got \(3\)\)"),
            (5, r"invalid tensor size at index 2 \(expected \(2\), got \(1\)\)"),
            (2, r"invalid output tensor list at index 0 \(expected length 3, got 2\)"),
        ):
            with pytest.raises(RuntimeError, match=reported):
                dist.all_gather_into_tensor(torch.ones(num_rows), torch.ones(2))
        reported = r"outputShape\[0\] \* worldSize == inputShape\[0\] \(9 vs. 6\)"
        with pytest.raises(RuntimeError, match=reported):
            dist.reduce_scatter_tensor(torch.ones(3), torch.ones(6))
        for inputs in ([], [torch.ones(1)] * 2):
            reported = f"input tensor list size {len(inputs)} does not match world size 3"
            with pytest.raises(RuntimeError, match=reported):
                dist.all_to_all([torch.ones(1)] * 3, inputs)
        out = torch.empty(6)
        dist.all_gather_into_tensor(out, torch.full((2,), float(rank)))
        assert out.tolist() == [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]

    spawn(program, 3)


def options(kind, **values):
    """Options of a call, with their fields set."""
    made = getattr(dist, kind)()
    for name, value in values.items():
        setattr(made, name, value)
    return made


T1, DOUBLE, T2 = torch.zeros(1), torch.zeros(1, dtype=torch.float64), torch.zeros(2)
with torch.sparse.check_sparse_tensor_invariants():
    SPARSE = torch.sparse_coo_tensor([[0]], [1.0], size=(1,))
# Of two members, as real processes say it.
CHECKED = {
    "no tensor": (
        lambda group, rank: group.allreduce([]),
        "allreduce: requires non-empty tensor list$",
    ),
    "two types": (
        lambda group, rank: group.allreduce([T1, DOUBLE]),
        r"allreduce: invalid tensor type at index 0 \(expected TensorOptions\(dtype=float, .*, "
        r"got TensorOptions\(dtype=double, device=cpu, layout=Strided, requires_grad=false ",
    ),
    "two sizes": (
        lambda group, rank: group.allreduce([T1, T2]),
        r"allreduce: invalid tensor size at index 0 \(expected \(1\), got \(2\)\)$",
    ),
    "two layouts": (
        lambda group, rank: group.allreduce([T1, SPARSE]),
        r"allreduce: invalid tensor layout at index 1 \(expected Strided, got Sparse\)$",
    ),
    "a maximum of sparse tensors": (
        lambda group, rank: group.allreduce([SPARSE], op=dist.ReduceOp.MAX),
        "allreduce: unsupported reduction operation ",
    ),
    "no coalesced tensor": (
        lambda group, rank: group.allreduce_coalesced([]),
        "allreduce_coalesced: requires non-empty tensor list$",
    ),
    "two coalesced types": (
        lambda group, rank: group.allreduce_coalesced([T1, DOUBLE]),
        "allreduce_coalesced: tensors must all have the same type$",
    ),
    "sparse coalesced tensors": (
        lambda group, rank: group.allreduce_coalesced([SPARSE, SPARSE]),
        "allreduce_coalesced: unsupported layout$",
    ),
    "a root tensor that is missing": (
        lambda group, rank: group.broadcast([T1], options("BroadcastOptions", rootTensor=1)),
        "broadcast: invalid root tensor: 1$",
    ),
    "a sparse broadcast": (
        lambda group, rank: group.broadcast([SPARSE]),
        "broadcast: only supports dense tensors$",
    ),
    "a reduction of two tensors": (
        lambda group, rank: group.reduce([T1, T1]),
        "reduce: requires a single-element tensor list$",
    ),
    "nothing to scatter": (
        lambda group, rank: group.scatter([T1], [], options("ScatterOptions", rootRank=rank)),
        "scatter: requires a single-element input list containing a list with 2 tensors.$",
    ),
    "too much to scatter": (
        lambda group, rank: group.scatter(
            [T1], [[T1] * 3], options("ScatterOptions", rootRank=rank)
        ),
        "scatter: Incorrect input list size 3. Input list size should be 2, same as size of the",
    ),
    "a scatter by a member that is not the root": (
        lambda group, rank: group.scatter(
            [T1], [[T1] * 2], options("ScatterOptions", rootRank=1 - rank)
        ),
        "scatter: requires empty input on non-root$",
    ),
    "a gather of two tensors": (
        lambda group, rank: group.gather([], [T1, T1]),
        "gather: requires a single-element input tensor list$",
    ),
    "a gather to another type": (
        lambda group, rank: group.gather(
            [[DOUBLE] * 2], [T1], options("GatherOptions", rootRank=rank)
        ),
        "gather: invalid tensor type at index 0 ",
    ),
    "no list to gather to": (
        lambda group, rank: group.allgather([], [T1]),
        "allgather: requires input/output tensor lists to have the same length$",
    ),
    "a list that is too long": (
        lambda group, rank: group.allgather([[T1] * 3], [T1]),
        r"allgather: invalid output tensor list at index 0 \(expected length 2, got 3\)$",
    ),
    "another size in the list": (
        lambda group, rank: group.allgather([[T1, T2]], [T1]),
        r"allgather: invalid tensor size at index 1 \(expected \(1\), got \(2\)\)$",
    ),
    "a list for each of three members": (
        lambda group, rank: group.allgather_coalesced([[T1]] * 3, [T1]),
        "allgather_coalesced: output lists should be equal to world size$",
    ),
    "another type in a list": (
        lambda group, rank: group.allgather_coalesced([[DOUBLE]] * 2, [T1]),
        r"invalid tensor type at index 0 \(expected torch.FloatTensor, got torch.DoubleTensor\)$",
    ),
    "two outputs": (
        lambda group, rank: group.reduce_scatter([T1, T1], [[T1] * 2] * 2),
        "reduce_scatter only supports 1 output$",
    ),
    "two types sent to all": (
        lambda group, rank: group.alltoall([T1] * 2, [DOUBLE] * 2),
        "alltoall: input and output tensors must have the same type$",
    ),
    "a negative tag": (
        lambda group, rank: group.send([T1], 1 - rank, -1),
        "Tag must be nonnegative$",
    ),
    "two messages": (
        lambda group, rank: group.recv([T1, T1], 1 - rank, 0),
        "ProcessGroupGloo::send takes a single tensor$",
    ),
    "products of complex numbers": (
        lambda group, rank: group.allreduce([T1.cfloat()], op=dist.ReduceOp.PRODUCT),
        "all_reduce does not support prod on complex tensors$",
    ),
}


def test_arguments_are_checked_as_gloo_checks_them(spawn):
    """Each call raises alone on each member, and the group goes on."""

    def program(rank):
        dist.init_process_group("gloo")
        group = dist.ProcessGroupGloo(dist.distributed_c10d._get_default_store(), rank, 2)
        for name, (call, reported) in CHECKED.items():
            with pytest.raises(RuntimeError, match=reported) as caught:
                call(group, rank)
            assert type(caught.value) is RuntimeError, name
        tensor = torch.ones(1)
        group.allreduce([tensor]).wait()
        assert tensor.item() == 2.0

    spawn(program, 2)


def test_calls_without_tensors_have_no_kernel(spawn):
    """Groups of init_process_group go through torch's dispatcher, those of the class do not."""

    def program(rank):
        dist.init_process_group("gloo")
        group = dist.group.WORLD
        for name, call in (
            ("allreduce_", lambda: group.allreduce([])),
            ("allgather_", lambda: group.allgather([], [])),
        ):
            with pytest.raises(NotImplementedError, match=f"no tensor arguments.* c10d::{name}"):
                call()
        with pytest.raises(NotImplementedError, match=r"'c10d::broadcast_'.*'SparseCPU'"):
            group.broadcast([SPARSE])

    spawn(program, 2)


def test_several_tensors_of_a_rank_become_one_result(spawn):
    """They are reduced within the rank first; all of them get what the group has."""

    def program(rank):
        dist.init_process_group("gloo")
        group = dist.group.WORLD
        for op, wanted in (("SUM", 22.0), ("PRODUCT", 0.0), ("MIN", 0.0), ("MAX", 11.0)):
            tensors = [torch.tensor([float(rank)]), torch.tensor([10.0 + rank])]
            work = group.allreduce(tensors, op=getattr(dist.ReduceOp, op))
            work.wait()
            assert [tensor.item() for tensor in tensors] == [wanted, wanted]
            assert all(map(torch.equal, work.result(), tensors))
        bits = [torch.tensor([1 << rank]), torch.tensor([4 << rank])]
        group.allreduce(bits, op=dist.ReduceOp.BOR).wait()
        assert [tensor.item() for tensor in bits] == [15, 15]
        with pytest.raises(UnsupportedError, match="an average of 2 tensors per rank: gloo div"):
            group.allreduce([torch.ones(1), torch.ones(1)], op=dist.ReduceOp.AVG)
        with pytest.raises(UnsupportedError, match="scrambles one that is not contiguous"):
            group.allreduce([torch.ones(2, 2)[:, 0], torch.ones(2)])

    spawn(program, 2)


def test_any_tensor_of_the_root_goes_to_all_tensors(spawn):
    """The root's other tensors get it too."""

    def program(rank):
        dist.init_process_group("gloo")
        for root in range(2):
            for index in range(2):
                tensors = [torch.tensor([10.0 * rank]), torch.tensor([10.0 * rank + 1])]
                chosen = options("BroadcastOptions", rootRank=root, rootTensor=index)
                dist.group.WORLD.broadcast(tensors, chosen).wait()
                assert [tensor.item() for tensor in tensors] == [10.0 * root + index] * 2

    spawn(program, 2)


def test_several_tensors_are_gathered_into_as_many_lists(spawn):
    """Each list has the tensors of all members; a future holds lists, a work has no result."""

    def program(rank):
        dist.init_process_group("gloo")
        inputs = [torch.tensor([[2.0 * rank, 9.0]]), torch.ones(2, 2)[:, :1].t() * (2 * rank + 1)]
        outputs = [[torch.zeros(1, 2) for _ in range(4)] for _ in range(2)]
        work = dist.group.WORLD.allgather(outputs, inputs)
        held = work.get_future().wait()
        for listed in (*outputs, *held):
            found = [tensor.tolist() for tensor in listed]
            assert found == [[[0.0, 9.0]], [[1.0, 1.0]], [[2.0, 9.0]], [[3.0, 3.0]]]
        with pytest.raises(RuntimeError, match="work result does not support list of lists"):
            work.result()

    spawn(program, 2)


def test_several_sparse_tensors_are_summed(spawn):
    """Those of a rank first; shapes must agree between members."""

    def program(rank):
        dist.init_process_group("gloo")
        tensors = [
            torch.sparse_coo_tensor([[rank]], [value], size=(2,), check_invariants=True)
            for value in (1.0, 2.0)
        ]
        dist.group.WORLD.allreduce(tensors).wait()
        assert [tensor.to_dense().tolist() for tensor in tensors] == [[3.0, 3.0]] * 2
        other = torch.sparse_coo_tensor([[0]], [1.0], size=(2 + rank,), check_invariants=True)
        with pytest.raises(RuntimeError, match="Sparse dimensions do not match"):
            dist.all_reduce(other)

    spawn(program, 2)


# ---- at debug level DETAIL members compare their calls, and all of them learn of a difference ----

MISMATCH = "Detected mismatch between collectives on ranks. Rank "


@pytest.fixture
def detail(monkeypatch):
    """Ask for the checks as programs do."""
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_a_call_that_differs_raises_on_every_member(spawn, detail, backend):
    """With torch's text; the group goes on, as nothing was issued."""

    def program(rank):
        dist.init_process_group(backend)
        device = "cpu" if backend == "gloo" else f"cuda:{rank}"
        ones = torch.ones(2, device=device)
        calls = {
            r"TensorShape=\[2\].*, but Rank 2 .*TensorShape=\[3\].*shapes: 2vs 3": (
                lambda: dist.all_reduce(torch.ones(2 + (rank == 2), device=device))
            ),
            "TensorDtypes=Float.*, but Rank 2 .*TensorDtypes=Double.*dtypes: Floatvs Double": (
                lambda: dist.all_reduce(ones.double() if rank == 2 else ones)
            ),
            r"OpType=ALLREDUCE.*, but Rank 2 .*OpType=BARRIER\).*ALLREDUCEvs BARRIER": (
                lambda: dist.barrier() if rank == 2 else dist.all_reduce(ones)
            ),
        }
        for reported, call in calls.items():
            wanted = f"{MISMATCH}2 .*but Rank 0 " if rank == 2 else f"{MISMATCH}{rank} .*{reported}"
            with pytest.raises(RuntimeError, match=wanted) as caught:
                call()
            assert type(caught.value) is RuntimeError
        dist.all_reduce(ones)
        assert ones.tolist() == [3.0, 3.0]

    spawn(program, 3)


def test_groups_made_later_and_by_hand_are_checked_too(spawn, monkeypatch):
    """Each has its own number of calls."""

    def program(rank):
        dist.init_process_group("gloo")
        dist.set_debug_level(dist.DebugLevel.DETAIL)
        group = dist.new_group([0, 1])
        store = dist.distributed_c10d._get_default_store()
        by_hand = dist.distributed_c10d._create_process_group_wrapper(
            dist.ProcessGroupGloo(store, rank, 2), "unused", store, rank, 2
        )
        dist.all_reduce(torch.ones(1), group=group)
        with pytest.raises(RuntimeError, match="SequenceNumber=1, OpType=ALLREDUCE"):
            dist.all_reduce(torch.ones(1 + rank), group=group)
        with pytest.raises(RuntimeError, match=MISMATCH):
            by_hand.allreduce([torch.ones(1 + rank)])

    spawn(program, 2)


def test_a_member_that_does_not_call_is_a_deadlock(spawn, detail):
    """The report names the group of the checks."""

    def program(rank):
        dist.init_process_group("gloo")
        if rank:
            dist.all_reduce(torch.ones(1))

    with pytest.raises(DeadlockError, match="DETAIL"):
        spawn(program, 2)
