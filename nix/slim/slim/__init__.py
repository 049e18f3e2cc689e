"""Keeps, in every shared library of a tree, only the device code that one GPU architecture runs.

CUDA libraries carry each kernel once per architecture, in containers (fatbins) of entries. For a runner image
that serves one architecture all but one entry of a container are dead weight. `slim --sm 86 DIR` keeps the
best entry of each container, closes the gap inside the container, shrinks the container's size field and
leaves zeros behind: nothing in the library moves, and zeros compress to nothing.

FORMAT.md beside this package describes the formats, the sources of that knowledge and what was observed.
Standard library only: it runs inside a Nix build with nothing but Python.
"""
