"""Docstrings that are no sentences are found."""

from tools.check_docstrings import fragments

SOURCE = '''
LIMIT = 1
"""In bytes."""

class Reader:
    """Reads bytes."""

    size: int
    """Size in bytes."""

    def is_open(self) -> bool:
        """Whether it is open."""
        self.at = 0
        """By whom?"""

    async def read(self) -> None:
        """Wait."""

    def count(self) -> int:
        """The number of lines."""

    @property
    def first(self) -> str:
        """The first line."""

class Lines:
    """Lines read."""
'''


def test_planted_fragments_are_found_and_sentences_are_not() -> None:
    expected = [(3, "In"), (6, "Reads"), (12, "Whether"), (14, "By")]
    assert sorted(fragments(SOURCE)) == [*expected, (20, "The")]
    assert sorted(fragments(SOURCE, of_tests=True)) == expected
