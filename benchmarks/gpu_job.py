"""Write synthetic traces of a GPU training job of any length, with Paddle's own code.

A step of this GPT has about 69,000 trace events, 20 MB of Paddle's JSON: nested layers, operators
with sub-microsecond events inside, launches and their kernels, collectives on a separate stream,
allocations, and runtime calls without device work. All steps have the same events at different
times. Paddle loads the protobuf and saves it as JSON, so the JSON is in Paddle's dialect and the
``.pb`` beside it holds the same events.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

from tests.fixtures.timeline import (
    CPU,
    GPU0,
    Device,
    Inside,
    Launch,
    Memory,
    Span,
    Thread,
    kernel,
    memcpy,
    memset,
    write,
)

VERSION = 1
"""Part of the file names. Increase it when the events change, so that old files are not reused."""
STEP_MB = 20
"""JSON of one step in megabytes of 10**6 bytes, within 5%."""
NUM_LAYERS = 38
NUM_MICRO_BATCHES = 2
MAIN, LOADER, PINNER = 8801, 8844, 8845
COMPUTE, COMMUNICATION = 7, 20
_BASE = 0x7F00_0000_0000
_CHUNK_BYTES, _TENSOR_BYTES = 1 << 30, 1 << 21

_GEMM = "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_128x256_32x3_tn>(Params)"
_ELEMENTWISE = "void phi::funcs::VectorizedElementwiseKernel<phi::dtype::bfloat16, {}, 2, 1, 8>"
_NCCL = "ncclDevKernel_{}(ncclDevKernelArgsStorage<4096ul>)"

Kernels = Sequence[tuple[str, int]]
"""Name and usual nanoseconds of the kernels that an operator launches."""
_MATMUL: Kernels = [(_GEMM, 42_000)]
_ADD: Kernels = [(_ELEMENTWISE.format("phi::funcs::AddFunctor<phi::dtype::bfloat16>"), 9_000)]
_GELU: Kernels = [(_ELEMENTWISE.format("phi::GeluWithApproximateFunctor"), 11_000)]
_NORM: Kernels = [("void phi::funcs::LayerNormForward<phi::dtype::bfloat16, float>(long)", 11_000)]
_DROPOUT: Kernels = [("void phi::VectorizedRandomGenerator<phi::dtype::bfloat16>(ulong)", 7_000)]
_COPY: Kernels = [("void phi::funcs::TilingSwapDim1And2<phi::dtype::bfloat16, 256>(int)", 8_000)]
_FLASH: Kernels = [
    ("void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 64, 64, 4>, true, true>(params)", 71_000),
    ("void phi::SimpleScaleWithMaskKernel<long>(long, float*, float)", 3_000),
]
_SUM: Kernels = [
    ("void phi::funcs::ReduceHigherDimKernel<float, phi::kps::AddFunctor<float> >(int)", 12_000),
    ("void cub::DeviceReduceSingleTileKernel<cub::DeviceReducePolicy, float*, int>(int)", 3_000),
]
_ADAMW: Kernels = [("void phi::AdamWKernelMT<phi::dtype::bfloat16, float>(float, long)", 14_000)]

_ATTENTION: Sequence[tuple[str, Kernels]] = [
    ("reshape", []),
    ("transpose", _COPY),
    ("split", _COPY),
    ("flash_attn", _FLASH),
    ("transpose", _COPY),
    ("reshape", []),
]
_LAYER: Sequence[tuple[str, Sequence[tuple[str, Kernels]]]] = [
    ("LayerNorm", [("layer_norm", _NORM)]),
    ("ColumnParallelLinear", [("matmul", _MATMUL), ("add", _ADD)]),
    ("FusedAttention", _ATTENTION),
    ("RowParallelLinear", [("matmul", _MATMUL), ("add", _ADD)]),
    ("Dropout", [("dropout", _DROPOUT), ("add", _ADD)]),
    ("LayerNorm", [("layer_norm", _NORM)]),
    ("ColumnParallelLinear", [("matmul", _MATMUL), ("add", _ADD)]),
    ("GELU", [("gelu", _GELU)]),
    ("RowParallelLinear", [("matmul", _MATMUL), ("add", _ADD)]),
    ("Dropout", [("dropout", _DROPOUT), ("add", _ADD)]),
]
"""Sub-layer of a Transformer layer -> its operators in order."""
_PARAMETERS = 12
"""Parameters of a layer."""
_EMPTY_CALLS = (("cudaStreamIsCapturing", 300), ("cudaEventQuery", 700), ("cudaEventRecord", 500))
"""Runtime calls around a kernel's launch that start nothing on the device."""


