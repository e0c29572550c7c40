"""torch's process groups on simrank's: the collectives of torch.distributed."""

from __future__ import annotations

import functools
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as _c10d

from simrank.distributed import api, p2p_api
from simrank.distributed.backends import GLOO, NCCL
from simrank.distributed.issue import IllegalWork, enter_call, hold, is_dense
from simrank.distributed.monitored import monitored_barrier
from simrank.distributed.multi_tensor import (
    all_gather_multi_tensor,
    all_reduce_multi_tensor,
    broadcast_multi_tensor,
)
from simrank.distributed.request import (
    PremulSum,
    ReduceOp,
    Request,
    Signature,
    sizes_of,
    staging,
)
from simrank.errors import UnsupportedError
from simrank.ranks import current_program, require_rank
from simrank.torch.devices import activation
from simrank.torch.devices.buffers import TorchStorage, all_exchanged, exchanged
from simrank.torch.devices.rank_devices import note_pending, shared_memory_owner
from simrank.torch.groups import gloo_checks
from simrank.torch.groups.dispatch import as_operator, in_graphs
from simrank.torch.groups.identity import GroupOptions, IdentifiedGroup, check_owner
from simrank.torch.groups.work import DONE, SimulatedWork, flattened
from simrank.torch.profiler import Kernel, is_recording, nccl_facts, record_call

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import timedelta

    from simrank.device import Buffer
    from simrank.distributed.api import Op
    from simrank.distributed.group import ProcessGroup
    from simrank.distributed.issue import CoalescingManager
    from simrank.distributed.work import Work
    from simrank.torch.groups.gloo_checks import Checker

Tensors: TypeAlias = "torch.Tensor | list[torch.Tensor] | tuple[torch.Tensor, ...]"
Outputs: TypeAlias = "list[torch.Tensor] | list[list[torch.Tensor]]"
_SUM = dist.ReduceOp.SUM


