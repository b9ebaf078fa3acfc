from __future__ import annotations

import json
from collections.abc import Collection

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from realtime.tool_calls import CallArguments, CallDone, CallInvalid, CallStarted, Piece, TextPiece, ToolCallParser

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": [2, "}"]}}\n</tool_call>'
FRAGMENTS = [
    *["<tool_call>", "</tool_call>", "<tool", "_call>", "<", "</", ">", "\n", " ", "{", "}", '"', "\\", "[", "]"],
    *[CALL, '{"name": "f"', ', "arguments": {}}', '{"name": "g", "arguments": {"x": "a<b </tool_call> \\" "}}', "text"],
    *["<tool_call>{bad}</tool_call>", '"name"', "}}", "é😀", '<tool_call>{"name": "h"}'],
]
answers = st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.text('<tol_ca>/{} \n"x', max_size=4)), max_size=12)


def parse(*parts: str, names: Collection[str] = ()) -> list[Piece]:
    """All pieces, with neighbouring text pieces joined."""
    parser = ToolCallParser(names)
    pieces = [piece for part in parts for piece in parser.feed(part)] + parser.finish()
    joined: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, TextPiece) and joined and isinstance(joined[-1], TextPiece):
            joined[-1] = TextPiece(joined[-1].text + piece.text)
        else:
            joined.append(piece)
    return joined


def call(name: str, arguments: str) -> list[Piece]:
    return [CallStarted(name), CallArguments(arguments), CallDone(name, arguments)]


@settings(max_examples=500, deadline=None)
@given(parts=answers, data=st.data())
def test_every_split_gives_the_pieces_of_the_whole(parts: list[str], data: st.DataObject) -> None:
    text = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    split = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert parse(*split) == parse(text) == parse(*text)


@settings(max_examples=300, deadline=None)
@given(
    start=st.sampled_from(["", " ", '{"name": "f", "arguments": {"x": "}"}}', '{"name"']), parts=answers, data=st.data()
)
def test_every_split_is_alike_where_bare_calls_are_known(start: str, parts: list[str], data: st.DataObject) -> None:
    text = start + "".join(parts)
    cut = data.draw(st.integers(0, len(text)))
    names = ("f", "g")
    assert parse(text[:cut], text[cut:], names=names) == parse(text, names=names) == parse(*text, names=names)


@pytest.mark.parametrize(
    "text",
    [
        f"I add.\n{CALL}\nDone.",
        f"{CALL}\n{CALL}",
        f'{CALL}<tool_call>{{"name": "now"}}</tool_call>',
        '<tool_call>{"name": "now", "arguments": {}}</tool_call>',
        '{"name": "add", "arguments": {"a": "é😀\\""}}\nDone.',
        '{"name": "now"}',
        f'{{"name": "now", "arguments": {{}}}}\n{CALL}',
        '{"name": "other", "arguments": {}} <tool_call>{"name": "now"}',
        f"<tool_call>{{bad}}</tool_call>{CALL}",
        f'<tool_call>{{"name": "add", "arguments": {CALL}',
        '<tool_call>{"name": "add", "arguments": {"a": 1}',
        'Hm. <tool_call>{"name": "a',
        "Hm. <tool_ca",
    ],
)
@pytest.mark.parametrize("names", [(), ("add", "now")])
def test_the_incremental_parser_is_the_batch_parser_at_every_cut(text: str, names: tuple[str, ...]) -> None:
    whole = parse(text, names=names)
    for size in range(1, len(text) + 1):
        assert parse(text[:size], text[size:], names=names) == whole
        assert parse(*(text[i : i + size] for i in range(0, len(text), size)), names=names) == whole


@settings(max_examples=300, deadline=None)
@given(parts=answers)
def test_a_call_is_one_announcement_with_all_its_arguments(parts: list[str]) -> None:
    """No arguments come twice, none are missing, and none come for a call that is not complete."""
    pieces = [piece for piece in parse(*"".join(parts)) if not isinstance(piece, TextPiece | CallInvalid)]
    for started, arguments, done in zip(pieces[::3], pieces[1::3], pieces[2::3], strict=True):
        assert isinstance(done, CallDone)
        assert [started, arguments] == [CallStarted(done.name), CallArguments(done.arguments_json)]


def test_an_answer_that_begins_with_the_json_of_a_known_tool_is_a_call() -> None:
    bare = '{"name": "add", "arguments": {"a": 1}}'
    assert parse(bare, names=["add"]) == call("add", '{"a": 1}')
    assert parse(f" \n{bare}\nDone.", names=["add"]) == [*call("add", '{"a": 1}'), TextPiece("Done.")]
    assert parse(f"{bare}\n{CALL}", names=["add"]) == [*call("add", '{"a": 1}'), *parse(CALL)]


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "add", "arguments": {"a": 1}',
        '{"name": "other", "arguments": {}}',
        '{"name": "add", "arguments": 5}',
        '{"answer": 4}',
        'Call {"name": "add", "arguments": {}}',
        '{"name": "add", oops',
        '{"name": "' + "x" * 5000 + '"}',
    ],
)
def test_any_other_json_stays_text(text: str) -> None:
    assert parse(text, names=["add"]) == [TextPiece(text)]


