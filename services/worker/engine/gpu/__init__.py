"""The forward on a GPU: Triton kernels around cuBLAS products, and CUDA graphs of its decode steps."""

from __future__ import annotations

from triton import __version__ as VERSION  # noqa: N812 - it is a constant

from services.worker.engine.gpu.decoder import GpuDecoder
from services.worker.engine.gpu.pool import GpuPool
from services.worker.engine.gpu.sampler import GpuSampler

__all__ = ["VERSION", "GpuDecoder", "GpuPool", "GpuSampler"]
