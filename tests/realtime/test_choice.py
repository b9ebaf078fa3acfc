"""One choice of a completion, over the default model's tokenizer."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.messages import TokenLogprobs
from realtime.chat_format import ChatFormat
from realtime.choice import LEAST_LOGPROB, Choice
from realtime.messages import CompletionPart

ANSWERS = [
    "One. Two.\n\nThree 😀 é!",
    "<think>\nHm. Two\n</think>\n\nTwo. Three",
    "Th\n\nen",
    "<think>never closed. ",
]


def run(choice: Choice, tokens: list[int], sizes: list[int]) -> list[CompletionPart]:
    """Feeds the tokens in batches of these sizes, and the rest at once, as far as they are wanted."""
    parts = []
    for size in [*sizes, len(tokens)]:
        batch, tokens = tokens[:size], tokens[size:]
        parts.append(choice.feed(batch, [TokenLogprobs(-1.0, [(token, -1.0)]) for token in batch]))
        if choice.stopped:
            break
    return [*parts, choice.finish("length")]


def whole(parts: list[CompletionPart]) -> tuple[str, str, list[str], str]:
    tokens = [scored.token for part in parts for scored in part.logprobs]
    reasoning = "".join(part.reasoning for part in parts)
    return reasoning, "".join(part.text for part in parts), tokens, parts[-1].finish_reason


@settings(max_examples=200, deadline=None)
@given(
    text=st.sampled_from(ANSWERS),
    stops=st.lists(st.sampled_from(["\n\n", ". T", "Two", "😀", "never", "<think>"]), max_size=3),
    sizes=st.lists(st.integers(1, 5), max_size=12),
)
def test_batches_change_nothing(smol_format: ChatFormat, text: str, stops: list[str], sizes: list[int]) -> None:
    tokens = smol_format.text(text)
    choice, other = Choice(0, smol_format, stops), Choice(0, smol_format, stops)
    result = whole(run(choice, tokens, sizes))
    assert result == whole(run(other, tokens, [1] * len(tokens)))
    assert (choice.tokens, choice.reasoning_tokens) == (other.tokens, other.reasoning_tokens)
    assert not any(stop in result[1] for stop in stops)
    assert choice.text == result[1]


def test_a_stop_across_tokens_never_leaks(smol_format: ChatFormat) -> None:
    choice = Choice(0, smol_format, [" Two. Th"])
    tokens = smol_format.text("One. Two. Three. Four.")
    reasoning, text, scored, reason = whole(run(choice, tokens, [1] * len(tokens)))
    assert (reasoning, text, reason) == ("", "One.", "stop")
    assert "".join(scored) == "One."
    assert choice.tokens < len(tokens)


def test_a_stop_in_the_reasoning_is_none(smol_format: ChatFormat) -> None:
    tokens = smol_format.text("<think>\nFirst.\n\nThen.\n</think>\n\nYes.\n\nNo.")
    choice = Choice(0, smol_format, ["\n\n"])
    reasoning, text, _, reason = whole(run(choice, tokens, []))
    assert (reasoning, text, reason) == ("First.\n\nThen.", "Yes.", "stop")
    assert 0 < choice.reasoning_tokens < choice.tokens


def test_every_token_of_an_answer_is_scored_once_and_with_its_bytes(smol_format: ChatFormat) -> None:
    tokens = smol_format.text("Ok 😀 é")
    parts = run(Choice(0, smol_format), tokens, [1] * len(tokens))
    scored = [token for part in parts for token in part.logprobs]
    assert b"".join(bytes(token.bytes) for token in scored).decode() == "Ok 😀 é"
    assert [top.bytes for token in scored for top in token.top_logprobs] == [token.bytes for token in scored]
    assert all(part.text for part in parts if part.logprobs)


def test_a_character_cut_in_the_middle_is_shown_as_such(smol_format: ChatFormat) -> None:
    tokens = smol_format.text("😀")[:1]
    assert whole(run(Choice(0, smol_format), tokens, []))[1:] == ("�", ["�"], "length")


def test_an_impossible_token_has_a_finite_log_probability(smol_format: ChatFormat) -> None:
    choice = Choice(0, smol_format)
    (token,) = smol_format.text("a")
    end = smol_format.stop_token_ids[0]
    (scored,) = choice.feed([token], [TokenLogprobs(-0.1, [(token, -0.1), (end, -math.inf)])]).logprobs
    assert scored.top_logprobs[1].logprob == LEAST_LOGPROB
    assert scored.top_logprobs[1].token.startswith("<|")
