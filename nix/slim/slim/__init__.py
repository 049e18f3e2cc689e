"""Keep, in every shared library of a tree, only the device code that one GPU architecture runs.

CUDA libraries carry each kernel once per architecture, in containers (fatbins) of entries. The best entry of
each container stays; in place of the others there are zeros, which compress to nothing.

FORMAT.md beside this package describes the formats, the sources of that knowledge and what was observed.
Standard library only: it runs inside a Nix build with nothing but Python.
"""
