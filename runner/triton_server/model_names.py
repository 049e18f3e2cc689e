"""Names of the models in our Triton."""

SLOT = "tensorrt_llm"
SLOT_PATH = f"/v2/models/{SLOT}"
"""Path of the slot in Triton's HTTP API."""
ENSEMBLE = "ensemble"
BLS = "tensorrt_llm_bls"
"""Another name of the ensemble. In NVIDIA's repository it is a program with nearly the same tensors."""
MODELS = ("preprocessing", SLOT, "postprocessing", ENSEMBLE)
"""Models that have a template."""
