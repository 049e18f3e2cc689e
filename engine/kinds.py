"""The table of engine kinds. A new kind is one row here and one folder with its adapter.

Every other module asks this table and compares no kind's name. What a kind needs in code is in its adapter, a
module that is imported only where such an engine runs:

    load(engine_dir, sink, options) -> Engine    load the engine; see runner.engines.protocol.adapter
    prepare(options) -> None                     with ``prepares``: begin without the engine's files
    num_ranks(engine_dir) -> int                 with ``has_ranks``: how many processes mpirun starts
    follow(engine_dir, options) -> None          with ``has_ranks``: work as a rank that does not lead
    join(engine_dir, options, on_ready, broken)  of ``follower``: hold a node's ranks

A builder module has ``KEYS``, the build config's keys for its kind, and ``Plan``, a builder.steps.EnginePlan.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from errors.settings import InvalidSetting

Capability = (
    Literal[
        "log_probs", "min_p", "logit_bias", "lora_name", "cache_salt", "priority", "guides", "chat_guides"
    ]
    | Literal[
        "guided_min_length", "max_queue_size", "iteration_metrics", "load_adapter", "sleep", "kv_events"
    ]
    | Literal["images"]
)
"""``guides``: if its configuration and its engine.tar allow it; see ``Ready.guide_types``.
``chat_guides``: guides of the calls and the reasoning in an answer (``ChatForm``).
``priority``: as for guides; see ``Ready.takes_priority``.
``guided_min_length``: min_length beside a guide. Other kinds have no token left where the guide requires the
end and min_length forbids it.
``max_queue_size``: refuses requests above the server configuration's limit by itself.
``iteration_metrics``: reports NVIDIA's metrics of the engine's iterations.
``load_adapter``, ``sleep``: takes such orders while it serves, if its engine.tar allows it; see ``Ready``.
``kv_events``: publishes events of its KV cache (KV_EVENTS).
``images``: takes images in messages, if its model does; see ``Ready.max_images``."""
ENGINE_TENSORS = (
    *("draft_input_ids", "draft_logits", "draft_acceptance_threshold", "embedding_bias"),
    *("prompt_embedding_table", "prompt_table_extra_ids", "lora_weights", "lora_config"),
)
"""Inputs of the slot that are passed to the engine unchanged."""

DEFAULT_ENVIRONMENT = ".venv-engine"
"""Environment of engines that `make setup` puts into a checkout."""
ENGINE_ARGS_NAME = "engine_args.json"
"""File with the arguments of vLLM's ``AsyncEngineArgs``, in an engine of vLLM."""
LLM_ARGS_NAME = "llm_args.json"
"""File with the arguments of TensorRT-LLM's ``LLM``, in an engine of its PyTorch backend."""
GGUF_NAME = "model.gguf"
"""File with the weights of an engine that runs GGUF files."""
LLAMA_CPP_SEQUENCES = 256
"""Maximum number of sequences in a batch: LLAMA_MAX_SEQ of llama.cpp."""
LORA_FOLDER = "lora"
"""Folder with an engine's LoRA adapters: one folder each, by name."""


