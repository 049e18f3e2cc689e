"""The messages between the engine server and its clients, in frames of ``protocol.wire``.

A client sends ``Submit`` and ``Cancel``, and an ``Order`` to the engine itself, which ``Finished`` or
``Failed`` answers. The engine server sends ``Ready`` at first and after each order that changes it,
``Statistics`` about once a second, and for each request ``Tokens`` (with ``Cached`` and ``LogProbs`` before
them) and one ``Finished`` or ``Failed``. An engine that runs in a child of the engine server exchanges the
same messages with it.
"""

import json
from typing import Annotated, Literal

import msgspec

from errors.wire import WireError

SEEDS = 1 << 64
"""Number of seeds: whole numbers from 0."""

TokenId = Annotated[int, msgspec.Meta(ge=0, le=(1 << 32) - 1)]
"""Token id that an engine generates. Those of a ``Submit`` are checked against the vocabulary."""

COLLECTION_S = 0.5
"""Time that tokens of a request with ``collects_until`` wait for later ones."""

FinishReason = Literal["end", "stop", "length", "cancelled"]


class Sampling(msgspec.Struct, frozen=True, omit_defaults=True):
    """Sampling parameters. Defaults are the contract's: greedy needs ``top_k=1`` or ``temperature=0``."""

    temperature: float = 1.0
    top_k: int = 0
    """Number of candidates; 0: no limit; 1: greedy."""
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    length_penalty: float = 1.0
    """Exponent of beam search; an engine without it takes 1.0 only."""
    seed: int | None = None
    """Seed, which may be 0; None: the engine picks one at random."""

    top_p_min: float | None = None
    """Minimum of top-p, which ``top_p_decay`` shrinks with each token until ``top_p_reset_ids``."""
    top_p_decay: float | None = None
    top_p_reset_ids: int | None = None
    """The token that sets top-p back to what it was."""
    min_p: float = 0.0
    """Least share of the likeliest token's probability that a token must have; 0: off."""
    logit_bias: dict[int, float] = {}
    """Values added to the scores of tokens, before all else."""
    beam_width: int = 1
    """Number of beams. Above 1, sequences come with ``Finished`` alone."""
    beam_search_diversity_rate: float | None = None
    early_stopping: bool | None = None

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0 or self.top_k == 1 or (self.top_k < 1 and self.top_p <= 0)

    @property
    def has_penalties(self) -> bool:
        neutral = (1.0, 0.0, 0.0)
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != neutral


class Tensor(msgspec.Struct, frozen=True):
    """An array of a request: numpy's name of its type, its shape and its bytes in C order."""

    dtype: str
    shape: list[int]
    data: bytes


GuideType = Literal["json", "json_schema", "regex", "ebnf_grammar", "chat_form"]
"""NVIDIA's names. ``json``: any object or array; ``ebnf_grammar``: GBNF, as llama.cpp and XGrammar do.
``chat_form``: our own, a ``ChatForm``, which only our own APIs make."""
GUIDE_TYPES: tuple[GuideType, ...] = ("json", "json_schema", "regex", "ebnf_grammar")
"""Types that clients may send."""
ALL_GUIDE_TYPES: tuple[GuideType, ...] = (*GUIDE_TYPES, "chat_form")

_MOST_CHOICES = 1 << 14
ANY_JSON = '{"type": ["object", "array"]}'
"""The schema of a guide of type ``json``."""


class Guide(msgspec.Struct, frozen=True):
    """A form that the whole output must follow."""

    type: GuideType
    text: str = ""
    """The schema, regular expression or grammar; empty for ``json``; JSON of a ``ChatForm``."""

    @classmethod
    def of_choices(cls, texts: list[str]) -> "Guide":
        """Make the guide of an output that is one of ``texts``."""
        # NOTE: a string of the grammar is written like one of JSON.
        # More than fit into a guide are refused because of its length.
        quoted = [json.dumps(each, ensure_ascii=False) for each in texts[:_MOST_CHOICES]]
        return cls("ebnf_grammar", f"root ::= {' | '.join(quoted)}")


