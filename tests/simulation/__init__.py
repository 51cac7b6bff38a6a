"""Deterministic simulation: the production state machines on a virtual clock and a simulated network."""
