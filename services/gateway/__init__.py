"""Edge: auth, tokenizing, text, streams in and out, routing; owner of requests."""
