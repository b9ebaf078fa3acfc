"""What the host measures of turns and shows as Prometheus metrics (names as in docs/operations.md)."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from engine.messages import Stats, ToolAck
from realtime.messages import TurnRecord

# Typed input is answered in milliseconds: buckets start well below those of request-response servers.
BUCKETS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 30, 60)


_ENGINE_COUNTERS = {
    "steps": ("midstream_engine_steps", "Steps of the engine."),
    "step_seconds": ("midstream_engine_step_seconds", "Time spent in steps."),
    "prefill_tokens": ("midstream_engine_prefill_tokens", "Prompt tokens computed."),
    "decode_tokens": ("midstream_engine_decode_tokens", "Tokens generated."),
    "prefix_hit_tokens": ("midstream_prefix_hit_tokens", "Prompt tokens found in the prefix cache."),
    "drafted_tokens": ("midstream_drafted_tokens", "Guessed tokens that were verified."),
    "accepted_tokens": ("midstream_accepted_tokens", "Guessed tokens that were right."),
    "preemptions": ("midstream_preemptions", "Contexts that had to give their KV blocks back."),
    "recomputed_tokens": ("midstream_recomputed_tokens", "Tokens whose KV was dropped and computed again."),
    "swapped_out_tokens": ("midstream_swapped_out_tokens", "Tokens whose KV was moved to host memory."),
    "swapped_in_tokens": ("midstream_swapped_in_tokens", "Tokens whose KV was moved back to the device."),
}


class _EngineCounters:
    """The engine's own counters, passed on; they begin anew when the engine is a new one."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._counters = {
            field: Counter(name, text, ("node",), registry=registry) for field, (name, text) in _ENGINE_COUNTERS.items()
        }
        self._memory = Counter(
            "midstream_kv_token_seconds", "KV memory times time, by cause.", ("node", "cause"), registry=registry
        )
        self._seen: dict[str, float] = {}

    def update(self, node: str, stats: Stats) -> None:
        for field, counter in self._counters.items():
            counter.labels(node).inc(self._growth(field, float(getattr(stats, field))))
        for cause, amount in stats.memory.items():
            self._memory.labels(node, cause).inc(self._growth(f"memory {cause}", amount))

    def _growth(self, name: str, value: float) -> float:
        seen, self._seen[name] = self._seen.get(name, 0.0), value
        return value - seen if value >= seen else value


class TurnMetrics:
    """One registry per host process; every series carries the node."""

    def __init__(self, node: str) -> None:
        self.registry = CollectorRegistry()
        self._node = node
        labels = ("node", "strategy")
        self._first_token = Histogram(
            "midstream_time_to_first_token_seconds",
            "From commit to first token.",
            labels,
            buckets=BUCKETS,
            registry=self.registry,
        )
        self._answer = Histogram(
            "midstream_answer_seconds",
            "From commit to the complete answer.",
            labels,
            buckets=BUCKETS,
            registry=self.registry,
        )
        self._typing = Histogram(
            "midstream_input_to_commit_seconds",
            "From the first keystroke to commit.",
            ("node",),
            buckets=BUCKETS,
            registry=self.registry,
        )
        self._prefilled = Counter(
            "midstream_prefilled_tokens",
            "Tokens prefilled, before and after commit.",
            ("node", "phase"),
            registry=self.registry,
        )
        self._output = Counter("midstream_output_tokens", "Answer tokens.", ("node",), registry=self.registry)
        self._turns = Counter("midstream_turns", "Turns by how they ended.", ("node", "status"), registry=self.registry)
        self._notes = Counter("midstream_notes", "Notes written before Send.", ("node",), registry=self.registry)
        self._drafts = Counter(
            "midstream_drafts",
            "Answers begun before Send, by what became of them.",
            ("node", "outcome"),
            registry=self.registry,
        )
        self._draft_tokens = Counter(
            "midstream_draft_tokens", "Tokens of drafts, by their use.", ("node", "use"), registry=self.registry
        )
        self._speculative_calls = Counter(
            "midstream_speculative_calls",
            "Tool calls begun before Send, by their use.",
            ("node", "use"),
            registry=self.registry,
        )
        self._tool_wait = Histogram(
            "midstream_tool_wait_seconds",
            "From hold to tool result.",
            ("node", "tool", "outcome"),
            buckets=BUCKETS,
            registry=self.registry,
        )
        self._hints = Counter(
            "midstream_tool_hints",
            "What the engine was told of running calls, by its answer.",
            ("node", "state", "outcome"),
            registry=self.registry,
        )
        self._blocks = Gauge("midstream_kv_blocks", "KV blocks by state.", ("node", "state"), registry=self.registry)
        self._requests = Gauge(
            "midstream_contexts", "Contexts with work, by state.", ("node", "state"), registry=self.registry
        )
        self._engine = _EngineCounters(self.registry)
        self._sessions = Gauge("midstream_sessions", "Sessions in memory.", ("node",), registry=self.registry)
        self._engine_up = Gauge("midstream_engine_up", "1 while an engine answers.", ("node",), registry=self.registry)

    def turn(self, record: TurnRecord) -> None:
        """Counts one finished turn."""
        node = self._node
        self._turns.labels(node, record.status).inc()
        self._prefilled.labels(node, "before_commit").inc(record.prefilled_before_commit)
        self._prefilled.labels(node, "after_commit").inc(record.prefilled_after_commit)
        self._output.labels(node).inc(record.output_tokens)
        self._notes.labels(node).inc(record.notes)
        if record.first_token_at:
            self._first_token.labels(node, record.strategy).observe(record.first_token_at - record.committed_at)
        if record.status == "completed":
            self._answer.labels(node, record.strategy).observe(record.done_at - record.committed_at)
        if record.typing_started_at:
            self._typing.labels(node).observe(record.committed_at - record.typing_started_at)

    def drafts(self, started: int, outcome: str | None, used: int, wasted: int) -> None:
        """Those of one turn; `outcome` is that of the last one, if there was any, and the others were for nothing."""
        best = outcome or "unused"
        if started:
            self._drafts.labels(self._node, best).inc()
            self._drafts.labels(self._node, "unused").inc(started - 1)
        self._draft_tokens.labels(self._node, "used").inc(used)
        self._draft_tokens.labels(self._node, "wasted").inc(wasted)

    def speculative_call(self, *, is_used: bool) -> None:
        self._speculative_calls.labels(self._node, "used" if is_used else "unused").inc()

    def tool(self, name: str, outcome: str, seconds: float) -> None:
        self._tool_wait.labels(self._node, name, outcome).observe(seconds)

    def hint(self, ack: ToolAck) -> None:
        self._hints.labels(self._node, ack.state, ack.outcome).inc()

    def gauges(self, stats: Stats | None, sessions: int) -> bytes:
        """Sets the gauges and returns the whole exposition text."""
        node = self._node
        self._sessions.labels(node).set(sessions)
        self._engine_up.labels(node).set(stats is not None)
        if stats is not None:
            self._blocks.labels(node, "free").set(stats.blocks_free - stats.blocks_cached)
            for state in ("cached", "running", "idle", "held", "host"):
                self._blocks.labels(node, state).set(getattr(stats, f"blocks_{state}"))
            self._engine.update(node, stats)
            self._requests.labels(node, "running").set(stats.running)
            self._requests.labels(node, "waiting").set(stats.waiting)
        return generate_latest(self.registry)
