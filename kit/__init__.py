"""What a service stands on: config, logging, metrics, gRPC, bus, outbox, lifecycle. No domain logic."""
