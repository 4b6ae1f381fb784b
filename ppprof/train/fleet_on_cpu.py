"""What Fleet needs and Paddle's CPU build lacks, supplied underneath it, item by item.

Used on CPU only (`supply` is called nowhere else), with Paddle 3.3 in mind; on a GPU Fleet's own
code runs as it is. Each item is a class or a function here, says what it stands in for, and goes
when Paddle's CPU build has it:

====================  ============================================================================
`_PrivateStores`      every gloo group writes the same keys into the job's one store, so that
                      groups made after one another overwrite each other's addresses
`_Channel`            gloo's send and recv hold their caller until the other side comes, where
                      NCCL's run on a stream of their own; and they number messages by group, so
                      that a third rank in a group counts differently from the other two
`_on_calc_stream`,    collectives that ``ProcessGroupGloo`` does not implement
`_reduce_scatter`
`_Operators`          operators without a CPU kernel: ``c_identity``,
                      ``c_softmax_with_cross_entropy``
`shard`,              sharding stages 2 and 3 ask for a GPU, though nothing in them needs one
`_stay_on_cpu`        (two lines of `supply` are theirs as well: ``device_guard``, and the number
                      of a device, for which ``PipelineLayer`` asks too)
====================  ============================================================================
"""

from __future__ import annotations

import atexit
import os
import socket
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any, Callable

import paddle
import paddle.distributed as dist
from paddle import nn
from paddle.autograd import PyLayer
from paddle.base import core
from paddle.distributed import collective
from paddle.distributed.communication.group import Group
from paddle.distributed.fleet.layers.mpu import mp_ops
from paddle.distributed.fleet.meta_parallel.sharding import group_sharded_storage
from paddle.distributed.fleet.meta_parallel.sharding.group_sharded_storage import ParamStorage
from paddle.distributed.fleet.utils.sequence_parallel_utils import is_sequence_parallel_parameter
from paddle.distributed.sharding import group_sharded_parallel

_Gloo = core.ProcessGroupGloo
_SEGMENT_SIZE = 2**8
"""Elements of the smallest parameter that stage 3 divides: its 2**20 would divide no tiny model."""

_STORE_SECONDS = 300
"""How long the members of a group wait for one another, as other groups of theirs come first."""


def supply() -> None:
    """Puts the stand-ins in place; to be called before ``fleet.init``, once."""
    _Gloo.create = _PrivateStores(_Gloo.create)
    _Gloo.send = _through_channel(_Gloo.send, _Channel.send)
    _Gloo.recv = _through_channel(_Gloo.recv, _Channel.recv)
    _Gloo.all_reduce_on_calc_stream = _on_calc_stream(_Gloo.all_reduce)
    _Gloo.reduce_scatter_tensor = _reduce_scatter
    _Gloo.reduce_scatter_tensor_on_calc_stream = _on_calc_stream(_reduce_scatter)
    mp_ops._C_ops = _Operators(mp_ops._C_ops)
    dist.ParallelEnv._device_id = 0
    group_sharded_storage.device_guard = lambda *device: nullcontext()
    ParamStorage.add_rank_params = _stay_on_cpu(ParamStorage.add_rank_params)


class _PrivateStores:
    """Makes gloo groups that meet in a store of their own, whose address the job's store tells."""

    def __init__(self, create: Callable[..., Any]) -> None:
        self._create = create
        self._servers: list[Any] = []  # a store ends with its object
        # A server that outlives Python aborts the process, now and then: it logs that a member has
        # left, by a logger that the end of the process has taken down.
        atexit.register(self._servers.clear)

    def __call__(self, store: Any, rank: int, world_size: int, group_id: int = 0) -> Any:
        if group_id == 0:  # the first, of all ranks: it has the job's store to itself
            return self._create(store, rank, world_size, group_id)
        return self.meet(store, f"ppprof/group/{group_id}", rank, world_size, group_id)

    def meet(self, store: Any, key: str, rank: int, world_size: int, group_id: int) -> Any:
        """A group of those who name the same key."""
        if rank == 0:
            host = os.environ["PADDLE_CURRENT_ENDPOINT"].rpartition(":")[0]
            server, port = _listening(host)
            self._servers.append(server)
            store.set(key, f"{host}:{port}")
        else:
            host, _, number = store.get(key).decode().rpartition(":")
            port = int(number)
        # Rank 0 asks its server as the others do, for a group keeps what it was made with.
        private = core.TCPStore(host, port, False, 1, _STORE_SECONDS)
        return self._create(private, rank, world_size, group_id)


