"""Replacements for functions that Fleet needs and that Paddle's CPU build lacks.

`install` installs them, only on a CPU; on a GPU, Fleet's own code runs unchanged. They are written
for Paddle 3.3. Each replacement can be removed when Paddle's CPU build has the function:

====================  ============================================================================
`_PrivateStores`      all gloo groups write the same keys into the job's store, so each new group
                      overwrites the addresses of the one before
`_Channel`            gloo's send and recv block the caller until the peer calls, while NCCL's run
                      on their own stream; gloo also numbers messages by group, so a third rank of
                      a group counts differently from the other two
`_on_calc_stream`,    collectives that ``ProcessGroupGloo`` does not implement
`_reduce_scatter`
`_Operators`          operators without a CPU kernel: ``c_identity``,
                      ``c_softmax_with_cross_entropy``
`shard`,              sharding stages 2 and 3 check for a GPU although they do not need one; two
`_stay_on_cpu`        lines of `install` belong to them: ``device_guard``, and the device id, which
                      ``PipelineLayer`` reads too
====================  ============================================================================
"""

from __future__ import annotations

import atexit
import os
import socket
import sys
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

from ppprof.capture.recording import collectives

_Gloo = core.ProcessGroupGloo
_all_reduce = (
    _Gloo.all_reduce
)  # a profiler that wraps the method sees one operation in `_reduce_scatter`
_SEGMENT_SIZE = 2**8
"""Elements of the smallest parameter that stage 3 divides. Fleet's own 2**20 would divide nothing in
tiny models."""

_STORE_SECONDS = 300
"""How long members of a group wait for one another. It is long because other members may have to
create other groups first."""


def install() -> None:
    """Install the replacements for the rest of the process. Call it once, before ``fleet.init``.

    After ``fleet.init``, call `open_channels` too. `shard` is not installed: call it directly.
    """
    _Gloo.create = _PrivateStores(_Gloo.create)
    _Gloo.send = _through_channel(_Gloo.send, _Channel.send)
    _Gloo.recv = _through_channel(_Gloo.recv, _Channel.recv)
    _Gloo.all_reduce_on_calc_stream = _on_calc_stream(_Gloo.all_reduce)
    _Gloo.reduce_scatter_tensor = _reduce_scatter
    _Gloo.reduce_scatter_tensor_on_calc_stream = _on_calc_stream(_reduce_scatter)
    collectives.TASKS.append(_Task)
    mp_ops._C_ops = _Operators(mp_ops._C_ops)
    dist.ParallelEnv._device_id = 0
    group_sharded_storage.device_guard = lambda *device: nullcontext()
    ParamStorage.add_rank_params = _stay_on_cpu(ParamStorage.add_rank_params)


class _PrivateStores:
    """Replacement for gloo's ``create``: gives each group its own ``TCPStore``.

    With one common store, groups would overwrite each other's keys. Rank 0 of a group starts the
    group's store and writes its address into the job's store. Only the group of all ranks uses the
    job's store itself.
    """

    def __init__(self, create: Callable[..., Any]) -> None:
        self._create = create
        self._servers: list[Any] = []  # keeps the stores alive
        # A store that outlives Python sometimes aborts the process: when a member leaves, the store
        # logs it with a logger that is already destroyed.
        atexit.register(self._servers.clear)

    def __call__(self, store: Any, rank: int, world_size: int, group_id: int = 0) -> Any:
        if group_id == 0:  # the group of all ranks is the only group that uses the job's store
            return self._create(store, rank, world_size, group_id)
        return self.create_group(store, f"ppprof/group/{group_id}", rank, world_size, group_id)

    def create_group(self, store: Any, key: str, rank: int, world_size: int, group_id: int) -> Any:
        """Create a gloo group of the processes that pass the same ``key``, and return it."""
        if rank == 0:
            host = os.environ["PADDLE_CURRENT_ENDPOINT"].rpartition(":")[0]
            server, port = _start_store(host)
            self._servers.append(server)
            store.set(key, f"{host}:{port}")
        else:
            host, _, number = store.get(key).decode().rpartition(":")
            port = int(number)
        # Rank 0 connects as a client too: the group keeps a reference to the store it gets.
        private = core.TCPStore(host, port, False, 1, _STORE_SECONDS)
        return self._create(private, rank, world_size, group_id)


