"""The process in front of Triton: its HTTP, gRPC and metrics ports, for clients that are not trusted.

Triton itself listens on loopback. The front bounds what it passes on, speaks gRPC to Triton (whose HTTP
server can be crashed and can lose the ends of streams), and cancels for clients that have disconnected.
"""