def _listening(host: str) -> tuple[Any, int]:
    """A store on a free port, and the port."""
    for _ in range(100):
        with socket.socket() as probe:
            probe.bind((host, 0))
            port = int(probe.getsockname()[1])
        try:
            # For one worker: with more it would wait for them here, before they know the port.
            return core.TCPStore(host, port, True, 1, _STORE_SECONDS), port
        except RuntimeError:  # somebody was faster
            continue
    raise RuntimeError(f"{host}: no free port for a store")


class _Task:
    """What an asynchronous call returns."""

    def __init__(self, future: Future[Any] | None = None) -> None:
        self._future = future

    def wait(self) -> bool:
        """Returns once the caller may go on; raises what the call raised."""
        if self._future is not None:
            self._future.result()
        return True


class _Channel:
    """One direction between two ranks: a group of the two, and a thread that sends or receives.

    What goes through it is in order, and each is a call of ``paddle.distributed.send`` or ``recv``
    in that thread, where a profiler sees how long it takes beside the computation. Sends are
    buffered, as MPI calls it: whoever waits for one waits for a copy of the tensor to be made.
    """

    def __init__(self, group: Group, source: int, target: int) -> None:
        ranks = [group.ranks[source], group.ranks[target]]
        rank = int(group.rank == target)
        # gloo wants one number on both sides; Paddle counts its own from 10.
        number = (1 << 30) + (group.id << 16) + source * group.nranks + target
        key = f"p2p/{group.id}/{source}/{target}"
        made = _Gloo.create.meet(collective._default_store, key, rank, 2, number)
        self._group = Group(rank, number, ranks, pg=made, name=key)
        self._peer = ranks[1 - rank]
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=key)
        self._sent: Future[Any] | None = None

    def send(self, tensor: paddle.Tensor) -> _Task:
        """Sends a copy, in the thread."""
        if self._sent is not None and self._sent.done():
            self._sent.result()  # an earlier failure ends the training here
        self._sent = self._thread.submit(dist.send, tensor.clone(), self._peer, self._group)
        return _Task()

    def recv(self, tensor: paddle.Tensor) -> _Task:
        """Receives, in the thread; what was asked for has come once the task was waited for."""
        return _Task(self._thread.submit(dist.recv, tensor, self._peer, self._group))


_channels: dict[tuple[int, int, Any], _Channel] = {}
"""By the identity of a group, the peer's rank in it, and `_Channel.send` or ``recv``."""


def open_channels(group: Group) -> None:
    """Channels both ways between neighbours of a ring: for the pipeline's group."""
    size = group.nranks
    for first, second in sorted({tuple(sorted((at, (at + 1) % size))) for at in range(size)}):
        for source, target in ((first, second), (second, first)):
            if size > 1 and group.rank in (source, target):
                sends = group.rank == source
                way, peer = (_Channel.send, target) if sends else (_Channel.recv, source)
                channel = _Channel(group, source, target)
                _channels[id(group.process_group), peer, way] = channel


def _through_channel(direct: Callable[..., Any], way: Callable[..., Any]) -> Callable[..., Any]:
    """``ProcessGroup.send`` or ``recv``, by the channel where there is one."""

    def move(group: Any, tensor: paddle.Tensor, peer: int, sync_op: bool = True) -> Any:
        channel = _channels.get((id(group), peer, way))
        return way(channel, tensor) if channel else direct(group, tensor, peer, sync_op)

    return move


def _on_calc_stream(collective_of: Callable[..., Any]) -> Callable[..., Any]:
    """A collective in the order of computation, which on a CPU is one that is waited for."""

    def collect(group: Any, *args: Any) -> Any:
        task = collective_of(group, *args, True)
        task.wait()
        return task

    return collect


