"""The CPU engine in C++: found or built as a shared library, and driven through ctypes."""
