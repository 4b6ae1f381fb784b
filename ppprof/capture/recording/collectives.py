"""Record communication spans for calls of ``paddle.distributed``, while a window is open.

Paddle records no communication of gloo, and its events have no field for group or size. So the
span's name holds them: ``all_reduce[axis=dp group=0 bytes=4198400 dtype=float32 peers=0,1]``.

- ``axis`` is the group's axis in the topology; missing if the group is not a group of an axis.
- ``peers`` are global ranks: all ranks of the group, or the other side of a send or recv. For a
  batch of transfers they hold direction, other side and bytes of each: ``peers=>1:4096,<3:4096``.
- ``bytes`` is the size of this rank's input. For recv, and for ranks that only receive in a
  broadcast or a scatter, it is the size of the output.
- ``dtype`` is the data type of the first tensor.

``barrier`` has no ``bytes`` and no ``dtype``; neither have functions for objects, such as
``all_gather_object``, which pickle the objects inside. Waiting for an asynchronous operation is a
separate span: ``wait[op=all_reduce axis=dp ...]``.

Calls of a group are launched together when the group ends (``ProcessGroup._end_coalescing``). A batch
of transfers, ``batch_isend_irecv`` or that of Fleet's pipeline, is one span from before its group
starts until its group has ended. Any other group is a span ``coalesced[axis=pp group=3]``, and its
calls are spans inside.

Every module that holds one of the functions gets a wrapper instead, no matter how it imported the
function. After the window, the module gets the function back. Methods of the process groups, which
Fleet's tensor parallel layers and its pipeline call directly, are wrapped and restored too. Two
kinds of calls are not recorded: communication that starts in C++, above all the gradient all-reduce
of ``paddle.DataParallel``; and calls of a function that a class, a closure or a list holds.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import weakref
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

import paddle.distributed as dist
from paddle.base import core
from paddle.distributed import collective

from ppprof.capture.recording.observers import WindowObserver
from ppprof.capture.recording.patches import ModuleWrappers, Patches, dtype_key
from ppprof.capture.recording.recorder import open_span
from ppprof.capture.signals import pass_interruption
from ppprof.topology import Topology

_DATA = {
    "all_reduce": "tensor",
    "all_gather": "tensor",
    "all_gather_object": "",
    "reduce": "tensor",
    "broadcast": "tensor",
    "broadcast_object_list": "",
    "scatter": "tensor_list tensor_or_tensor_list tensor",
    "scatter_object_list": "",
    "reduce_scatter": "tensor_list tensor_or_tensor_list",
    "alltoall": "in_tensor_list in_tensor_or_tensor_list",
    "alltoall_single": "in_tensor",
    "gather": "tensor",
    "send": "tensor",
    "recv": "tensor",
    "isend": "tensor",
    "irecv": "tensor",
    "batch_isend_irecv": "p2p_op_list",
    "batch_send_recv_on_calc_stream": "p2p_op_list",
    "barrier": "",
}
"""Functions of ``paddle.distributed`` (and of its ``stream`` and of `_PIPELINE`), and the names of the parameters that
may hold their data: the first parameter that is not None counts. No names if the size of the data
is not known before the call."""

METHODS = {
    "all_reduce": ("all_reduce", 0),
    "allreduce": ("all_reduce", 0),
    "all_gather": ("all_gather", 0),
    "all_gather_into_tensor": ("all_gather", 1),
    "all_gather_partial": ("all_gather", 1),
    "broadcast": ("broadcast", 0),
    "reduce": ("reduce", 0),
    "reduce_scatter": ("reduce_scatter", 1),
    "reduce_scatter_tensor": ("reduce_scatter", 1),
    "all_to_all": ("alltoall", 1),
    "all_to_all_tensor": ("alltoall", 1),
    "all_to_all_single": ("alltoall_single", 1),
    "alltoall": ("alltoall", 0),
    "alltoall_single": ("alltoall_single", 0),
    "send": ("send", 0),
    "send_partial": ("send", 0),
    "recv": ("recv", 0),
    "recv_partial": ("recv", 0),
}
"""Methods of ``ProcessGroup``, which exist as ``..._on_calc_stream`` too: the operation's name in a
trace, and the index of the argument that holds the data; see `data_of`. In a send or recv, the argument after the
tensor is the peer. In a ``partial`` send or recv, the argument after the peer is the number of
ranks that share the tensor."""

_PIPELINE = "paddle.distributed.fleet.meta_parallel.pp_utils.p2p_communication"
"""The module with the transfers of Fleet's pipeline."""