@dataclass(frozen=True)
class Kind:
    name: str
    adapter: str
    """Module with its ``load``."""
    backend: tuple[str, str] | None = None
    """Engine and backend by which a build config names it, besides its name."""
    builder: str | None = None
    """Module with its ``KEYS`` and ``Plan``; None: cog-triton does not build it."""
    image: str | None = None
    """Beginning of the names of its runner images for GPUs; the SM follows, as in cog-triton-runner-90."""
    image_sms: tuple[int, ...] = ()
    """GPU architectures that have such an image."""
    runs_on: str = "any machine"
    needs_gpu: bool = False
    is_compiled: bool = False
    """True if it runs only on the GPU architecture, number of GPUs and library version it was built for."""
    serves_models: bool = False
    """True if it runs a model's own weights: ``serve`` takes the first such kind that runs here."""
    runs_gguf: bool = False
    """True if it runs GGUF files as they are, on the CPU, and no other models. Other kinds convert them."""
    max_sequences: int | None = None
    """Number of sequences that its library can run at once; None: it has no limit of its own."""
    package: str = ""
    """Package that the engine's environment has if the kind can run; needed with ``serves_models``."""
    checkout_environment: str = DEFAULT_ENVIRONMENT
    """Folder of the environment that a checkout has for it."""
    has_cpp_backend: bool = False
    """True if NVIDIA's C++ backend can run it in place of the engine server."""
    runs_in_child: bool = False
    """True if its loop needs Python's lock, so that it would hold up the engine server."""
    has_ranks: bool = False
    """True if an engine on several GPUs is a process for each, started by mpirun."""
    follower: str | None = None
    """Module with its ``join``; None: it runs on one machine."""
    libraries: tuple[str, ...] = ()
    """Packages that take long to import."""
    prepares: bool = False
    """True if its adapter has something to do while the engine's files arrive, besides being imported."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of its processes, where they have no others."""
    marker_file: str | None = None
    """A file that only directories of this kind hold, by which one without a manifest is recognized."""
    capabilities: frozenset[Capability] = frozenset()
    tensors: frozenset[str] = frozenset()
    """Inputs of the slot that it takes and most kinds refuse."""
    remedies: Mapping[str, str] = field(default_factory=dict)
    """What a caller can do about an argument that it refuses, if not just leave it out."""


