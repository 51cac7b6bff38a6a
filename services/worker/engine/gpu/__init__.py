"""The forward on a GPU: Triton kernels around cuBLAS products, and CUDA graphs of its decode steps."""

from __future__ import annotations

import triton

from services.worker.engine.gpu.decoder import GpuDecoder
from services.worker.engine.gpu.graphs import CudaCapture
from services.worker.engine.gpu.pool import GpuPool
from services.worker.engine.gpu.sampler import GpuSampler
from services.worker.engine.gpu.warming import warm

__all__ = ["INTERPRETED", "VERSION", "CudaCapture", "GpuDecoder", "GpuPool", "GpuSampler", "warm"]

VERSION: str = triton.__version__
# Whether the kernels run on a CPU, for tests: it takes TRITON_INTERPRET=1 from the start.
INTERPRETED: bool = triton.knobs.runtime.interpret
