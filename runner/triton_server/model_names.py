"""Names of the models in our Triton."""

SLOT = "tensorrt_llm"
SLOT_PATH = f"/v2/models/{SLOT}"
"""In Triton's HTTP API."""
ENSEMBLE = "ensemble"
BLS = "tensorrt_llm_bls"
"""In NVIDIA's repository a program with nearly the ensemble's tensors; here the ensemble by another name."""
MODELS = ("preprocessing", SLOT, "postprocessing", ENSEMBLE)
"""Those that have a template."""