class ChatForm(msgspec.Struct, frozen=True):
    """The form of a chat's answer: reasoning, calls of tools, and what the content follows."""

    rules: str
    """Grammar in llguidance's Lark. Markers are numbers of tokens. ``part_0`` is the first of ``parts``."""
    parts: list[tuple[str, Guide]] = []
    """Guides of the client, each with a description for errors."""

    def guide(self) -> Guide:
        return Guide("chat_form", msgspec.json.encode(self).decode())


class Submit(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """A request to generate. The client chooses the id, and never uses it twice on a connection."""

    request_id: int
    input_ids: list[int]
    max_tokens: int
    sampling: Sampling = Sampling()
    min_tokens: int = 0
    end_id: int | None = None
    """The token after which generation ends (part of the output); None: none."""
    pad_id: int | None = None
    stop_words: list[list[int]] = []
    """Token sequences that end generation once the output ends with one (it stays part of the output)."""
    bad_words: list[list[int]] = []
    """Token sequences that must not be generated."""
    lora_task_id: int | None = None
    """Number of a LoRA adapter; its weights come along at its first use."""
    tensors: dict[str, Tensor] = {}
    """Tensors that only TensorRT-LLM takes, by the slot's names: ``embedding_bias``, ``lora_weights``, ..."""
    lora_name: str | None = None
    """An adapter that the engine carries; None: the model alone."""
    cache_salt: str | None = None
    """A salt: only requests with the same one share computed prefixes of prompts."""
    priority: int = 0
    """Order of requests: lower values begin earlier."""
    max_queue_ms: int | None = None
    """Time until the first output, after which the client gives up; None: it waits."""
    wants_log_probs: bool = False
    """True to send the logarithm of each output token's probability as well."""
    guide: Guide | None = None
    num_top_log_probs: int = 0
    """Number of likeliest tokens at each place whose log probabilities are sent, too."""
    images: list[bytes] = []
    """Files of images, whose places in ``input_ids`` are as the model's chat template writes them."""
    embeds: bool = False
    """True to embed ``input_ids`` instead of generating: ``Finished`` has the embedding."""
    returns_times: bool = False
    """True if ``Finished`` has ``times_s``."""
    collects_until: list[int] | None = None
    """Tokens that end the request, if the client needs the output only as a whole: after the first tokens it
    is sent twice a second at most, but at once with one of these. None: the client reads each token."""
    sent_s: float | None = None
    """Time when the client sent it, by ``perf_counter``: for the time that it waited."""
    traceparent: str = ""
    """W3C trace context of the client's span; empty: not traced."""
    caller_id: str = ""
    """The caller's own id of the request, for logs."""


class Cancel(msgspec.Struct, frozen=True, tag=True):
    """An order to end a request and free what it holds; answered by ``Finished('cancelled')``."""

    request_id: int


class LoadAdapter(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """An order to load a LoRA adapter from the folder ``path``."""

    request_id: int
    name: str
    path: str
    digest: str = ""
    """Digest that its files must have (``engine.adapters``); empty: any."""
    replaces: bool = False
    """True if a loaded adapter of that name is replaced."""


class UnloadAdapter(msgspec.Struct, frozen=True, tag=True):
    """An order to unload a LoRA adapter once the requests that use it have ended."""

    request_id: int
    name: str


SleepMode = Literal["abort", "wait"]


class Sleep(msgspec.Struct, frozen=True, tag=True):
    """An order to sleep once the running requests have ended, which ``abort`` ends with E2114."""

    request_id: int
    level: int
    """1: the weights move to the host's memory; 2: they are read again when the engine wakes."""
    mode: SleepMode


class WakeUp(msgspec.Struct, frozen=True, tag=True):
    """An order to wake. ``tags``: the parts of the memory by vLLM's names; empty: all."""

    request_id: int
    tags: list[str]


Order = LoadAdapter | UnloadAdapter | Sleep | WakeUp


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The engine is loaded. ``vocab_size`` in tokens, ``max_sequence_length`` in tokens (prompt + output)."""

    engine_kind: str
    vocab_size: int
    max_sequence_length: int
    max_batch_size: int
    guide_types: tuple[GuideType, ...] = ()
    """Types of guides that the engine can follow."""
    is_embedding: bool = False
    """True if the engine embeds, and does not generate."""
    takes_priority: bool = False
    max_adapters: int = 0
    """Number of LoRA adapters that the engine holds, with those that it carries; 0: none."""
    adapters: dict[str, str] = {}
    """Digests of the adapters that were loaded while it serves, by name."""
    can_sleep: bool = False
    is_asleep: bool = False
    kv_block_tokens: int = 0
    """Tokens of a block of the engine's KV cache; 0: not known."""
    num_kv_blocks: int = 0
    num_replicas: int = 1
    """Number of replicas of the model, each of which publishes its own KV events."""
    max_running_adapters: int = 0
    """Number of LoRA adapters that the requests of one step may use."""
    max_images: int = 0
    """Number of images that a request may have."""


class Tokens(msgspec.Struct, frozen=True, tag=True):
    """New output tokens of some requests, in order, from one engine step. Never the prompt's."""

    new: list[tuple[int, list[TokenId]]]
    """(request id, tokens) pairs."""


MIN_LOG_PROB = -9999.0
"""Log probability of a token that a guide or top-k excludes: JSON has no minus infinity."""


class TokenLogProb(msgspec.Struct, frozen=True, array_like=True):
    """Natural logarithm of a token's probability by the model, before anything that the request asks for."""

    value: float
    top: list[tuple[TokenId, float]] = []
    """(token, value) of the likeliest tokens at its place, most likely first."""


class LogProbs(msgspec.Struct, frozen=True, tag=True):
    """Log probabilities of output tokens; sent before the ``Tokens`` with these."""

    new: list[tuple[int, list[TokenLogProb]]]
    """(request id, a value for each of the tokens that follow) pairs."""


class Cached(msgspec.Struct, frozen=True, tag=True):
    """Numbers of prompt tokens that were cached, sent once for each request by engines that know them."""

    new: list[tuple[int, ...]]
    """(request id, number of tokens) pairs; a third number counts the tokens of a prompt with images."""


class Finished(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """The end of a request: all its tokens were sent before, and the engine has freed what it held."""

    request_id: int
    reason: FinishReason
    sequences: list[list[TokenId]] | None = None
    """Outputs of a beam search, best first. Nothing of them was sent before."""
    embedding: bytes | None = None
    """Embedding as little-endian 32-bit floats."""
    times_s: tuple[float, float] | None = None
    """Times when the engine server received the request, and its last token, by ``perf_counter``."""
    drafted: tuple[int, int] | None = None
    """Numbers of draft tokens of speculative decoding that were accepted and rejected; None: not known."""


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The end of a request that failed alone."""

    request_id: int
    error: WireError


class Statistics(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """The engine's state. Counts of requests; cache use in 0..1 where the engine knows it."""

    active: int
    queued: int
    cache_used: float | None = None
    gauges: dict[str, float] = {}
    """Other figures of the engine's last step, by its library's names for them."""
    counts: list[float] = []
    """The engine server's own numbers; see ``runner.observability.metrics``."""
    running_adapters: list[str] = []
    """LoRA adapters of requests that have output, and of others."""
    waiting_adapters: list[str] = []


FromClient = Submit | Cancel | Order
ToClient = Ready | Cached | LogProbs | Tokens | Finished | Failed | Statistics


class Output(msgspec.Struct, eq=False):
    """Output of one request since the last one, from the engine server or Triton."""

    tokens: list[int] = []
    log_probs: list[TokenLogProb] = []
    """Log probabilities of ``tokens``, if the request asks for them."""
    finish_reason: FinishReason | None = None
    """Reason in the last output."""
    times_s: tuple[float, float] | None = None
    """Times, the embedding and the draft tokens: see ``Finished``."""
    drafted: tuple[int, int] | None = None
    cached_tokens: int | None = None
    """Counts in one output of a request: see ``Cached``."""
    prompt_tokens: int | None = None
    embedding: bytes | None = None
