"""The form of a chat's answer, and the guide that keeps the answer to it."""

from msgspec.structs import replace

from engine.kinds import supports
from errors.api import UnsupportedField
from errors.requests import InvalidInput
from runner.api.openai.bodies import ChatBody
from runner.api.served import Served
from runner.chat.families.bare_json import GENERIC
from runner.chat.families.family import AnswerForm
from runner.chat.families.tools import ToolUse
from runner.chat.guides.answer_guide import answer_guide
from runner.generation.request import GenerationRequest


def with_answer_form(
    request: GenerationRequest, body: ChatBody, use: ToolUse | None, served: Served
) -> GenerationRequest:
    """Add the form to ``request``, whose prompt is the chat's text. A plain text answer has none.

    Raises E1005, E1105, and E1602 for what only a guide can enforce, on an engine without guides of chats.
    """
    is_enforced = use is not None and use.is_enforced
    family = served.model.family
    if is_enforced and (family is None or family.calls is None):
        family = GENERIC if family is None else replace(family, calls=GENERIC.calls)
    if family is None or (use is None and family.reasoning is None):
        return request
    budget = body.thinking_token_budget if family.reasoning is not None else None
    if body.skip_special_tokens is False:
        if is_enforced or budget is not None:
            expected = "left out, because the calls and the reasoning of the answer have to be read"
            raise InvalidInput(name="skip_special_tokens", expected=expected, value=False)
        return request
    assert isinstance(request.prompt, str)
    form = AnswerForm(family, use, family.opens_reasoning(request.prompt))
    if supports(served.engine_kind, "chat_guides"):
        guide = answer_guide(form, served.model.tokenizer, request.guide, budget)
        return replace(request, answer=form, guide=guide)
    if budget is not None:
        raise UnsupportedField(
            name="thinking_token_budget", value=budget, engine_kind=served.engine_kind, remedy="leave it out"
        )
    if request.guide is not None:  # It has no place for reasoning.
        form = replace(form, starts_in_reasoning=False)
    return replace(request, answer=form)