def _reduce_scatter(
    group: Any, out: paddle.Tensor, whole: paddle.Tensor, op: Any, sync: Any
) -> Any:
    """``ProcessGroup.reduce_scatter_tensor``: the rank's part of an all-reduce."""
    whole = whole.detach().clone()
    task = group.all_reduce(whole, op, True)
    task.wait()
    paddle.assign(whole.split(group.size(), axis=0)[group.rank()], out)
    return task


class _Operators:
    """Paddle's operators for tensor parallel layers, with those that have no CPU kernel."""

    def __init__(self, operators: Any) -> None:
        self._operators = operators

    def __getattr__(self, name: str) -> Any:
        return getattr(self._operators, name)

    @staticmethod
    def c_identity(tensor: paddle.Tensor, *where: Any) -> paddle.Tensor:
        """A copy: what it does to gradients is in the layer that calls it."""
        return paddle.assign(tensor)

    @staticmethod
    def c_softmax_with_cross_entropy(
        logits: paddle.Tensor, label: paddle.Tensor, ignore: int, group: int, rank: int, size: int
    ) -> tuple[None, paddle.Tensor]:
        """The loss of each label; the softmax, which nothing here asks for, is left out."""
        return None, _CrossEntropy.apply(logits, label, ignore, dist.get_group(group))


class _CrossEntropy(PyLayer):
    """Cross entropy over logits whose last axis is spread over a group.

    Source: Megatron-LM, vocab_parallel_cross_entropy.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: paddle.Tensor, label: paddle.Tensor, ignore: int, group: Group
    ) -> paddle.Tensor:
        """Logits float (..., own part of the vocabulary), label int64 (..., 1); loss (..., 1)."""
        own = logits.shape[-1]
        highest = logits.max(-1, keepdim=True)
        dist.all_reduce(highest, dist.ReduceOp.MAX, group)
        shifted = logits - highest
        index = label - group.rank * own
        is_mine = ((index >= 0) & (index < own)).astype(logits.dtype)
        index = index.clip(0, own - 1)
        target = paddle.take_along_axis(shifted, index, -1) * is_mine
        weights = shifted.exp()
        total = weights.sum(-1, keepdim=True)
        dist.all_reduce(target, group=group)
        dist.all_reduce(total, group=group)
        counts = (label != ignore).astype(logits.dtype)
        ctx.save_for_backward(weights / total, index, is_mine, counts)
        return (total.log() - target) * counts

    @staticmethod
    def backward(ctx: Any, gradient: paddle.Tensor) -> paddle.Tensor:
        """Softmax minus one at the label, as everywhere."""
        softmax, index, is_mine, counts = ctx.saved_tensor()
        slope = paddle.put_along_axis(softmax, index, -is_mine, -1, reduce="add")
        return slope * (gradient * counts)


def shard(model: nn.Layer, *args: Any, **kwargs: Any) -> tuple[Any, Any, Any]:
    """``group_sharded_parallel``, told that there is a GPU while it looks for one."""
    # Stage 3 divides a parameter's gradient after every micro-batch, and Fleet adds up that of a
    # sequence parallel one over mp ranks after the last alone: such stay whole, as on a GPU.
    whole = [param.size for param in model.parameters() if is_sequence_parallel_parameter(param)]
    cpu, compiled = paddle.get_device, core.is_compiled_with_cuda
    paddle.get_device, core.is_compiled_with_cuda = (lambda: "gpu:0"), (lambda: True)
    try:
        made: tuple[Any, Any, Any] = group_sharded_parallel(
            model, *args, segment_size=max([_SEGMENT_SIZE, *whole]), **kwargs
        )
        return made
    finally:
        paddle.get_device, core.is_compiled_with_cuda = cpu, compiled


def _stay_on_cpu(add_rank_params: Callable[..., None]) -> Callable[..., None]:
    """``ParamStorage.add_rank_params``, whose parameters do not come from a GPU nor go to one."""

    def add(storage: Any, params: Any, param2align: Any, convert_gpu: bool = False) -> None:
        add_rank_params(storage, params, param2align, convert_gpu=False)

    return add
