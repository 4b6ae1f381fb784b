"""Type aliases of NumPy arrays, named by the type of their items.

They are what ``numpy.typing.NDArray`` stands for, without the import: it writes docstrings.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Bool = np.ndarray[Any, np.dtype[np.bool_]]
Float64 = np.ndarray[Any, np.dtype[np.float64]]
Int32 = np.ndarray[Any, np.dtype[np.int32]]
Int64 = np.ndarray[Any, np.dtype[np.int64]]
UInt64 = np.ndarray[Any, np.dtype[np.uint64]]
