"""Sizes from a model's ``config.json`` alone: weights, KV cache, what a build needs."""
