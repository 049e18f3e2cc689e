"""The runner's servers, for tests of who asks them."""

from tests.runner.conftest import cog, paced, temporary_folder

__all__ = ["cog", "paced", "temporary_folder"]
