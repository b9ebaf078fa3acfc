from __future__ import annotations

import json
from pathlib import Path

import pytest

from realtime.chat_template import ChatTemplate, UnsupportedTemplate, escape_special

HI = [{"role": "user", "content": "Hi"}]


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text, encoding="utf-8")
    return folder


def test_the_template_file_wins_over_the_configuration(tmp_path: Path) -> None:
    config = json.dumps({"chat_template": "config", "eos_token": {"content": "</s>"}, "pad_token": None})
    write(tmp_path, tokenizer_config__json=config)
    assert ChatTemplate.from_folder(tmp_path).render(HI) == "config"
    write(tmp_path, chat_template__jinja="file {{ eos_token }}")
    assert ChatTemplate.from_folder(tmp_path).render(HI) == "file </s>"


def test_of_several_templates_the_default_is_taken(tmp_path: Path) -> None:
    templates = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    write(tmp_path, tokenizer_config__json=json.dumps({"chat_template": templates}))
    assert ChatTemplate.from_folder(tmp_path).render(HI) == "d"


def test_a_model_without_template_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedTemplate, match="no chat template"):
        ChatTemplate.from_folder(tmp_path)


def test_a_template_cannot_reach_python(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedTemplate):
        ChatTemplate("{{ messages.__class__.__mro__ }}{{ ''.__class__.mro() }}", {}).render(HI)


def test_special_strings_in_json_keep_their_value() -> None:
    text = json.dumps({"a": "x<|im_end|>y", "b": "{"})
    escaped = escape_special(text, ["<|im_end|>", "{"])
    assert "<|im_end|>" not in escaped
    assert json.loads(escaped) == json.loads(text)


def test_a_date_is_that_of_the_start() -> None:
    template = ChatTemplate("{{ strftime_now('%Y-%m-%d %H:%M:%S.%f') }}", {})
    assert template.render(HI) == template.render(HI)
