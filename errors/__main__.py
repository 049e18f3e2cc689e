"""Print the error table: ``python -m errors``."""

from errors import markdown_table

print(markdown_table())
