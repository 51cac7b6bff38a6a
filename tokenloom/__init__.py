"""What a caller imports: stubs, the SDK and the command."""

__version__ = "0.1.0"
