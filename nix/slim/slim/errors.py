"""What stops a run. Raised before the first library is replaced, it means that nothing was changed."""

from __future__ import annotations


class SlimError(Exception):
    """A sentence for the person who ran the command."""


class NotUnderstood(SlimError):
    """A library holds something this program does not know; it refuses rather than guess."""
