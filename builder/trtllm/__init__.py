"""Programs of TensorRT-LLM: their flags, what a config asks of them, and what old configs called them."""