_MOST_NAMES = 10_000
"""Limit of memory, some 5 MB, if each call has another size."""

_PEER = {"send": "dst", "isend": "dst", "recv": "src", "irecv": "src"}

TASKS: list[type] = [core.task]
"""Classes of the tasks that calls return. A process group written in Python adds its own."""

_Function = Callable[..., Any]


class _Names(NamedTuple):
    """The names of the spans of a call, and of waiting for its task."""

    span: str
    wait: str


class _Spanned:
    """A wrapper that replaces a function and is equal to the function.

    Equality is needed by ``P2POp``: it compares the function that the training passes to it with
    ``paddle.distributed.isend``, which is a wrapper during a window. The training may have stored
    the function before the window.
    """

    __wrapped__: _Function

    def __init__(self, name: str, function: _Function, call: _Function) -> None:
        functools.update_wrapper(self, function)
        self.name = name
        self.signature = inspect.signature(function)
        self._call = call
        parameters = list(self.signature.parameters)
        self._arguments = [
            (parameters.index(parameter) if parameter in parameters else sys.maxsize, parameter)
            for parameter in (_DATA[name].partition(" ")[0], "group", _PEER.get(name, ""))
        ]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(self, args, kwargs)

    def key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what the names of a call depend on; None if that is more than one tensor."""
        num = len(args)
        (data, data_name), (group_index, group_name), (peer_index, peer_name) = self._arguments
        tensor: Any = args[data] if data < num else kwargs.get(data_name)
        group = args[group_index] if group_index < num else kwargs.get(group_name)
        peer = args[peer_index] if peer_index < num else kwargs.get(peer_name)
        if type(tensor) is not core.eager.Tensor:
            return None
        return self.__wrapped__, group, peer, dtype_key(tensor.dtype), *tensor.shape

    def __eq__(self, other: object) -> bool:
        return other is self or other is self.__wrapped__

    def __hash__(self) -> int:
        return hash(self.__wrapped__)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Function:
        return self.__wrapped__  # what the training keeps is to outlive the window

    __copy__ = functools.partialmethod(__deepcopy__, {})

    def __reduce__(self) -> str:
        name: str = self.__wrapped__.__qualname__  # in its module, as of a function
        return name


class Collectives(WindowObserver):
    """Wrappers of all communication."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._axes: dict[int, str | None] = {}
        self._names: dict[Any, _Names] = {}
        """The names of calls in this window, by `_Spanned.key` or `_method_key`. Making them takes
        15 us."""
        self._methods = Patches()
        self._functions = ModuleWrappers()
        self._add_functions()
        self._functions.search()
        self._groups: dict[int, Any] = {}
        self._tasks: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._nested = threading.local()
        self.num_calls = 0
        """How many operations have been recorded: each may have changed tensors."""

    def install(self) -> None:
        """Wrap the functions in all loaded modules, the process groups' methods, and ``task.wait``."""
        self._add_functions()
        self._functions.install()
        for kind in process_groups():
            self._methods.install(kind, "_start_coalescing", self._call_start)
            self._methods.install(kind, "_end_coalescing", self._call_end)
            for method, (op, index) in METHODS.items():
                for name in (method, f"{method}_on_calc_stream"):
                    self._methods.install(
                        kind, name, functools.partial(self._call_method, op, index)
                    )
        for task in TASKS:
            self._methods.install(task, "wait", self._call_wait)

    def _add_functions(self) -> None:
        for home in (dist, dist.stream, sys.modules.get(_PIPELINE)):
            for op in _DATA:
                function = getattr(home, op, None)
                if function is not None and function not in self._functions:
                    self._functions.add(function, _Spanned(op, function, self._call))

    def uninstall(self) -> None:
        """Restore functions and methods, except where other code has replaced a wrapper since.

        All loaded modules are searched, since a module that was imported in the window may hold a
        wrapper too.
        """
        self._functions.uninstall()
        self._methods.uninstall()
        self._end_group()
        self._groups.clear()
        self._tasks.clear()
        self._axes.clear()
        self._names.clear()

    def _call(self, op: _Spanned, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a wrapped function in a span; inside another communication span, add no span."""
        if getattr(self._nested, "inside", False):
            return op.__wrapped__(*args, **kwargs)
        try:
            key = op.key(args, kwargs)
            names = self._names.get(key)
        except Exception as error:  # a group or peer that cannot be hashed
            pass_interruption(error)
            key = names = None
        if names is None:
            names = self._keep_names(key, op.name, self._annotations(op, args, kwargs))
        return self._record(names, op.__wrapped__, args, kwargs)

    def _call_method(
        self, op: str, index: int, method: _Function, group: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Call a process group's method in a span; inside another communication span, add no span."""
        if getattr(self._nested, "inside", False):
            return method(group, *args, **kwargs)
        try:
            key = _method_key(op, index, method, group, args)
            names = self._names.get(key)
        except Exception as error:
            pass_interruption(error)
            key = names = None
        if names is None:
            annotations = self._method_annotations(op, index, method.__name__, group, args)
            names = self._keep_names(key, op, annotations)
        return self._record(names, method, (group, *args), kwargs)

    def _keep_names(self, key: Any, op: str, annotations: list[str]) -> _Names:
        """Return the names of a call's spans, and keep them for equal calls."""
        names = _names_of(op, annotations)
        if key is not None and annotations and len(self._names) < _MOST_NAMES:
            self._names[key] = names
        return names

    def _record(self, names: _Names, function: _Function, args: Any, kwargs: Any) -> Any:
        """Call a function in a span; remember the tasks that it returns, to name their wait spans."""
        self.num_calls += 1
        result = self._span(names.span, function, args, kwargs)
        for task in result if isinstance(result, list) else [result]:
            if isinstance(task, tuple(TASKS)):
                self._tasks[task] = names.wait
        return result

    def _annotations(
        self, op: _Spanned, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[str]:
        """Return ``["axis=dp", "group=0", ...]`` for a call; [] for arguments that the called function itself rejects."""
        try:
            call = op.signature.bind(*args, **kwargs)
            call.apply_defaults()
            arguments = call.arguments
            if op.name.startswith("batch"):
                return self._batch_annotations(arguments["p2p_op_list"])
            group = arguments["group"] or dist.get_group()
            peer = arguments.get(_PEER.get(op.name, ""))
            peers = group.ranks if peer is None else [peer]
            data = (arguments.get(name) for name in _DATA[op.name].split())
            tensors = _tensors(next((some for some in data if some is not None), None))
            return self._format_annotations(group, tensors, peers)
        except Exception:
            return []

    def _batch_annotations(self, transfers: Sequence[Any]) -> list[str]:
        """Return ``["axis=pp", ..., "peers=>1:4096,<3:4096"]`` for the transfers of a batch."""
        sizes = [_num_bytes([transfer.tensor]) // _num_sharers(transfer) for transfer in transfers]
        peers = [
            f"{'>' if 'send' in transfer.op.__name__ else '<'}{transfer.peer}:{size}"
            for transfer, size in zip(transfers, sizes)
        ]
        axes = {self._axis_of(transfer.group) for transfer in transfers}
        return _format(
            axis=axes.pop() if len(axes) == 1 else None,
            group=transfers[0].group.id,
            bytes=sum(sizes),
            dtype=_dtype(transfers[0].tensor),
            peers=",".join(peers),
        )

    def _method_annotations(
        self, op: str, index: int, name: str, process_group: Any, args: tuple[Any, ...]
    ) -> list[str]:
        """Return ``["axis=dp", "group=0", ...]`` for a method's call; empty for invalid arguments."""
        try:
            group = self._group_of(process_group)
            peers = [group.ranks[args[1]]] if op in _PEER else group.ranks
            sharers = args[2] if "partial" in name else 1
            tensors = _tensors(data_of(index, args))
            return self._format_annotations(group, tensors, peers, sharers)
        except Exception:
            return []

    def _group_of(self, process_group: Any) -> Any:
        if id(process_group) not in self._groups:
            self._groups = {
                id(group.process_group): group for group in collective._get_group_map().values()
            }
        return self._groups[id(process_group)]

    def _format_annotations(
        self, group: Any, tensors: list[Any], peers: Sequence[int], sharers: int = 1
    ) -> list[str]:
        return _format(
            axis=self._axis_of(group),
            group=group.id,
            bytes=_num_bytes(tensors) // sharers if tensors else None,
            dtype=_dtype(tensors[0]) if tensors else None,
            peers=",".join(map(str, peers)),
        )

    def _axis_of(self, group: Any) -> str | None:
        if group.id not in self._axes:
            self._axes[group.id] = self._topology.axis_of(group.ranks)
        return self._axes[group.id]

    def _call_start(self, start: _Function, process_group: Any, *args: Any) -> Any:
        """Start a group of calls, and its span; inside another communication span, no span."""
        if getattr(self._nested, "inside", False) or getattr(self._nested, "group", None):
            return start(process_group, *args)
        try:
            group = self._group_of(process_group)
            annotations = _format(axis=self._axis_of(group), group=group.id)
        except Exception:
            annotations = []
        text = f"[{' '.join(annotations)}]" if annotations else ""
        self._nested.group = open_span(f"coalesced{text}", "Communication")
        try:
            return start(process_group, *args)
        except BaseException:
            self._end_group()
            raise

    def _call_end(self, end: _Function, process_group: Any, *args: Any) -> Any:
        """End a group of calls, which launches them, and then its span."""
        try:
            return end(process_group, *args)
        finally:
            if not getattr(self._nested, "inside", False):
                self._end_group()

    def _end_group(self) -> None:
        """End this thread's span around a group of calls, if one is open."""
        around = getattr(self._nested, "group", None)
        self._nested.group = None
        if around is not None:
            around.end()

    def _call_wait(self, wait: _Function, task: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a task's ``wait`` in a span: ``wait[op=all_reduce axis=dp ...]``.

        The span is named ``wait`` if the operation that returned the task was not recorded. Inside
        another communication span, ``wait`` gets no span.
        """
        if getattr(self._nested, "inside", False):
            return wait(task, *args, **kwargs)
        return self._span(self._tasks.pop(task, "wait"), wait, (task, *args), kwargs)

    def _span(self, name: str, function: _Function, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Call ``function`` in a span; communication inside it gets no span."""
        self._nested.inside = True
        around = open_span(name, "Communication")
        try:
            return function(*args, **kwargs)
        finally:
            around.end()
            self._nested.inside = False


def _names_of(op: str, annotations: list[str]) -> _Names:
    """Return the names of a call's spans."""
    text = " ".join(annotations)
    return _Names(f"{op}[{text}]" if text else op, f"wait[{f'op={op} {text}'.rstrip()}]")


def _method_key(op: str, index: int, method: _Function, group: Any, args: tuple[Any, ...]) -> Any:
    """Return what the names of a method's call depend on; None if that is more than one tensor."""
    tensor = data_of(index, args)
    if type(tensor) is not core.eager.Tensor:
        return None
    # The peer, and for a part the number of sharers.
    others = args[1:3] if op in _PEER else args[2:3] if "partial" in method.__name__ else ()
    return method, group, others, dtype_key(tensor.dtype), *tensor.shape


def data_of(index: int, args: Sequence[Any]) -> Any:
    """Return the data of a method's call; behind a list of outputs, the tensor: ``all_gather(outputs, tensor)``."""
    data, *after = args[index : index + 2]
    is_output = isinstance(data, list) and bool(after) and isinstance(after[0], core.eager.Tensor)
    return after[0] if is_output else data


def process_groups() -> list[type]:
    """Return the classes of process groups in this build of Paddle, such as ``ProcessGroupGloo``."""
    return [
        kind
        for name, kind in vars(core).items()
        if name.startswith("ProcessGroup") and isinstance(kind, type) and hasattr(kind, "barrier")
    ]


def _format(**annotations: Any) -> list[str]:
    """Return ``["axis=dp", "group=0"]`` for the values that are not None."""
    return [f"{key}={value}" for key, value in annotations.items() if value is not None]


def _num_bytes(tensors: Sequence[Any]) -> int:
    return int(sum(tensor.size * tensor.element_size() for tensor in tensors))


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).rpartition(".")[2]


def _num_sharers(transfer: Any) -> int:
    """Return the number of ranks that share the tensor of a transfer, as Fleet's pipeline splits it among them."""
    pipeline = sys.modules.get(_PIPELINE)
    is_shared = getattr(pipeline, "_is_valid_send_recv_partial", None)
    num_ranks = getattr(transfer, "nranks", 1)
    return int(num_ranks) if is_shared and is_shared(transfer.tensor, num_ranks) else 1


def _tensors(data: Any) -> list[Any]:
    """Return a flat list of the tensors in ``data``; empty for None."""
    if isinstance(data, (list, tuple)):
        return [tensor for item in data for tensor in _tensors(getattr(item, "tensor", item))]
    return [] if data is None else [data]