_NO_GUIDES = "set guided_decoding_backend: xgrammar for tensorrt_llm in the server configuration"
_NO_PRIORITY = "set scheduling_policy: priority for tensorrt_llm in the server configuration"
_NO_TOKENIZER = "its tokenizer.json is missing or not supported: see the engine's log"
_SAMPLED: frozenset[Capability] = frozenset({"log_probs", "min_p", "logit_bias", "priority", "guides"})
_ROWS = (
    Kind(
        name="tensorrt_llm",
        adapter="runner.engines.tensorrt_llm.adapter",
        backend=("tensorrt_llm", "tensorrt"),
        builder="builder.kinds.tensorrt_llm",
        image="cog-triton-runner",
        image_sms=(80, 86, 89, 90),
        runs_on="NVIDIA GPU",
        needs_gpu=True,
        is_compiled=True,
        has_cpp_backend=True,
        has_ranks=True,
        libraries=("torch", "transformers", "tensorrt_llm"),
        capabilities=frozenset({"guides", "max_queue_size", "iteration_metrics"}),
        tensors=frozenset(
            {
                *ENGINE_TENSORS,
                *("lora_task_id", "early_stopping", "runtime_top_p_min", "runtime_top_p_decay"),
                *("runtime_top_p_reset_ids", "beam_search_diversity_rate", "beam_width"),
            }
        ),
        remedies={
            "guided_decoding_guide_type": _NO_GUIDES,
            "lora_name": (
                "it knows adapters by number: leave the name out and ask Triton's model tensorrt_llm, with "
                "lora_task_id, lora_weights and lora_config"
            ),
        },
    ),
    Kind(
        name="tensorrt_llm_pytorch",
        adapter="runner.engines.tensorrt_llm_pytorch.adapter",
        backend=("tensorrt_llm", "pytorch"),
        builder="builder.kinds.tensorrt_llm_pytorch",
        image="cog-triton-runner-tensorrt-llm-pytorch",
        image_sms=(80, 89, 90, 100, 103, 120),
        runs_on="NVIDIA GPU",
        needs_gpu=True,
        # Each request's tokens pass through objects of its own.
        runs_in_child=True,
        libraries=("torch", "transformers", "tensorrt_llm"),
        environment={
            "TRTLLM_NO_USAGE_STATS": "1",
            "TELEMETRY_DISABLED": "1",
            "DO_NOT_TRACK": "1",
            # An engine is complete: nothing is downloaded.
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        },
        marker_file=LLM_ARGS_NAME,
        capabilities=_SAMPLED | {"lora_name", "cache_salt", "iteration_metrics", "load_adapter", "kv_events"},
        remedies={
            "guided_decoding_guide_type": _NO_GUIDES,
            "priority": _NO_PRIORITY,
            "load_adapter": (
                "give max_loras, max_cpu_loras, max_lora_rank and lora_target_modules in "
                "llm_args.lora_config of its build config"
            ),
        },
    ),
    Kind(
        name="vllm",
        adapter="runner.engines.vllm.adapter",
        follower="runner.engines.vllm.follower",
        builder="builder.kinds.vllm",
        image="cog-triton-runner-vllm",
        image_sms=(80, 86, 89, 90, 100, 103, 120),
        runs_on="NVIDIA GPU",
        needs_gpu=True,
        serves_models=True,
        package="vllm",
        checkout_environment=".venv-vllm",
        libraries=("torch", "transformers", "vllm"),
        prepares=True,
        # vLLM itself sets this for several GPUs: its work is on the GPU, and idle threads spin.
        environment={"OMP_NUM_THREADS": "1"},
        marker_file=ENGINE_ARGS_NAME,
        capabilities=_SAMPLED
        | {"lora_name", "cache_salt", "chat_guides", "load_adapter", "sleep", "kv_events", "images"},
        remedies={
            "guided_decoding_guide_type": _NO_TOKENIZER,
            "load_adapter": "give enable_lora and max_loras in vllm: of its build config",
            "sleep": "give enable_sleep_mode: true in vllm: of its build config",
            "priority": _NO_PRIORITY,
        },
    ),
    Kind(
        name="llama_cpp",
        adapter="runner.engines.llama_cpp.adapter",
        builder="builder.kinds.llama_cpp",
        # Threads that spin for long make a step up to 50 times as long beside other programs; those that do
        # not spin at all, four times as long on a quiet machine.
        # The other one keeps a failed assertion from starting a debugger.
        environment={"GOMP_SPINCOUNT": "500", "GGML_NO_BACKTRACE": "1"},
        runs_on="CPU",
        serves_models=True,
        runs_gguf=True,
        max_sequences=LLAMA_CPP_SEQUENCES,
        package="xllamacpp",
        runs_in_child=True,
        libraries=("xllamacpp",),
        capabilities=_SAMPLED | {"chat_guides", "guided_min_length"},
        remedies={"guided_decoding_guide_type": _NO_TOKENIZER},
    ),
    Kind(
        name="transformers",
        adapter="runner.engines.transformers.adapter",
        builder="builder.kinds.transformers",
        # Threads that spin for long at each barrier make a step nine times as long beside other programs.
        environment={"GOMP_SPINCOUNT": "30000"},
        runs_on="CPU or GPU",
        serves_models=True,
        package="transformers",
        runs_in_child=True,
        libraries=("torch", "transformers"),
        capabilities=_SAMPLED | {"chat_guides", "guided_min_length"},
        remedies={"guided_decoding_guide_type": _NO_TOKENIZER},
    ),
    Kind(
        name="paced",
        adapter="runner.engines.paced.adapter",
        builder="builder.kinds.paced",
        # Its tokens are certain: a bias can't change them, and each has a probability of 1.
        capabilities=frozenset({"log_probs", "min_p", "guides", "chat_guides", "kv_events"}),
        remedies={"guided_decoding_guide_type": "leave it out, or write a script (docs/rehearse.md)"},
    ),
)
KINDS: dict[str, Kind] = {kind.name: kind for kind in _ROWS}
CPP_KIND = next(kind.name for kind in _ROWS if kind.has_cpp_backend)
DEFAULT_KIND = "transformers"
"""Kind of a build config and of a directory that name none."""


def find_kind(name: str) -> Kind:
    """Return the kind of this name. Raises E1006 for an unknown one."""
    if name not in KINDS:
        raise InvalidSetting(name="engine kind", expected=f"one of {', '.join(KINDS)}", value=name)
    return KINDS[name]


def with_backend(engine: str, backend: str | None) -> str:
    """Return the kind of an engine with this backend; the engine itself if there is no such kind."""
    named = (kind.name for kind in KINDS.values() if kind.backend == (engine, backend))
    return next(named, engine)


def supports(name: str, capability: Capability) -> bool:
    return capability in find_kind(name).capabilities


def argument_remedy(name: str, argument: str) -> str:
    return find_kind(name).remedies.get(argument, "leave it out")
