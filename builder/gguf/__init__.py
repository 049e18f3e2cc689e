"""Models in GGUF files: read, checked, and converted to the files that transformers writes."""
