"""The request of a generation: prompt, lengths and sampling parameters."""

import random
from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import force_setattr, replace

from errors.requests import InvalidInput
from runner.chat.families.family import AnswerForm
from runner.engines.protocol.checks import MAX_CACHE_SALT, MAX_LORA_NAME, check_guide
from runner.engines.protocol.messages import SEEDS, Guide, Sampling
from runner.generation.prompt_ids import PromptIds, PromptTokens
from runner.generation.stop_sequences import StopSequences
from runner.settings.api_keys import allowed_priority

_SEED_BITS = SEEDS.bit_length() - 1
_TRACED = ("temperature", "top_p", "top_k", "presence_penalty", "frequency_penalty")


def random_seed() -> int:
    """Return a seed, which is no secret: ``secrets`` takes a hundred times longer."""
    return random.getrandbits(_SEED_BITS)


class GenerationRequest(msgspec.Struct, frozen=True, eq=False):
    """A request with validated inputs. Lengths are in tokens."""

    prompt: str | Sequence[int]
    """A text, or its token ids."""
    max_tokens: int
    min_tokens: int
    stop_sequences: Sequence[str]
    sampling: Sampling
    """Values of the client: ``top_k`` below 1 and ``top_p`` of 0 mean no limit (see ``inputs``)."""
    stop_token_ids: Sequence[int] = ()
    """Tokens that end the text, from ``min_tokens`` on. They have no text."""
    begins_turn: bool = False
    """True if the text is a new turn of a chat. If not, it continues the prompt's text."""
    is_echoed: bool = False
    """True if the prompt's text is shown before it, without a character that is not complete."""
    guide: Guide | None = None
    """A schema, regular expression or grammar that the output follows."""
    adds_special_tokens: bool = True
    """True if the tokenizer adds its special tokens to a text; chat templates add them themselves."""
    ignores_end: bool = False
    """True to generate to ``max_tokens``: no token ends the text."""
    num_top_log_probs: int | None = None
    """Number of likeliest tokens reported with each output token's log probability; None: nothing."""
    skips_special_tokens: bool = True
    """True if the text is without the model's special tokens."""
    lora_name: str | None = None
    """A LoRA adapter of the engine; None: the model without adapters."""
    cache_salt: str | None = None
    priority: int | None = None
    """Priority; None: the default of the client's key."""
    max_queue_ms: int | None = None
    """Time: see ``Submit``, also for the two before."""
    answer: AnswerForm | None = None
    """Form by which the answer is read as parts; None: it is text."""
    images: Sequence[bytes] = ()
    """Files of the images whose places the prompt has."""
    embeds: bool = False
    """True to embed the prompt: there is no text."""

    prompt_ids: PromptIds = msgspec.field(default_factory=PromptIds)
    """Ids for all texts of one prompt: ``replace`` keeps them, unless the prompt is another."""
    prompt_tokens: PromptTokens = msgspec.field(default_factory=PromptTokens)
    """Count shared by all texts of one call: ``replace`` keeps it."""

    def __post_init__(self) -> None:
        """Raise E1005 or E1105 for what is too long, before it is copied for each text."""
        force_setattr(self, "stop_sequences", StopSequences(self.stop_sequences))
        prompt, adds = self.prompt, self.adds_special_tokens
        if not self.prompt_ids.is_of(prompt, adds_special_tokens=adds):
            force_setattr(self, "prompt_ids", PromptIds(prompt, adds_special_tokens=adds))
        if self.guide is not None:
            check_guide(self.guide)
        for name, most in (("lora_name", MAX_LORA_NAME), ("cache_salt", MAX_CACHE_SALT)):
            if len(getattr(self, name) or "") > most:
                expected = f"at most {most} characters"
                raise InvalidInput(name=name, expected=expected, value=getattr(self, name))

    def with_priority(self, lowest: Mapping[str, int], key: str = "") -> "GenerationRequest":
        """Return the request for a client with this key. Raises E1005 if its priority is too low."""
        priority = allowed_priority(lowest, self.priority, key)
        return self if priority == (self.priority or 0) else replace(self, priority=priority)

    def traced(self) -> dict[str, str | float]:
        """Return the fields that may be traced, none with text, by OpenTelemetry's names."""
        fields = {name: getattr(self.sampling, name) for name in _TRACED}
        # As text: OpenTelemetry's integers have a sign.
        return {"max_tokens": self.max_tokens, **fields, "seed": str(self.sampling.seed)}
