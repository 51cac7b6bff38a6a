"""What a caller imports: stubs, the SDK and the command."""
