"""What touches the world: gRPC, NATS, files, databases."""
