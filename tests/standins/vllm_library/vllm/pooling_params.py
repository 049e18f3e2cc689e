"""Pooling parameters: the fields that the adapter sets."""

from __future__ import annotations

import msgspec


class PoolingParams(msgspec.Struct, omit_defaults=True, array_like=True):
    use_activation: bool | None = None
    task: str | None = None
    skip_reading_prefix_cache: bool | None = None
