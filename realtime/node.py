"""What the actors of one session host share: connections, the model's text side, limits, measurements."""

from __future__ import annotations

from dataclasses import dataclass

import redis.asyncio

from engine.messages import GenerateParams, Grammar, Sampling
from realtime.chat_format import ChatFormat
from realtime.engine_link import EngineLink
from realtime.publisher import Publisher
from realtime.session_config import SessionConfig
from realtime.settings import RealtimeSettings
from realtime.tool_dispatch import ToolDispatch
from realtime.turn_metrics import TurnMetrics


@dataclass(frozen=True)
class Node:
    """`model` is the name shown to clients."""

    settings: RealtimeSettings
    model: str
    redis: redis.asyncio.Redis
    publisher: Publisher
    link: EngineLink
    format: ChatFormat
    tools: ToolDispatch
    metrics: TurnMetrics

    @property
    def max_context(self) -> int:
        """Tokens that fit one context; a large number while no engine has said otherwise."""
        client = self.link.current
        return client.ready.models[0].max_context if client is not None else 1 << 20

    def output_budget(self, config: SessionConfig) -> int:
        """Tokens a response may generate in all its rounds."""
        limit = self.settings.max_output_tokens
        return limit if config.max_output_tokens == "inf" else min(config.max_output_tokens, limit)

    def params(self, config: SessionConfig, seed: int, max_tokens: int, grammar: Grammar | None) -> GenerateParams:
        """What a generation of a response is asked for with."""
        chosen = config.sampling
        sampling = Sampling(chosen.temperature, chosen.top_p, chosen.top_k, chosen.min_p, seed)
        return GenerateParams(max_tokens, sampling, self.format.stop_token_ids, grammar)