def files(folder: Path, size_mb: int) -> tuple[Path, Path]:
    """Return the ``.json`` and the ``.pb`` of a trace of ``size_mb``; write them if missing.

    A separate process writes them, so that its memory is freed afterwards.

    Raises:
        ValueError: not a multiple of `STEP_MB`.
    """
    num_steps, rest = divmod(size_mb, STEP_MB)
    if rest or num_steps < 1:
        raise ValueError(f"{size_mb} MB: expected a multiple of a step's {STEP_MB}")
    json = folder / f"gpu_job_v{VERSION}_{size_mb}MB.json"
    pb = json.with_suffix(".pb")
    if not json.exists():
        arguments = [str(json), str(pb), str(num_steps)]
        subprocess.run([sys.executable, "-m", __name__, *arguments], check=True)
    return json, pb


def make(json: Path, pb: Path, num_steps: int, num_layers: int = NUM_LAYERS) -> None:
    """Write the ``.pb``, then atomically the ``.json`` as Paddle writes it."""
    from tests.oracles.paddle_tables import load_result

    hidden = json.with_name(f".writing_{json.name}")
    write(pb, *threads(num_steps, num_layers), devices=(0,))
    load_result(pb).save(str(hidden), "json")
    hidden.replace(json)


def threads(num_steps: int, num_layers: int = NUM_LAYERS) -> tuple[Thread, ...]:
    """Return the threads: the training loop, one that collates, and one that pins memory."""
    job = _Job(num_layers)
    for number in range(num_steps):
        job.step(number)
    steps = job.done()
    return (
        Thread(MAIN, "MainThread", steps),
        Thread(LOADER, "loader", tuple(_beside(steps, "collate", ("read", "tokenize", "stack")))),
        Thread(PINNER, "pin_memory", tuple(_beside(steps, "pin", ("cudaHostAlloc", "copy")))),
    )


