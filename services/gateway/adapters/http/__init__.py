"""The gateway's HTTP faces: native, OpenAI-compatible, and what operators read."""