class SimulatedGroup(IdentifiedGroup):
    """One rank's view of a simulated group, as a `torch.distributed.ProcessGroup`.

    Attributes:
        calls: Those on their way through torch's dispatcher; the last one is the innermost.
        checker: Compares the members' calls at debug level DETAIL; None at other levels.
        copies_without_blocks: Whether its nccl has the policy of no blocks (`cta_policy`).
    """

    copies_without_blocks = False

    def __init__(
        self, rank: int, group: ProcessGroup, options: GroupOptions, limit: timedelta | None
    ) -> None:
        super().__init__(rank, group, options, limit)
        self._coalescing = ExitStack()
        self._batch: CoalescingManager | None = None
        self._in_batch: list[torch.Tensor] = []
        self.calls: list[Any] = []
        self.checker: Checker | None = None

    # ---- collectives ----

    @as_operator("allreduce_")
    def allreduce(
        self, tensors: Tensors, opts: Any = None, timeout: object = None, *, op: Any = None
    ) -> dist.Work:
        """Reduce over the group, in place; with gloo several tensors become one result."""
        reduction = reduction_of(_reduction(opts, op))
        if self._is_gloo(tensors):
            listed = _listed(tensors)
            gloo_checks.check_all_reduce(listed, is_sum=reduction is ReduceOp.SUM)
            _check_complex("all_reduce", listed[0], reduction)
            if listed[0].is_sparse:
                return all_reduce_sparse(self.simulated, listed)
            if len(listed) > 1:
                buffers = all_exchanged(listed)
                _check_alike_in_memory("allreduce", buffers)
                work = all_reduce_multi_tensor(buffers, reduction, self.simulated)
                return self._work("all_reduce", work, listed)
        tensor = _one(tensors)
        is_async = self._limit is not None or bool(getattr(opts, "asyncOp", True))
        if not is_async and self._is_recorded("all_reduce"):
            is_async = not self._is_on_stream(tensor)
        work = api.all_reduce(exchanged(tensor), reduction, self.simulated, is_async)
        return self._work("all_reduce", work, [tensor])

    @as_operator("allreduce_coalesced_")
    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> dist.Work:
        """Reduce several tensors as one."""
        reduction = reduction_of(_reduction(opts))
        if self._is_gloo(tensors):
            gloo_checks.check_all_reduce_coalesced(tensors)
            _check_complex("all_reduce", tensors[0], reduction)
        buffers = all_exchanged(tensors)
        caller = enter_call("all_reduce", self.simulated, lists=(buffers,))
        assert caller is not None, "a member calls"
        op = api.reduction_of(caller.backend, reduction, buffers[0])
        dtype = buffers[0].dtype
        flat = staging(buffers, dtype, buffers[0].cuda_device)
        sizes = sizes_of(buffers)
        signature = Signature("all_reduce", op.value, None, dtype.name, flat.numel(), sizes)
        request = Request(signature, flat, flat, factor=api.factor_of(op))
        request.sources = request.targets = buffers
        return self._work("all_reduce", hold("all_reduce", caller, request, async_op=True), tensors)

    @as_operator("broadcast_")
    def broadcast(
        self, tensors: Tensors, opts: Any = None, timeout: object = None, *, root: int = 0
    ) -> dist.Work:
        """Copy the root's tensor to all, with gloo to several of each member."""
        source = _root(opts, root)
        if self._is_gloo(tensors):
            listed = _listed(tensors)
            index = getattr(opts, "rootTensor", 0)
            gloo_checks.check_root("broadcast", source, self._size)
            gloo_checks.check_root_tensor("broadcast", index, len(listed))
            gloo_checks.check_broadcast(listed)
            if len(listed) > 1:
                buffers = all_exchanged(listed)
                _check_alike_in_memory("broadcast", [buffers[index]])
                several = broadcast_multi_tensor(buffers, index, source, self.simulated)
                return self._work("broadcast", several, listed)
        tensor = _one(tensors)
        is_async = self._is_async(opts, tensor)
        work = api.broadcast(exchanged(tensor), None, self.simulated, is_async, group_src=source)
        return self._work("broadcast", work, [tensor])

    @as_operator("reduce_")
    def reduce(
        self,
        tensors: Tensors,
        opts: Any = None,
        op: Any = None,
        timeout: object = None,
        *,
        root: int = 0,
    ) -> dist.Work:
        """Reduce over the group, into the root's tensor."""
        reduction = reduction_of(_reduction(opts, op))
        target = _root(opts, root)
        if self._is_gloo(tensors):
            listed = _listed(tensors)
            gloo_checks.check_root("reduce", target, self._size)
            gloo_checks.check_root_tensor("reduce", getattr(opts, "rootTensor", 0), len(listed))
            gloo_checks.check_reduce(listed)
            _check_complex("reduce", listed[0], reduction)
        tensor = _one(tensors)
        buffer = exchanged(tensor)
        is_async = self._is_async(opts, tensor)
        work = api.reduce(buffer, None, reduction, self.simulated, is_async, group_dst=target)
        return self._work("reduce", work, [tensor])

    @as_operator("allgather_")
    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> dist.Work:
        """Gather the members' tensors into a list, with gloo several of each into several."""
        if isinstance(inputs, list | tuple):
            if self._is_gloo(inputs):
                gloo_checks.check_all_gather(outputs, inputs, self._size)
                if len(inputs) > 1:
                    return self._all_gather_multi_tensor(outputs, [*inputs])
            outputs, inputs = outputs[0], _one(inputs)
        elif self._is_gloo(inputs):
            gloo_checks.check_all_gather([outputs], [inputs], self._size)
        is_async = self._is_async(opts, inputs)
        source = exchanged(self._flat(inputs))
        work = api.all_gather(all_exchanged(outputs), source, self.simulated, is_async)
        is_flat = self._is_on_stream(inputs)
        is_stacked = is_flat and all(output.shape == inputs.shape for output in outputs)
        return self._work(
            "all_gather", work, outputs, is_copied=True, reads=[inputs], is_stacked=is_stacked
        )

    def _all_gather_multi_tensor(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor]
    ) -> dist.Work:
        buffers = [all_exchanged(listed) for listed in outputs]
        sources = all_exchanged([tensor.contiguous() for tensor in inputs])
        work = all_gather_multi_tensor(buffers, sources, self.simulated)
        return self._work("all_gather", work, outputs, is_copied=True, reads=inputs)

    @as_operator("allgather_coalesced_")
    def allgather_coalesced(
        self,
        output_lists: list[list[torch.Tensor]],
        inputs: list[torch.Tensor],
        opts: object = None,
    ) -> dist.Work:
        """Gather each of several tensors into a list."""
        if self._is_gloo(inputs):
            gloo_checks.check_all_gather_coalesced(output_lists, inputs, self._size)
        works = []
        for index, tensor in enumerate(inputs):
            outputs = all_exchanged([row[index] for row in output_lists])
            works.append(api.all_gather(outputs, exchanged(tensor), self.simulated, True))
        return self._works("all_gather", works, output_lists, is_copied=True, reads=inputs)

    @as_operator("_allgather_base_")
    def all_gather_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        opts: Any = None,
    ) -> dist.Work:
        """Gather the members' tensors into one."""
        source, target = exchanged(input), exchanged(output)
        if self.simulated.backend_for(source) == GLOO:
            gloo_checks.check_gathered(output, input, self._size)
        is_async = self._is_async(opts, input)
        return self._work(
            "_all_gather_base",
            api.all_gather_into_tensor(target, source, self.simulated, is_async),
            [output],
            reads=[input],
        )

    _allgather_base = all_gather_single

    @as_operator("allgather_into_tensor_coalesced_")
    def all_gather_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: object = None
    ) -> dist.Work:
        """Gather each of several tensors into one."""
        pairs = zip(all_exchanged(outputs), all_exchanged(inputs), strict=True)
        works = [api.all_gather_into_tensor(o, i, self.simulated, True) for o, i in pairs]
        return self._works("all_gather_into_tensor_coalesced", works, outputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    @as_operator("reduce_scatter_")
    def reduce_scatter(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: object = None, *, op: Any = None
    ) -> dist.Work:
        """Reduce lists entry by entry; entry k stays on member k."""
        reduction = reduction_of(_reduction(opts, op))
        if isinstance(outputs, list | tuple):
            if self._is_gloo(outputs):
                gloo_checks.check_reduce_scatter(outputs, inputs, self._rank, self._size)
                _check_complex("all_reduce", outputs[0], reduction)
            outputs, inputs = _one(outputs), inputs[0]
        self._check_in_order("reduce_scatter", [outputs, *inputs])
        target, sources = exchanged(outputs), all_exchanged(inputs)
        is_async = self._is_async(opts, outputs)
        work = api.reduce_scatter(target, sources, reduction, self.simulated, is_async)
        return self._work("reduce_scatter", work, [outputs])

    @as_operator("_reduce_scatter_base_")
    def reduce_scatter_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        opts: Any = None,
    ) -> dist.Work:
        """Reduce, and leave part k on member k."""
        reduction = reduction_of(_reduction(opts))
        target, source = exchanged(output), exchanged(input)
        if self.simulated.backend_for(source) == GLOO:
            gloo_checks.check_scattered(output, input, self._size)
        is_async = self._is_async(opts, input)
        work = api.reduce_scatter_tensor(target, source, reduction, self.simulated, is_async)
        return self._work("_reduce_scatter_base", work, [output], reads=[input])

    _reduce_scatter_base = reduce_scatter_single

    @as_operator("reduce_scatter_tensor_coalesced_")
    def reduce_scatter_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> dist.Work:
        """Reduce several tensors, and leave their parts k on member k."""
        op = reduction_of(_reduction(opts))
        pairs = zip(all_exchanged(outputs), all_exchanged(inputs), strict=True)
        works = [api.reduce_scatter_tensor(o, i, op, self.simulated, True) for o, i in pairs]
        return self._works("reduce_scatter_tensor_coalesced", works, outputs)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    @as_operator("alltoall_base_")
    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Sequence[int] = (),
        input_split_sizes: Sequence[int] = (),
        opts: Any = None,
    ) -> dist.Work:
        """Send part k to member k."""
        target, source = exchanged(output), exchanged(input)
        is_async = self._is_async(opts, input)
        work = api.all_to_all_single(
            target,
            source,
            output_split_sizes,
            input_split_sizes,
            self.simulated,
            is_async,
        )
        return self._work("all_to_all", work, [output], reads=[input])

    alltoall_base = all_to_all_single

    @as_operator("alltoall_")
    def alltoall(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> dist.Work:
        """Send entry k of a list to member k."""
        if self._is_gloo(inputs or outputs):
            gloo_checks.check_all_to_all(outputs, inputs, self._size)
        elif len(inputs) != self._size:
            raise RuntimeError(
                f"input tensor list size {len(inputs)} does not match world size {self._size}"
            )
        is_async = self._is_async(opts, inputs[0])
        work = api.all_to_all(
            all_exchanged(outputs), all_exchanged(inputs), self.simulated, is_async
        )
        return self._work("all_to_all", work, outputs, reads=inputs)

    @as_operator("gather_")
    def gather(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: object = None, *, root: int = 0
    ) -> dist.Work:
        """Gather the members' tensors into the root's list."""
        root = _root(opts, root)
        self._check_list_of_root("gather", inputs, outputs, root)
        outputs = _first_list(outputs)
        source = exchanged(self._flat(_one(inputs)))
        target = all_exchanged(outputs) if outputs else None
        is_async = self._is_async(opts, _one(inputs))
        work = api.gather(source, target, None, self.simulated, is_async, group_dst=root)
        return self._work("gather", work, outputs or [], is_copied=True, reads=[_one(inputs)])

    @as_operator("scatter_")
    def scatter(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: object = None, *, root: int = 0
    ) -> dist.Work:
        """Send entry k of the root's list to member k."""
        root = _root(opts, root)
        self._check_list_of_root("scatter", outputs, inputs, root)
        inputs = _first_list(inputs)
        tensor = _one(outputs)
        self._check_in_order("scatter", [tensor, *inputs])
        target, sources = exchanged(tensor), all_exchanged(inputs) if inputs else None
        is_async = self._is_async(opts, tensor)
        work = api.scatter(target, sources, None, self.simulated, is_async, group_src=root)
        return self._work("scatter", work, [tensor])

    def barrier(self, opts: Any = None, timeout: Any = None) -> dist.Work:  # type: ignore[override]
        """Return once all members have called."""
        check_owner(self)
        if self.checker is not None:
            self.checker.check("barrier", ())
        return self._work("barrier", api.barrier(self.simulated, True), [])

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """Wait for all members; rank 0 names those that are missing."""
        if self._rank == 0 and timeout is not None and not timeout:
            raise RuntimeError("Rank 0 timed out in monitoredBarrier after 0 ms.")
        limit = self._limit if timeout is None else timeout
        monitored_barrier(self.simulated, limit, wait_all_ranks)

    # ---- messages ----

    @as_operator("send")
    def send(self, tensors: Tensors, dst: int, tag: int = 0) -> dist.Work:
        """Send a tensor to a member."""
        if self._is_gloo(tensors):
            gloo_checks.check_message(_listed(tensors), tag)
        tensor = _one(tensors)
        work = p2p_api.isend(exchanged(tensor), None, self.simulated, tag, group_dst=dst)
        return self._work("send", work, [tensor])

    @as_operator("recv_")
    def recv(self, tensors: Tensors, src: int, tag: int = 0) -> dist.Work:
        """Receive a tensor from a member."""
        if self._is_gloo(tensors):
            gloo_checks.check_message(_listed(tensors), tag)
        tensor = _one(tensors)
        work = p2p_api.irecv(exchanged(tensor), None, self.simulated, tag, group_src=src)
        return self._work("recv", work, [tensor])

    @as_operator("recv_any_source_")
    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> dist.Work:
        """Receive a tensor from whichever member sends."""
        if self._is_gloo(tensors):
            gloo_checks.check_message(_listed(tensors), tag)
        tensor = _one(tensors)
        return self._work(
            "recvAnySource", p2p_api.irecv(exchanged(tensor), None, self.simulated, tag), [tensor]
        )

    # ---- several as one ----

    @in_graphs
    def _start_coalescing(self, device: torch.device) -> None:
        manager = p2p_api._coalescing_manager(self.simulated, device, async_ops=True)
        self._batch = self._coalescing.enter_context(manager)

    @in_graphs
    def _end_coalescing(self, device: torch.device) -> dist.Work:
        self._coalescing.close()
        assert self._batch is not None, "started"
        works, self._batch = self._batch.works, None
        reads, self._in_batch = self._in_batch, []
        return self._works("coalesced", works, [], reads=reads)

    # ---- what is returned ----

    def _is_async(self, opts: Any, tensor: torch.Tensor) -> bool:
        """Return whether a call runs beside the current stream.

        nccl's run on the current stream unless they are asked for as asynchronous; gloo's always
        run beside the host, for which torch waits itself.
        """
        if not self._is_on_stream(tensor):
            return True
        if self._limit is not None:
            return True  # It is watched.
        return bool(getattr(opts, "asyncOp", True))

    def _is_gloo(self, tensors: Tensors) -> bool:
        """Return whether gloo runs a call; without tensors it does unless nccl is in use."""
        while not isinstance(tensors, torch.Tensor):
            if not tensors:
                return not self._is_nccl()
            tensors = tensors[0]
        return not self._is_on_stream(tensors)

    def _check_list_of_root(self, call: str, tensors: Tensors, given: Any, root: int) -> None:
        """Raise gloo's errors for the tensor and the list of a gather or a scatter."""
        if not self._is_gloo(tensors):
            return
        gloo_checks.check_root(call, root, self._size)
        is_flat = bool(given) and isinstance(given[0], torch.Tensor)
        group = self._rank, root, self._size
        gloo_checks.check_list_of_root(
            call, _listed(tensors), [given] if is_flat else given or [], group
        )

    def _flat(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor as gloo gathers it: a copy if it has gaps."""
        return tensor if self._is_on_stream(tensor) else tensor.contiguous()

    def _check_in_order(self, call: str, tensors: Sequence[torch.Tensor]) -> None:
        """Raise if gloo would move bytes in a memory order that differs from the tensors'.

        Raises:
            UnsupportedError: A tensor is not contiguous.
        """
        on_host = (tensor for tensor in tensors if not self._is_on_stream(tensor))
        if not all(tensor.is_contiguous() for tensor in on_host):
            raise _scrambled(call)

    def _is_on_stream(self, tensor: torch.Tensor) -> bool:
        """Return whether nccl runs calls with such tensors: on a stream, not on the host."""
        return tensor.is_cuda and self.simulated.backends.get("cuda") != GLOO

    def _work(
        self,
        name: str,
        work: Work | None,
        outputs: Outputs,
        *,
        reads: Sequence[torch.Tensor] | None = None,
        is_copied: bool = False,
        is_stacked: bool = False,
    ) -> dist.Work:
        """Return the Work of a single call; see `_works`.

        As nccl does, it returns none of a call on the current stream that is not asynchronous.
        """
        if work is None and not is_copied and self._batch is None and not self._is_recorded(name):
            issued = self.simulated.last_issued[self._rank]
            if issued is not None:
                _note(issued)
            return DONE
        works = [] if work is None else [work]
        return self._works(
            name, works, outputs, reads=reads, is_copied=is_copied, is_stacked=is_stacked
        )

    def _works(
        self,
        name: str,
        works: Sequence[Work | None],
        outputs: Outputs,
        *,
        reads: Sequence[torch.Tensor] | None = None,
        is_copied: bool = False,
        is_stacked: bool = False,
    ) -> dist.Work:
        """Return the Work of a call.

        Args:
            name: The call, as profilers show it.
            works: simrank's own.
            outputs: What is filled: tensors, or lists of them.
            reads: What is read; None: what is filled.
            is_copied: Whether gloo copies to the outputs with a torch operation, as to lists:
                autograd sees that they changed.
            is_stacked: Whether the result is all outputs in one.
        """
        flat = [*flattened(outputs)]
        if is_copied and flat:
            torch.autograd.graph.increment_version(flat)
        started = [work for work in works if work is not None and type(work) is not IllegalWork]
        if self._batch is not None:  # Its end returns one Work for all calls inside.
            self._batch.works.extend(started)
            self._in_batch += [*flat, *(reads or ())]
            return SimulatedWork((), outputs)
        operations = self._note_in_flight(started)
        program = require_rank(name)
        if is_recording(program):
            read = flat if reads is None else reads
            device = next((tensor.device.type for tensor in (*read, *flat)), "")
            backend = self.simulated.backends.get(device, self.options.backend)
            sides, comms, kernel = (read, flat), None, None
            if backend == NCCL:
                comms = nccl_facts(self, self.simulated.ranks, name, sides)
                kernel = self._kernel(name, sides)
            record_call(program, f"{backend}:{name}", read, operations, (comms, kernel))
        return SimulatedWork(started, outputs, self._limit, reads=reads, is_stacked=is_stacked)

    def _kernel(self, name: str, sides: Sequence[Sequence[torch.Tensor]]) -> Kernel:
        """Return the family of nccl's kernel for a call.

        Its symmetric ones need a window of what others read or write, and add floats. With the
        policy of no blocks what moves only is a copy.

        Source: NCCL 2.28's documentation of window registration; torch 2.13's notes of it.
        """
        reads, writes = sides
        needed = reads if "scatter" in name else writes if "gather" in name else [*reads, *writes]
        has_window = activation.is_enabled() and shared_memory_owner().has_window
        if (
            not has_window
            or not needed
            or not all(has_window(tensor.data_ptr(), self.group_name) for tensor in needed)
        ):
            return Kernel.RING
        if "reduce" in name:
            is_added = needed[0].is_floating_point() and needed[0].dtype != torch.float64
            return Kernel.SYMMETRIC if is_added else Kernel.RING
        return Kernel.COPY if self.copies_without_blocks else Kernel.SYMMETRIC

    def _is_recorded(self, name: str) -> bool:
        """Return whether the running rank has a profiler open."""
        program = current_program()
        if program is None or program.rank is None:
            program = require_rank(name)
        return is_recording(program)

    def _note_in_flight(self, started: Sequence[Work]) -> Sequence[Any]:
        """Make torch's operations wait for issued calls that use the same tensors; return them."""
        operations: Sequence[Any] = [work._operation for work in started]  # not waited for yet
        last = self.simulated.last_issued[self._rank]
        if not operations and last is not None:
            operations = [last]
        for operation in operations:
            _note(operation)
        return operations


def _note(operation: Any) -> None:
    """Make torch's operations wait for an issued call that uses the same tensors."""
    touched = operation.touched
    if touched is not None and activation.is_enabled():
        note_pending(operation, touched.reads, touched.writes)
        for buffer in (*touched.reads, *touched.writes):
            if isinstance(buffer.storage, TorchStorage):
                buffer.storage.leave()


def _listed(tensors: Tensors) -> list[torch.Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else [*tensors]


def _first_list(given: Any) -> Any:
    """Return a list of tensors that is given alone or in a list."""
    return given[0] if given and isinstance(given[0], list | tuple) else given


def _check_alike_in_memory(call: str, buffers: Sequence[Buffer]) -> None:
    """Raise unless tensors are dense, in the same order of dimensions.

    Raises:
        UnsupportedError: They do not.
    """
    strides = buffers[0].stride()
    if not all(is_dense(buffer) and buffer.stride() == strides for buffer in buffers):
        raise _scrambled(call)


def _scrambled(call: str) -> UnsupportedError:
    return UnsupportedError(
        f"{call}: gloo moves a tensor's bytes in their order in memory, which scrambles "
        "one that is not contiguous\n  to fix: hand it tensor.contiguous()"
    )


def _check_complex(call: str, tensor: torch.Tensor, op: Op) -> None:
    """Raise for reductions that torch does not define on complex numbers.

    Raises:
        RuntimeError: It is one of them; torch's words.
    """
    if tensor.is_complex() and op not in (ReduceOp.SUM, ReduceOp.AVG):
        raise RuntimeError(f"{call} does not support {op} on complex tensors")


def _one(tensors: Tensors) -> torch.Tensor:
    """Return the tensor of a call.

    Raises:
        RuntimeError: It is missing; torch's words.
        UnsupportedError: There are several, as of several devices of one process.
    """
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) == 1:
        return tensors[0]
    if not tensors:
        raise RuntimeError("requires non-empty tensor list")
    raise UnsupportedError(
        f"a call with {len(tensors)} tensors, as of several devices of one process: each rank has "
        "one\n  to fix: a call for each tensor, or a coalesced one for all"
    )


def _root(opts: Any, root: int) -> int:
    """Return the root of a call, from its options or as given."""
    if opts is None:
        return root
    return opts if isinstance(opts, int) else int(opts.rootRank)


def _reduction(opts: Any, op: Any = None) -> Any:
    if op is not None:
        return op
    if opts is None:
        return _SUM
    return getattr(opts, "reduceOp", opts)


# ---- torch's reductions as simrank's ----

_NAMES = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
_BY_KIND: dict[Any, ReduceOp] = {getattr(dist.ReduceOp, name): ReduceOp[name] for name in _NAMES}


def reduction_of(op: Any) -> Op:
    """Return simrank's reduction; a premultiplied sum keeps its factor."""
    kind = getattr(op, "op", op)
    found = _BY_KIND.get(kind)
    if found is not None:
        return found
    return PremulSum(op.__getstate__()[1])


# ---- The all_reduce of sparse tensors, which gloo has ----


def all_reduce_sparse(group: ProcessGroup, tensors: list[torch.Tensor]) -> SimulatedWork:
    """Sum sparse tensors as gloo does: gather shapes, then indices and values.

    Several tensors of a rank are summed first, and all of them get the result.

    Simulated cost: three all_gathers, the last two of the longest member's size. Source: torch 2.13
    `ProcessGroupGloo.cpp`, AsyncSparseAllreduceWork.

    Raises:
        RuntimeError: Shapes differ from member to member; gloo's words.
    """
    first, *others = tensors
    own = sum(others, start=first).coalesce()
    facts = [own._nnz(), *_padded_shape(own)]
    reported = _gathered(group, torch.tensor(facts))
    if any(each[1:].tolist() != facts[1:] for each in reported):
        raise RuntimeError("Sparse dimensions do not match")
    counts = [int(each[0]) for each in reported]
    longest = max(counts)
    total = torch.sparse_coo_tensor(size=own.shape, dtype=own.dtype)  # type: ignore[call-arg]  # Stubs lack it.
    if longest:
        indices = _gathered(group, _padded(own.indices().t(), longest))
        values = _gathered(group, _padded(own.values(), longest))
        for count, index, value in zip(counts, indices, values, strict=True):
            part = index[:count].t(), value[:count]
            total = total + torch.sparse_coo_tensor(*part, own.shape)
    for tensor in tensors:
        tensor.copy_(total.coalesce())
    return SimulatedWork((), tensors)


def _padded_shape(tensor: torch.Tensor) -> list[int]:
    """Return the sparse and dense sizes of a tensor, padded to four each as in gloo."""
    sizes, num_sparse = list(tensor.shape), tensor.sparse_dim()
    sparse, dense = sizes[:num_sparse], sizes[num_sparse:]
    return [*sparse, *[0] * (4 - len(sparse)), *dense, *[0] * (4 - len(dense))]


def _padded(rows: torch.Tensor, num_rows: int) -> torch.Tensor:
    padded = torch.zeros((num_rows, *rows.shape[1:]), dtype=rows.dtype)
    padded[: len(rows)] = rows
    return padded


def _gathered(group: ProcessGroup, tensor: torch.Tensor) -> list[torch.Tensor]:
    parts = [torch.zeros_like(tensor) for _ in range(group.size())]
    api.all_gather(all_exchanged(parts), exchanged(tensor), group)
    return parts


# ---- Batches of messages ----
# torch groups them for groups of its own class only, which simulated ones are not.

c10d: Any = _c10d


def make_batch(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the replacement of `batch_isend_irecv`."""

    @functools.wraps(original)
    def batch_isend_irecv(p2p_op_list: Sequence[Any]) -> Any:
        c10d._check_p2p_op_list(p2p_op_list)
        group = p2p_op_list[0].group or c10d._get_default_group()
        device = p2p_op_list[0].tensor.device
        is_simulated = isinstance(group, SimulatedGroup)
        if not is_simulated or group.simulated.backends.get(device.type) != NCCL:
            return original(p2p_op_list)
        with c10d._coalescing_manager(group, device, async_ops=True) as manager:
            for each in p2p_op_list:
                peer = "group_dst" if each.op is c10d.isend else "group_src"
                each.op(each.tensor, group=each.group, tag=each.tag, **{peer: each.group_peer})
        return manager.works

    return batch_isend_irecv


def patches() -> list[tuple[Any, str, Any]]:
    """Return the patches: owner, name and new value."""
    batch = make_batch(c10d.batch_isend_irecv)
    return [(owner, "batch_isend_irecv", batch) for owner in (c10d, dist)]
