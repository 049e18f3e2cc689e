"""What runs a model's own code gets no variable that is a secret, and all others."""

from __future__ import annotations

from engine.redact import without_secret_variables

SECRETS = (
    "HF_TOKEN HUGGING_FACE_HUB_TOKEN COG_UPLOAD_URL COG_WEIGHTS AWS_SECRET_ACCESS_KEY AZURE_CLIENT_SECRET "
    "GOOGLE_APPLICATION_CREDENTIALS API_KEYS OPENAI_API_KEYS REPLICATE_API_TOKEN DB_PASSWORD"
)
OTHERS = "PATH LD_LIBRARY_PATH CUDA_VISIBLE_DEVICES TOKENIZERS_PARALLELISM HF_HUB_OFFLINE VLLM_CACHE_ROOT"


def test_secrets_stay_here_and_the_rest_goes_along() -> None:
    environment = dict.fromkeys(f"{SECRETS} {OTHERS}".split(), "x")
    assert set(without_secret_variables(environment)) == set(OTHERS.split())
