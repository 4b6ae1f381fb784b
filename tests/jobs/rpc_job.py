"""``paddle.distributed.rpc`` between processes: ``rpc_job.py RANK ENDPOINT SIZE [blocked]``.

Rank 0 attaches ppprof, calls functions on the others before, in and after a window, and prints the
results as JSON. It knows nothing of ppprof's ways to record a call. A blocked process cannot import
ppprof. Without a driver, the GPU wheel's profiler refuses to record; `SmallRecorder` stands in.
"""

import json
import sys
import time

import paddle
from paddle.distributed import rpc

paddle.set_device("cpu")
NAP_S = 0.05


def relu_of(values, scale=1.0):
    time.sleep(NAP_S)
    return (paddle.nn.functional.relu(paddle.to_tensor(values)) * scale).numpy().tolist()


def worker_name():
    return rpc.get_current_worker_info().name


def train(workers):
    import ppprof
    from ppprof.capture.recording import recorder
    from tests.capture.small_session import SmallRecorder

    recorder.Recorder = lambda *_, **__: SmallRecorder("")
    results = []
    block = {"enable": True, "profiler_log": "log", "scheduler": [1, 3], "formats": ["json", "pb"]}
    with ppprof.attach(block) as prof:
        for _ in range(4):
            paddle.tanh(paddle.ones([3]))
            for worker in workers:
                results.append(rpc.rpc_sync(worker, relu_of, args=([-1.0, 2.0],)))
                future = rpc.rpc_async(worker, relu_of, args=([3.0],), kwargs={"scale": 2.0})
                results += [future.wait(), rpc.rpc_sync(worker, worker_name)]
            prof.step()
    print(json.dumps(results))


def main(rank, endpoint, size):
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=size, master_endpoint=endpoint)
    if rank == 0:
        train([f"worker{other}" for other in range(1, size)])
    rpc.shutdown()


if __name__ == "__main__":
    if "blocked" in sys.argv:
        sys.modules["ppprof"] = None
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
