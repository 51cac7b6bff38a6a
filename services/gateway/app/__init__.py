"""The gateway's use cases: one owner per request, shared by every face."""
