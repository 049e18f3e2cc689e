"""Triton's gRPC API for clients."""
