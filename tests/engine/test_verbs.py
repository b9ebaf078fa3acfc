"""Random sequences of verbs on several contexts, against an oracle that recomputes everything from the tokens."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.random_policy import RandomPolicy
from engine import messages as m
from tests.engine.driver import Driver, make_driver, reference_greedy

CONTEXTS = 3
CONTEXT = st.integers(1, CONTEXTS)
PIECE = st.lists(st.integers(0, 95), min_size=1, max_size=9)
SHARE = st.floats(0, 1)
VERB = st.one_of(
    st.tuples(st.just("append"), CONTEXT, PIECE),
    st.tuples(st.just("truncate"), CONTEXT, SHARE),
    st.tuples(st.just("generate"), CONTEXT, st.integers(1, 6)),
    st.tuples(st.just("cancel"), CONTEXT, st.none()),
    st.tuples(st.just("hold"), CONTEXT, st.none()),
    st.tuples(st.just("resume"), CONTEXT, PIECE),
    st.tuples(st.just("fork"), CONTEXT, CONTEXT),
    st.tuples(st.just("priority"), CONTEXT, st.booleans()),
    st.tuples(st.just("steps"), CONTEXT, st.integers(1, 3)),
)


class Session:
    """Turns drawn verbs into legal commands, remembers what each generation started from."""

    def __init__(self, model: Any, seed: int) -> None:
        # 20 blocks of 4 for three contexts of up to 60 tokens: KV is taken away all the time.
        self.driver: Driver = make_driver(
            model, blocks=20, host_blocks=12, policy=RandomPolicy(seed), step_tokens=7, background_step_tokens=3
        )
        self.prompts: dict[int, list[int]] = {}
        for context in range(1, CONTEXTS + 1):
            self.driver.apply(m.Open(context, "foreground"), m.Append(context, [context]))

    def obey(self, verb: str, context: int, argument: Any) -> None:
        driver, state = self.driver, self.driver.core._contexts[context]
        length = len(state.tokens)
        if verb == "append" and state.generation is None and length < 40:
            driver.apply(m.Append(context, argument))
        elif verb == "truncate":
            driver.apply(m.Truncate(context, 1 + int((length - 1) * argument)))
        elif verb == "generate" and state.generation is None and not state.held and length < 50:
            driver.apply(m.Generate(context, self._start(state.tokens), m.GenerateParams(argument)))
        elif verb == "cancel":
            driver.apply(m.Cancel(context))
        elif verb == "hold":
            driver.apply(m.Hold(context, "tool"))
        elif verb == "resume" and state.held and length < 40:
            generation = self._start(state.tokens + argument)
            driver.apply(m.Resume(context, argument, generation, m.GenerateParams(4)))
        elif verb == "fork" and argument != context:
            driver.apply(m.Close(argument), m.Fork(context, argument, "background"))
        elif verb == "priority":
            driver.apply(m.SetPriority(context, "foreground" if argument else "background"))
        elif verb == "steps":
            for _ in range(argument):
                driver.step()

    def _start(self, prompt: list[int]) -> int:
        generation = len(self.prompts) + 1
        self.prompts[generation] = list(prompt)
        return generation


@pytest.fixture(scope="module")
def oracle(tiny_reference: Any) -> Any:
    @cache
    def greedy(prompt: tuple[int, ...], count: int) -> list[int]:
        return reference_greedy(tiny_reference, prompt, count)

    return greedy


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(VERB, max_size=40), st.integers(0, 3))
def test_any_sequence_of_verbs_equals_recomputing_everything(
    tiny: Any, oracle: Any, verbs: list[tuple[str, int, Any]], seed: int
) -> None:
    """Whatever a policy does with held KV meanwhile, in memory that is never enough."""
    session = Session(tiny, seed)
    for verb in verbs:
        session.obey(*verb)
    driver = session.driver
    driver.run()
    assert driver.of_kind(m.Failed) == []
    for generation, prompt in session.prompts.items():
        tokens = driver.tokens_of(generation)
        assert tokens == oracle(tuple(prompt), 6)[: len(tokens)]
        assert driver.finished(generation).output_tokens == len(tokens)
    # Whatever happened, each context still says the right thing next.
    for context in range(1, CONTEXTS + 1):
        state = driver.core._contexts[context]
        generation = session._start(state.tokens)
        driver.apply(m.Hold(context, "idle"), m.Resume(context, [], generation, m.GenerateParams(3)))
    driver.run()
    for generation, prompt in list(session.prompts.items())[-CONTEXTS:]:
        assert driver.tokens_of(generation) == oracle(tuple(prompt), 6)[:3]
