"""`tokenloom up`: the whole platform as processes of one host, started, watched and drained together."""
