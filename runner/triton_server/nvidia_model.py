"""A model of Triton with NVIDIA's tensors, whose types differ by version: its requests and answers."""

from dataclasses import dataclass
from typing import Any

from tritonclient.grpc import service_pb2 as pb

from engine.kinds import CPP_KIND, argument_remedy
from errors.external_triton import UnfitTritonModel
from errors.requests import UnsupportedArgument
from errors.triton import TritonMalformedEvent
from runner.engines.protocol.checks import NO_CHAT_FORM
from runner.engines.protocol.messages import GUIDE_TYPES, FinishReason, Output, Sampling, Submit
from runner.triton_server.direct import IS_FINAL
from runner.triton_server.front.answers import values_of
from runner.triton_server.front.inference import WANTS_FINAL
from runner.triton_server.front.json_requests import add_input
from runner.triton_server.front.models import INTEGERS, Model, model_of

_REQUIRED_INPUTS = ("input_ids", "request_output_len")
_OUTPUT = "output_ids"
_NOT_ASKED_FOR = ("input_lengths", "end_id", "pad_id", "streaming", "exclude_input_in_output")
"""Inputs that no client names: they are left out for a model that does not have them."""
_LATER_NAMES = {"random_seed": "seed", "min_length": "min_tokens"}
_DEFAULTS = Sampling()
_SAMPLING_TENSORS = {
    "temperature": "temperature",
    "top_k": "runtime_top_k",
    "top_p": "runtime_top_p",
    "length_penalty": "len_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "repetition_penalty": "repetition_penalty",
    "seed": "random_seed",
    "min_p": "min_p",
}
"""Tensors by the field of ``Sampling``."""
_REASONS: dict[str, FinishReason] = {"stop": "stop", "length": "length", "cancelled": "cancelled"}
"""Reasons by the slot's ``finish_reason``, which NVIDIA's backend lacks; others are the end of the text."""


@dataclass(frozen=True)
class NvidiaModel:
    model: Model
    is_decoupled: bool
    """True if it can stream. Otherwise the whole text is one response."""

    @classmethod
    def read(cls, config: Any, address: str) -> "NvidiaModel":
        """Read a ``ModelConfig``. Raises UnfitTritonModel (E1113)."""
        model = model_of(config)
        is_decoupled = config.model_transaction_policy.decoupled
        if problem := _problem(model, [each.name for each in config.output], is_decoupled=is_decoupled):
            remedy = "name NVIDIA's tensorrt_llm model as --triton-model"
            raise UnfitTritonModel(model=model.name, address=address, problem=problem, remedy=remedy)
        return cls(model, is_decoupled)

    def request(self, submit: Submit) -> bytes:
        """Return a ``ModelInferRequest``. Raises E1104 for what the model has no input for, E1103."""
        tensors = {name: value for name, value in _tensors_of(submit).items() if value is not None}
        request = pb.ModelInferRequest(model_name=self.model.name, id=tensors.pop("id", ""))
        request.parameters[WANTS_FINAL].bool_param = True
        if not self.is_decoupled:
            del tensors["streaming"]
        for known, value in tensors.items():
            name = known if known in self.model.inputs else _LATER_NAMES.get(known, known)
            if name in self.model.inputs:
                add_input(request, self.model, name, value)
            elif known not in _NOT_ASKED_FOR:
                remedy = "leave it out: the model of this Triton has no such input"
                raise UnsupportedArgument(name=known, value=value, engine_kind=CPP_KIND, remedy=remedy)
        content: bytes = request.SerializeToString()
        return content


def output_of(response: Any) -> Output:
    """Return the new tokens in a ``ModelInferResponse``. Raises TritonMalformedEvent (E2104)."""
    if len(response.outputs) != len(response.raw_output_contents):
        raise TritonMalformedEvent(event=f"{len(response.outputs)} outputs without raw_output_contents")
    tensors = {
        each.name: (each.datatype, raw)
        for each, raw in zip(response.outputs, response.raw_output_contents, strict=True)
    }
    datatype, raw = tensors.get(_OUTPUT, ("", b""))
    if datatype not in INTEGERS:
        if response.parameters[IS_FINAL].bool_param:
            return Output()  # NVIDIA's backend ends a stream so.
        raise TritonMalformedEvent(event=f"outputs {sorted(tensors)}")
    tokens = values_of(datatype, raw)
    if "sequence_length" in tensors and (lengths := values_of(*tensors["sequence_length"])):
        tokens = tokens[: lengths[0]]  # What follows fills the row, with -1 or the padding token.
    output = Output([token for token in tokens if token >= 0])
    if "finish_reason" in tensors and (texts := values_of(*tensors["finish_reason"])) and texts[0]:
        output.finish_reason = _REASONS.get(texts[0], "end")
    return output


def _tensors_of(submit: Submit) -> dict[str, Any]:
    """Return the tensors by NVIDIA's names, without those that have their default.

    Raises E1104 for what has no tensor, and for a guide that only our own engines follow.
    """
    salt = submit.cache_salt and "given"  # It may be secret.
    for name, value in (
        ("lora_name", submit.lora_name),
        ("cache_salt", salt),
        ("priority", submit.priority),
        ("return_log_probs", submit.wants_log_probs),
    ):
        if value:
            remedy = argument_remedy(CPP_KIND, name)
            raise UnsupportedArgument(name=name, value=value, engine_kind=CPP_KIND, remedy=remedy)
    sampling = submit.sampling
    tensors: dict[str, Any] = {
        "input_ids": submit.input_ids,
        "input_lengths": len(submit.input_ids),
        "request_output_len": submit.max_tokens,
        "pad_id": submit.pad_id,
        "streaming": True,
        "exclude_input_in_output": True,
        **{
            name: getattr(sampling, field)
            for field, name in _SAMPLING_TENSORS.items()
            if getattr(sampling, field) != getattr(_DEFAULTS, field)
        },
    }
    if submit.caller_id:
        tensors["id"] = submit.caller_id
    if submit.min_tokens:
        tensors["min_length"] = submit.min_tokens
    if submit.end_id is not None:
        tensors["end_id"] = submit.end_id
    if submit.guide is not None:
        name, type_ = "guided_decoding_guide_type", submit.guide.type
        if type_ not in GUIDE_TYPES:
            raise UnsupportedArgument(name=name, value=type_, engine_kind=CPP_KIND, remedy=NO_CHAT_FORM)
        tensors[name] = type_
        if submit.guide.text:
            tensors["guided_decoding_guide"] = submit.guide.text
    if sampling.logit_bias:
        tensors["logit_bias_ids"] = list(sampling.logit_bias)
        tensors["logit_bias_values"] = list(sampling.logit_bias.values())
    return tensors


def _problem(model: Model, outputs: list[str], *, is_decoupled: bool) -> str | None:
    """Tell what keeps a model from serving the API."""
    for name in _REQUIRED_INPUTS:
        if name not in model.inputs:
            return f"has no input {name}"
        if (datatype := model.inputs[name].datatype) not in INTEGERS:
            return f"has {datatype} as the type of {name}, which must be an integer"
    if _OUTPUT not in outputs:
        return f"has no output {_OUTPUT}"
    if not is_decoupled and "exclude_input_in_output" not in model.inputs:
        return "is not decoupled and has no input exclude_input_in_output, so that it would repeat prompts"
    return None
