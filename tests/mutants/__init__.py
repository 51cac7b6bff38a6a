"""Planted bugs: each patch breaks one promise, and something must catch it."""
