"""What the usage service counts."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

EVENT_LAG = Histogram(
    "tokenloom_usage_event_lag_seconds",
    "From the time an event tells of to its row's commit.",
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 3600),
)
EVENTS = Counter("tokenloom_usage_events", "Events recorded, repeated ones too.")
ROWS_WRITTEN = Counter("tokenloom_usage_rows_written", "Ledger rows created or changed.")
AUDITED = Counter("tokenloom_usage_audited", "Events that went to the audit table.", ["reason"])
UNRESOLVED = Gauge("tokenloom_usage_unresolved_rows", "Requests opened and, the window past, not closed.")
CONSUMER_PENDING = Gauge("tokenloom_usage_consumer_pending", "Events stored and not yet in the ledger.")
