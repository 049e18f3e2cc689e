"""TensorRT-LLM's programs: their flags, what a config asks of them, and what old configs called them."""
