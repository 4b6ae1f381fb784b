"""Profile functions called on other processes: the public names of `ppprof.capture.profiled_calls`.

::

    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        future = pool.submit(ppprof.remote.profiled(encode), batch)
        codes = ppprof.remote.result(future.result())

        codes = ppprof.remote.submit(pool, encode, batch).result()  # both lines above in one

Calls of ``paddle.distributed.rpc`` need nothing of this: they are recorded while a window is open.
"""

from ppprof.capture.profiled_calls import RemoteResult, profiled, result, submit

Answer = RemoteResult
"""The earlier name of `RemoteResult`."""

__all__ = ["Answer", "RemoteResult", "profiled", "result", "submit"]
