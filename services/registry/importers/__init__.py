"""Turn foreign model files into artifacts: one module reads each kind, `assemble` seals the result."""
