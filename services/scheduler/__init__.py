"""Lanes: admission, continuous batching, KV page tables, prefix cache, dispatch."""
