"""The default model's tokenizer, plain and with the pre-tokenizers of other model families."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis
from tokenizers import Tokenizer

from engine.model.loader import prepare_model
from engine.settings import EngineSettings
from realtime.chat_format import ChatFormat, plain_tokenizer
from tests.realtime.scripted_engine import ScriptedHost, scripted_host

QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@pytest.fixture(scope="session")
def smol_folder() -> Path:
    """SmolLM2-135M-Instruct, converted."""
    return prepare_model("default", EngineSettings(model="default").model_cache, lambda stage, fraction: None)


@pytest.fixture(scope="session")
def smol_tokenizer(smol_folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(smol_folder / "tokenizer.json"))


@pytest.fixture(scope="session")
def smol_format(smol_folder: Path) -> ChatFormat:
    return ChatFormat.from_folder(smol_folder)


@pytest.fixture(scope="session")
def qwen_plain_tokenizer(smol_folder: Path) -> Tokenizer:
    """SmolLM2's vocabulary behind Qwen's normaliser and pre-tokenizer."""
    data = json.loads((smol_folder / "tokenizer.json").read_text(encoding="utf-8"))
    data["normalizer"] = {"type": "NFC"}
    split = {"type": "Split", "pattern": {"Regex": QWEN_PATTERN}, "behavior": "Isolated", "invert": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    data["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, byte_level]}
    return plain_tokenizer(json.dumps(data))


@pytest.fixture
async def scripted(
    smol_format: ChatFormat, client: redis.Redis, redis_url: str, tmp_path: Path
) -> AsyncIterator[ScriptedHost]:
    """A host with an empty Redis and an engine that says what the test wants."""
    async with scripted_host(smol_format, redis_url, tmp_path) as host:
        yield host
