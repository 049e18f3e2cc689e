"""The reader of a family's answers."""

from tokenizers import Tokenizer

from runner.chat.families.answer import AnswerReader
from runner.chat.families.family import AnswerForm
from runner.chat.families.harmony import HarmonyAnswer
from runner.chat.families.marked_answer import MarkedAnswer


def answer_reader(form: AnswerForm, tokenizer: Tokenizer) -> AnswerReader:
    return (HarmonyAnswer if form.family.has_channels else MarkedAnswer)(form, tokenizer)
