"""Note communication operations by the compiled core: ``flight.c``, which calls Python's own functions."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, cast

from ppprof.trace.fastpath import core

_FUNCTIONS = (
    "PyEval_GetFrame",
    "PyFrame_GetBack",
    "PyFrame_GetCode",
    "PyFrame_GetLineNumber",
    "PyObject_GetAttr",
    "PyObject_GetItem",
    "PyObject_Type",
    "PySequence_Size",
    "PySequence_GetItem",
    "PyTuple_GetItem",
    "PyLong_AsLongLong",
    "PyLong_FromLongLong",
    "PyObject_Call",
    "PyObject_CallFunctionObjArgs",
    "PyErr_Occurred",
    "PyErr_Clear",
    "Py_IncRef",
    "Py_DecRef",
    "PyThread_get_thread_ident",
    "PyCFunction_NewEx",
)
"""Functions of Python that ``flight.c`` calls, in the order of its ``python``."""
_NAMES = ("shape", "dtype", "f_locals", "self")
_bound = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(
    ("PyInstanceMethod_New", ctypes.pythonapi)
)
"""Returns a function as a method: unlike others, a function of C gets no ``self``."""
_kept: list[Any] = []
"""What ``flight.c`` refers to: functions that callers still hold may run at any time."""


class FlightCore:
    """The functions of ``flight.c``, which note in one ring at a time.

    Args:
        address: of the ring in memory.
        answer: called with the number of a question, and with what it is about; returns a number from 0,
            or -1 if the operation cannot be noted.
        tensors: the types of tensors whose shape and dtype are read.
        task: the type of what operations return that go on.

    Raises:
        AttributeError: this Python lacks one of the functions.
        LookupError: there is no compiled core.
    """

    def __init__(
        self, address: int, answer: Callable[..., int], tensors: tuple[type, type], task: type
    ) -> None:
        library = core.library()
        if library is None:
            raise LookupError("no compiled core")

        def function(name: str, result: Any, *arguments: Any) -> Any:
            # Not by `ctypes.CDLL`, which lets other threads run meanwhile.
            return ctypes.PYFUNCTYPE(result, *arguments)((f"ppprof_flight_{name}", library))

        number, pointer, value = ctypes.c_int64, ctypes.c_void_p, ctypes.py_object
        self.close = function("close", number)
        self.forget = function("forget", number, number)
        self.spent_ns = function("spent", number)
        self._method = function(
            *(
                "method",
                value,
                number,
                ctypes.c_char_p,
                value,
                number,
                number,
                number,
                number,
                number,
            )
        )
        self._num_methods = 0
        functions = [ctypes.cast(getattr(ctypes.pythonapi, name), pointer) for name in _FUNCTIONS]
        objects: list[Any] = [answer, *tensors, task, *_NAMES]
        _kept[:] = objects
        function("open", number, pointer, pointer, pointer)(
            (pointer * len(functions))(*(each.value for each in functions)),
            (value * len(objects))(*objects),
            address,
        )
        self.spent_ns()

    def noted(
        self,
        method: Callable[..., Any],
        name: int,
        index: int | None,
        way: int,
        peer_index: int,
        sharers: int | None,
    ) -> Callable[..., Any]:
        """Return a method of a process group that calls ``method`` between two notes.

        Args:
            method: as the class holds it.
            name: number of the text for the operation.
            index: of the argument with the data; None without data.
            way: 1 if an argument is a root, 2 if it is who receives, 3 if it is who sends; else 0.
            peer_index: index of that argument.
            sharers: index of the argument with the number of ranks that share the data; None without.
        """
        indices = (-1 if each is None else each for each in (index, sharers))
        return self._wrapped(method, name, way, peer_index, *indices)

    def noted_wait(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return a task's ``wait`` that notes when it begins and ends."""
        return self._wrapped(method, -1, 0, 0, 0, 0)

    def _wrapped(self, method: Any, *values: int) -> Callable[..., Any]:
        number, self._num_methods = self._num_methods, self._num_methods + 1
        original = getattr(method, "__func__", method)
        wrapper = _bound(self._method(number, method.__name__.encode(), original, *values))
        return cast("Callable[..., Any]", wrapper)
