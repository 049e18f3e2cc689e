"""Stop words and bad words are found where the plain reading of the rule finds them."""

from hypothesis import given
from hypothesis import strategies as st

from runner.engines.protocol.messages import Submit
from runner.engines.sequence import Sequence

token_lists = st.lists(st.integers(0, 2), min_size=1, max_size=6)
word_lists = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=3), max_size=4)


def ends_with_any(tokens: list[int], words: list[list[int]]) -> bool:
    return any(len(word) <= len(tokens) and tokens[len(tokens) - len(word) :] == word for word in words)


@given(token_lists, token_lists, word_lists)
def test_ends_with_the_first_stop_word_of_the_output(
    prompt: list[int], output: list[int], stop_words: list[list[int]]
) -> None:
    sequence = Sequence(Submit(1, prompt, 99, stop_words=stop_words))
    for count, token in enumerate(output, 1):
        sequence.append(token)
        stops = ends_with_any(output[:count], stop_words)
        assert sequence.finish_reason == ("stop" if stops else None)
        if stops:
            break


@given(token_lists, token_lists, word_lists, word_lists, st.integers(0, 8), st.sampled_from([None, 0, 2]))
def test_forbids_what_completes_a_bad_word_or_ends_too_early(
    prompt: list[int],
    output: list[int],
    bad_words: list[list[int]],
    stop_words: list[list[int]],
    min_tokens: int,
    end_id: int | None,
) -> None:
    request = Submit(
        1, prompt, 99, min_tokens=min_tokens, end_id=end_id, bad_words=bad_words, stop_words=stop_words
    )
    sequence = Sequence(request)
    for token in output:
        sequence.append(token)
    too_early = len(output) < min_tokens
    expected = {
        token
        for token in range(3)
        if ends_with_any([*prompt, *output, token], bad_words)
        or (too_early and (token == end_id or ends_with_any([*output, token], stop_words)))
    }
    assert set(sequence.forbidden()) == expected


def test_the_end_id_goes_before_a_stop_word_and_a_stop_word_before_the_length() -> None:
    both = Sequence(Submit(1, [5], 1, end_id=3, stop_words=[[3]]))
    both.append(3)
    assert both.finish_reason == "end"
    last = Sequence(Submit(1, [5], 1, stop_words=[[3]]))
    last.append(3)
    assert last.finish_reason == "stop"
