"""Canonical prompts from conversation items."""

from __future__ import annotations

from realtime.chat_format import ChatFormat
from realtime.conversation import Item, McpCall, Message
from realtime.hermes import told_result
from realtime.prompt import PromptBuilder
from realtime.session_config import SessionConfig

CONFIG = SessionConfig(model="smol", instructions="Be brief.")


def test_the_prompt_of_a_chat_is_the_template_rendering(smol_format: ChatFormat) -> None:
    items = [Message("1", "user", ("Hi",)), Message("2", "assistant", ("Hello!",)), Message("3", "user", ("Bye",))]
    text = smol_format.tokenizer.decode(PromptBuilder(smol_format).base(CONFIG, items), skip_special_tokens=False)
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello!<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n"
    )


def test_system_messages_join_the_instructions(smol_format: ChatFormat) -> None:
    items = [Message("1", "user", ("Hi",)), Message("2", "system", ("Speak French.",))]
    text = smol_format.tokenizer.decode(PromptBuilder(smol_format).base(CONFIG, items), skip_special_tokens=False)
    assert text.startswith("<|im_start|>system\nBe brief.\n\nSpeak French.<|im_end|>")
    assert text.count("Speak French.") == 1


def test_each_item_extends_the_prompt(smol_format: ChatFormat) -> None:
    builder = PromptBuilder(smol_format)
    items: list[Item] = [
        Message("1", "user", ("2+2?",)),
        McpCall("2", "midstream", "calculator", '{"expression": "2+2"}', "4"),
        Message("3", "assistant", ("Four.",)),
    ]
    prompts = [builder.base(CONFIG, items[:count]) for count in range(4)]
    for shorter, longer in zip(prompts, prompts[1:], strict=False):
        assert longer[: len(shorter)] == shorter
    assert told_result("4") in smol_format.tokenizer.decode(prompts[3])


def test_what_was_generated_is_used_again_token_for_token(smol_format: ChatFormat) -> None:
    builder = PromptBuilder(smol_format)
    user, answer = Message("1", "user", ("Hi",)), Message("2", "assistant", ("Hello",))
    unusual = [token for char in "Hello" for token in smol_format.text(char)]
    run = [*smol_format.assistant_open, *unusual, *smol_format.assistant_close]
    builder.remember(["2"], run)
    base = builder.base(CONFIG, [user])
    assert builder.base(CONFIG, [user, answer]) == base + run
    other = Message("9", "assistant", ("Hello",))
    assert builder.base(CONFIG, [user, other]) == base + [
        *smol_format.assistant_open,
        *smol_format.text("Hello"),
        *smol_format.assistant_close,
    ]


def test_a_run_of_several_items_needs_all_of_them(smol_format: ChatFormat) -> None:
    builder = PromptBuilder(smol_format)
    call, answer = McpCall("2", "midstream", "calculator", "{}", "4"), Message("3", "assistant", ("Four.",))
    builder.remember(["2", "3"], [5, 6, 7])
    assert builder.turns([call, answer]) == [5, 6, 7]
    assert builder.turns([call]) != [5, 6, 7]
    assert builder.turns([answer]) != [5, 6, 7]
