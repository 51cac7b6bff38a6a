"""The forward on a GPU: Triton kernels around cuBLAS products, and CUDA graphs of its decode steps."""
