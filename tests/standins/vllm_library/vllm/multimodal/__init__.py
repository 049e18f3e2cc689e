"""Names alone: the stand-in's models take no images, which ``test_real_core`` tests with vLLM's own."""

MULTIMODAL_REGISTRY = object()