def _start_store(host: str) -> tuple[Any, int]:
    """Start a store on a free port; return the store and the port.

    The port stays bound until the store listens, since Paddle aborts the process if it cannot bind
    it. Both sockets set ``SO_REUSEADDR``, so on Linux the store may bind it too; nothing else gets it.
    """
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("", 0))
        port = int(reserved.getsockname()[1])
        if sys.platform != "linux":
            reserved.close()
        # World size 1: with more, it would wait for workers, which do not know the port yet.
        return core.TCPStore(host, port, True, 1, _STORE_SECONDS), port


class _Task:
    """The task of an asynchronous call."""

    def __init__(self, future: Future[Any] | None = None) -> None:
        self._future = future

    def wait(self) -> bool:
        """Wait until the call is done, and return True; raise the call's exception if it failed."""
        if self._future is not None:
            self._future.result()
        return True


class _Channel:
    """Messages in one direction between two ranks: a group of both ranks, and a thread.

    Messages stay in order. Each message is a call of ``paddle.distributed.send`` or ``recv`` in the
    thread, so a profiler records the call in parallel to the computation. Sends are buffered, as in
    MPI: the task of a send is done as soon as the tensor is copied.
    """

    def __init__(self, group: Group, source: int, target: int) -> None:
        ranks = [group.ranks[source], group.ranks[target]]
        rank = int(group.rank == target)
        # gloo needs the same group id on both sides. Paddle's own ids count up from 10.
        group_id = (1 << 30) + (group.id << 16) + source * group.nranks + target
        key = f"p2p/{group.id}/{source}/{target}"
        pair = _Gloo.create.create_group(collective._default_store, key, rank, 2, group_id)
        self._group = Group(rank, group_id, ranks, pg=pair, name=key)
        self._peer = ranks[1 - rank]
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=key)
        self._sent: Future[Any] | None = None

    def send(self, tensor: paddle.Tensor) -> _Task:
        """Send a copy of a tensor in the thread; return a task that is done.

        If an earlier send has failed, raise its exception.
        """
        if self._sent is not None and self._sent.done():
            self._sent.result()  # an earlier failure ends the training here
        self._sent = self._thread.submit(dist.send, tensor.clone(), self._peer, self._group)
        return _Task()

    def recv(self, tensor: paddle.Tensor) -> _Task:
        """Receive into ``tensor`` in the thread. The tensor is complete when the task is done."""
        return _Task(self._thread.submit(dist.recv, tensor, self._peer, self._group))


_channels: dict[tuple[int, int, Any], _Channel] = {}
"""Channels, keyed by the ``id()`` of the process group, the peer's rank in the group, and
`_Channel.send` or `_Channel.recv`."""


def open_channels(group: Group) -> None:
    """Open this rank's channels to and from its neighbours in a ring.

    Args:
        group: the ring, which is the pipeline's group. All its ranks must call this function.
    """
    size = group.nranks
    neighbours = {tuple(sorted((rank, (rank + 1) % size))) for rank in range(size)}
    for first, second in sorted(neighbours):
        for source, target in ((first, second), (second, first)):
            if size > 1 and group.rank in (source, target):
                is_sender = group.rank == source
                method, peer = (_Channel.send, target) if is_sender else (_Channel.recv, source)
                channel = _Channel(group, source, target)
                _channels[id(group.process_group), peer, method] = channel


