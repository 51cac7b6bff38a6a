"""The engine: weights and KV pages. The only place that imports torch."""