@settings(max_examples=300, deadline=None)
@given(parts=answers)
def test_no_tag_is_ever_text_and_arguments_are_json_objects(parts: list[str]) -> None:
    for piece in parse("".join(parts)):
        if isinstance(piece, TextPiece):
            assert "<tool_call>" not in piece.text
            assert "</tool_call>" not in piece.text
        if isinstance(piece, CallDone):
            assert json.dumps(json.loads(piece.arguments_json), ensure_ascii=False) == piece.arguments_json
            assert piece.arguments_json.startswith("{")


def test_text_before_and_after_a_call_loses_only_the_white_space_between() -> None:
    text = f"I add.\n{CALL}\n Done."
    assert parse(text) == [TextPiece("I add."), *call("add", '{"a": 1, "b": [2, "}"]}'), TextPiece("Done.")]


def test_two_calls_in_a_row() -> None:
    assert parse(f"{CALL}\n{CALL}") == 2 * call("add", '{"a": 1, "b": [2, "}"]}')


@pytest.mark.parametrize("arguments", ["", ', "arguments": null', ', "arguments": ""', ', "arguments": {}'])
def test_a_call_without_arguments_has_an_empty_object(arguments: str) -> None:
    assert parse(f'<tool_call>{{"name": "now"{arguments}}}</tool_call>') == call("now", "{}")


def test_arguments_may_be_json_text_or_called_parameters() -> None:
    assert parse('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>') == call("f", '{"a": 1}')
    assert parse('<tool_call>{"name": "f", "parameters": {"a": 1}}</tool_call>') == call("f", '{"a": 1}')


def test_a_call_is_announced_when_its_json_closes() -> None:
    parser = ToolCallParser()
    assert parser.feed('<tool_call>{"name": "f", "arguments": {}') == []
    assert parser.feed("}") == call("f", "{}")


def test_a_tag_inside_a_string_argument_does_not_end_the_call() -> None:
    assert parse('<tool_call>{"name": "f", "arguments": {"a": "</tool_call>"}}</tool_call>') == call(
        "f", '{"a": "</tool_call>"}'
    )


def test_one_brace_too_many_is_forgiven() -> None:
    assert parse('<tool_call>{"name": "f"}}\n</tool_call>ok') == [*call("f", "{}"), TextPiece("ok")]


@pytest.mark.parametrize(
    "raw",
    [
        *["not json", "{bad}", '{"name": 3}', '{"arguments": {}}', '{"name": ""}', "[1]", '"text"', "}"],
        *['{"name": "f", "arguments": [1]}', '{"name": "f", "arguments": {"a": NaN}}', '{"name": "f", "arguments": 3}'],
        *['{"name": "f", "arguments": {"a": 1e999}}', '{"name": "f", "arguments": {"a": "\\ud800"}}'],
        '{"name": "f", "arguments": "no json"}',
        '{"name": "f", "arguments": {"a": ' + "[" * 100_000 + "]" * 100_000 + "}}",
        '{"name": "f", "arguments": {"a": ' + "9" * 5000 + "}}",
        '{"name": "a\nb"}',
        "<b>",
    ],
)  # fmt: skip
def test_a_malformed_call_is_given_back_whole(raw: str) -> None:
    first, *rest = parse(f"<tool_call>{raw}</tool_call> then text")
    assert isinstance(first, CallInvalid)
    assert first.raw == raw
    assert first.reason
    assert rest == [TextPiece("then text")]


def test_an_unfinished_call_is_invalid() -> None:
    assert parse('Hm <tool_call>{"name": "f"') == [
        TextPiece("Hm"),
        CallInvalid('{"name": "f"', "the call is unfinished"),
    ]


def test_a_new_call_ends_a_broken_one() -> None:
    first, *rest = parse(f"<tool_call>oops {CALL}")
    assert first == CallInvalid("oops", "Expecting value: line 1 column 1 (char 0)")
    assert rest == call("add", '{"a": 1, "b": [2, "}"]}')


def test_text_with_angle_brackets_is_passed_on_at_once() -> None:
    parser = ToolCallParser()
    assert parser.feed("a < b <tools") == [TextPiece("a < b <tools")]
    assert parser.finish() == []


def test_half_a_tag_at_the_end_is_not_text() -> None:
    assert parse("Yes. <tool_c") == [TextPiece("Yes. ")]
    assert parse("1 <") == [TextPiece("1 <")]