def _through_channel(direct: Callable[..., Any], method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a ``ProcessGroup.send`` or ``recv`` that uses the channel to the peer."""

    def transfer(group: Any, tensor: paddle.Tensor, peer: int, sync_op: bool = True) -> Any:
        channel = _channels.get((id(group), peer, method))
        return method(channel, tensor) if channel else direct(group, tensor, peer, sync_op)

    return transfer


def _on_calc_stream(run_collective: Callable[..., Any]) -> Callable[..., Any]:
    """Return a collective that waits until it is done, so that computation after it comes later."""

    def run_and_wait(group: Any, *args: Any) -> Any:
        task = run_collective(group, *args, True)
        task.wait()
        return task

    return run_and_wait


def _reduce_scatter(
    group: Any, out: paddle.Tensor, whole: paddle.Tensor, op: Any, sync: Any
) -> Any:
    """Do the work of ``ProcessGroup.reduce_scatter_tensor`` by an all-reduce.

    Each rank writes its part of the result into ``out``. The call waits for the result, even if
    ``sync`` is False.
    """
    whole = whole.detach().clone()
    task = _all_reduce(group, whole, op, True)
    task.wait()
    paddle.assign(whole.split(group.size(), axis=0)[group.rank()], out)
    return task


class _Operators:
    """Paddle's operators, with replacements for two operators that have no CPU kernel."""

    def __init__(self, operators: Any) -> None:
        self._operators = operators

    def __getattr__(self, name: str) -> Any:
        return getattr(self._operators, name)

    @staticmethod
    def c_identity(tensor: paddle.Tensor, *where: Any) -> paddle.Tensor:
        """Return a copy of a tensor; the calling layer handles the gradients."""
        return paddle.assign(tensor)

    @staticmethod
    def c_softmax_with_cross_entropy(
        logits: paddle.Tensor, label: paddle.Tensor, ignore: int, group: int, rank: int, size: int
    ) -> tuple[None, paddle.Tensor]:
        """Return None and the loss of each label.

        None stands for the softmax, which no layer of this harness uses.
        """
        return None, _CrossEntropy.apply(logits, label, ignore, dist.get_group(group))


class _CrossEntropy(PyLayer):
    """Cross entropy over logits whose last dim, the vocabulary, is split over a group.

    Source: Megatron-LM, vocab_parallel_cross_entropy.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: paddle.Tensor, label: paddle.Tensor, ignore: int, group: Group
    ) -> paddle.Tensor:
        """Return the loss of each label, of shape (..., 1) and the logits' data type."""
        own = logits.shape[-1]
        highest = logits.max(-1, keepdim=True)
        dist.all_reduce(highest, dist.ReduceOp.MAX, group)
        index = label - group.rank * own
        is_own = ((index >= 0) & (index < own)).astype(logits.dtype)
        index = index.clip(0, own - 1)
        target = (paddle.take_along_axis(logits, index, -1) - highest) * is_own
        # In place, as Paddle's own kernel: logits and softmax may be the largest tensors of a training.
        weights = (logits - highest).exp_()
        total = weights.sum(-1, keepdim=True)
        dist.all_reduce(target, group=group)
        dist.all_reduce(total, group=group)
        counts = (label != ignore).astype(logits.dtype)
        ctx.save_for_backward(weights.divide_(total), index, is_own, counts)
        return (total.log() - target) * counts

    @staticmethod
    def backward(ctx: Any, gradient: paddle.Tensor) -> paddle.Tensor:
        """Return the gradient of the logits: the softmax, minus one at the label, times ``gradient``."""
        softmax, index, is_own, counts = ctx.saved_tensor()
        slope = softmax.put_along_axis_(index, -is_own, -1, reduce="add")
        return slope.multiply_(gradient * counts)


def shard(model: nn.Layer, *args: Any, **kwargs: Any) -> tuple[Any, Any, Any]:
    """Call Paddle's ``group_sharded_parallel``; meanwhile simulate a GPU, to pass its checks.

    It takes the arguments of ``group_sharded_parallel``, except ``segment_size``, and returns its
    result: model, optimizer and scaler.
    """
    # Stage 3 would divide a parameter's gradient after every micro-batch, but Fleet sums sequence
    # parallel gradients over mp ranks only after the last micro-batch. So parameters with sequence
    # parallel gradients stay whole, as on a GPU.
    whole = [param.size for param in model.parameters() if is_sequence_parallel_parameter(param)]
    get_device, is_compiled_with_cuda = paddle.get_device, core.is_compiled_with_cuda
    paddle.get_device, core.is_compiled_with_cuda = (lambda: "gpu:0"), (lambda: True)
    try:
        wrapped: tuple[Any, Any, Any] = group_sharded_parallel(
            model, *args, segment_size=max([_SEGMENT_SIZE, *whole]), **kwargs
        )
        return wrapped
    finally:
        paddle.get_device, core.is_compiled_with_cuda = get_device, is_compiled_with_cuda


def _stay_on_cpu(add_rank_params: Callable[..., None]) -> Callable[..., None]:
    """Return an ``add_rank_params`` that moves no parameters to or from a GPU."""

    def add(storage: Any, params: Any, param2align: Any, convert_gpu: bool = False) -> None:
        add_rank_params(storage, params, param2align, convert_gpu=False)

    return add