class _Job:
    """The state of the simulated job: the loop's thread, the device's streams and memory.

    ::

        main      ProfileStep(Dataloader, (Forward, Backward) x micro-batches, Optimization)
        stream 7     memcpy  kernels, each after its launch and after the kernel before it
        stream 20                 nccl, in parallel to the backward pass
    """

    def __init__(self, num_layers: int) -> None:
        self._num_layers = num_layers
        self._random = Random(num_layers)
        self._now = 0
        self._open: list[list[Inside]] = [[]]
        self._stream_end = {COMPUTE: 0, COMMUNICATION: 0}
        self._held: list[Memory] = []
        self._freed: list[int] = []

    def done(self) -> tuple[Span, ...]:
        """Return the simulated steps."""
        (steps,) = self._open
        return tuple(item for item in steps if isinstance(item, Span))

    def step(self, number: int) -> None:
        """Simulate a step."""
        with self._span("ProfileStep", f"ProfileStep#{number}"):
            self._memory("ReservedAllocate", _CHUNK_BYTES, _BASE)
            with self._span("Dataloader", "DataLoader"):
                for name in ("tokens", "position_ids", "labels", "loss_mask"):
                    with self._span("PythonUserDefined", f"next {name}"):
                        self._work(30_000)
                    self._operator("memcpy_h2d", [("HtoD", 5_000)])
            for _ in range(NUM_MICRO_BATCHES):
                self._forward()
                self._backward()
            self._optimization()
            with self._span("UserDefined", "loss to host"):
                self._launch("cudaMemcpyAsync", "DtoH", 2_000)
                self._now = max(self._now, *self._stream_end.values())  # it waits for the device
                self._launch("cudaStreamSynchronize")
            self._memory("ReservedFree", -_CHUNK_BYTES, _BASE)

    def _forward(self) -> None:
        with self._span("Forward", "GPTForPretraining"), self._span("Forward", "GPTModel"):
            with self._span("Forward", "VocabParallelEmbedding"):
                self._operator("embedding", _COPY, holds=True)
            for _ in range(self._num_layers):
                with self._span("Forward", "TransformerDecoderLayer"):
                    for layer, operators in _LAYER:
                        with self._span("Forward", layer):
                            for name, kernels in operators:
                                with self._span("UserDefined", f"{name} pybind_imperative_func"):
                                    self._operator(name, kernels, holds=True)
                        if layer == "RowParallelLinear":
                            self._collective("mp_allreduce", "AllReduce_Sum_bf16_RING_LL", 20_000)
        with self._span("Forward", "GPTPretrainingCriterion"):
            self._operator("cross_entropy_with_softmax", _SUM, holds=True)

    def _backward(self) -> None:
        with self._span("Backward", "Gradient Backward"):
            self._gradient("cross_entropy_with_softmax", _SUM)
            for _ in range(self._num_layers):
                for layer, operators in reversed(_LAYER):
                    for name, kernels in reversed(operators):
                        self._gradient(name, [*kernels, *kernels] if name == "matmul" else kernels)
                    if layer == "ColumnParallelLinear":
                        self._collective("mp_allreduce", "AllReduce_Sum_bf16_RING_LL", 20_000)
                self._collective("all_reduce", "AllReduce_Sum_f32_TREE_LL", 150_000)
            self._gradient("embedding", [("memset", 4_000), *_COPY])

    def _gradient(self, name: str, kernels: Kernels) -> None:
        node = "".join(part.capitalize() for part in name.split("_")) + "GradNode"
        with self._span("Operator", f"Global_{node}"):
            with self._span("OperatorInner", f"Local_{node}"):
                self._operator(f"{name}_grad", kernels)
            if self._held:
                held = self._held.pop()
                self._freed.append(held.addr)
                self._memory("Free", -held.increase, held.addr)

    def _optimization(self) -> None:
        with self._span("PythonUserDefined", "clip_grad_by_global_norm"):
            self._operator("squared_l2_norm", _SUM)
        with self._span("Optimization", "Optimization Step"):
            for _ in range(self._num_layers * _PARAMETERS):
                self._operator("adamw", _ADAMW)

    def _operator(self, name: str, kernels: Kernels, *, holds: bool = False) -> None:
        with self._span("Operator", f"{name} dygraph"):
            with self._span("OperatorInner", f"{name} infer_meta"):
                self._work(300)
            with self._span("OperatorInner", f"{name} prepare_data"):
                self._work(60)
            with self._span("OperatorInner", f"{name} compute"):
                if holds:
                    # The address freed last is reused first.
                    addr = _BASE + _TENSOR_BYTES * len(self._held)
                    addr = self._freed.pop() if self._freed else addr
                    self._held.append(self._memory("Allocate", _TENSOR_BYTES, addr))
                for device, usual_ns in kernels:
                    for call, call_ns in _EMPTY_CALLS:
                        self._launch(call, work_ns=call_ns)
                    call = {"memset": "cudaMemsetAsync", "HtoD": "cudaMemcpyAsync"}.get(device)
                    self._launch(call or "cudaLaunchKernel", device, usual_ns)
            with self._span("OperatorInner", f"{name} node_creation"):
                self._work(400)

    def _collective(self, name: str, kind: str, usual_ns: int) -> None:
        with self._span("Communication", name):
            self._launch("cudaStreamWaitEvent")
            self._launch("cudaLaunchKernelExC", _NCCL.format(kind), usual_ns, stream=COMMUNICATION)

    @contextlib.contextmanager
    def _span(self, category: str, name: str) -> Iterator[None]:
        start = self._now
        self._work(150)
        self._open.append([])
        yield
        self._work(250)
        inside = tuple(self._open.pop())
        self._open[-1].append(Span(category, name, start, self._now, inside))

    def _work(self, usual_ns: int) -> None:
        self._now += self._about(usual_ns)

    def _about(self, usual_ns: int) -> int:
        return int(usual_ns * self._random.uniform(0.7, 1.4))

    def _launch(
        self,
        call: str,
        device: str | None = None,
        usual_ns: int = 0,
        *,
        stream: int = COMPUTE,
        work_ns: int = 2_500,
    ) -> None:
        start = self._now
        self._work(work_ns)
        started: tuple[Device, ...] = ()
        if device is not None:
            begin = max(self._now + 1_200, self._stream_end[stream])
            end = begin + self._about(usual_ns)
            self._stream_end[stream] = end + 900
            if device == "memset":
                started = (memset(begin, end, 1 << 20, stream=stream),)
            elif device in ("HtoD", "DtoH"):
                started = (memcpy(begin, end, 32_768, stream=stream, kind=device),)
            else:
                started = (kernel(device, begin, end, stream=stream),)
        self._open[-1].append(Launch(call, start, self._now, started))
        self._work(200)

    def _memory(self, kind: str, num_bytes: int, addr: int) -> Memory:
        event = Memory(kind, self._now, num_bytes, GPU0, addr)
        self._open[-1].append(event)
        self._work(100)
        return event


def _beside(steps: Sequence[Span], name: str, parts: Sequence[str]) -> Iterator[Span]:
    """Yield a worker's span for each step: half its length, with consecutive ``parts`` inside."""
    for step in steps:
        length = (step.end - step.start) // (2 * len(parts))
        starts = [step.start + 5_000 + length * index for index in range(len(parts))]
        inside = [
            Span("PythonUserDefined", part, start, start + length - 1_000).around(
                Memory("Allocate", start + 10, 65_536, CPU),
                Memory("Free", start + 20, -65_536, CPU),
            )
            for part, start in zip(parts, starts)
        ]
        yield Span(
            "PythonUserDefined", name, step.start + 4_000, starts[-1] + length, tuple(inside)
        )


if __name__ == "__main__":
    make(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:]))
