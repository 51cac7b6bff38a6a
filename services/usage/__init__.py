"""Tenants, API keys and the exactly-once ledger."""
