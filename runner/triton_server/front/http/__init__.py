"""Triton's HTTP API for clients."""
