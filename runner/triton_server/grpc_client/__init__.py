"""Client of Triton's gRPC API, of the front and of what asks an external Triton."""
