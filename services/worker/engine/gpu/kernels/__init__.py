"""The Triton kernels alone; how each is launched is said one folder up."""
