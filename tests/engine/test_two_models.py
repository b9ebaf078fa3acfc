"""A model that thinks and a model that answers in one engine: separate pools, one scheduler."""

from __future__ import annotations

from typing import Any

from engine import messages as m
from engine.model.runner_transformers import TransformersRunner
from engine.served_model import ServedModel
from tests.engine.driver import Driver, load, load_reference, make_core, reference_greedy

PROMPT = [5, 17, 3, 88, 41, 9, 9, 30, 2, 64, 71, 12, 50]


def pair(tiny: Any, other: Any, **options: Any) -> Driver:
    models = [
        ServedModel("answers", TransformersRunner(tiny, 64, 4)),
        ServedModel("thinks", TransformersRunner(other, 20, 4)),
    ]
    return Driver(make_core(models, **options))


def test_both_models_answer_in_the_same_steps(tiny: Any, tiny_reference: Any, tiny_folder: Any) -> None:
    driver, reference = pair(tiny, load(tiny_folder)), load_reference(tiny_folder)
    driver.apply(m.Open(1, "foreground"), m.Open(2, "foreground", 1))
    for context in (1, 2):
        driver.apply(m.Append(context, PROMPT), m.Generate(context, context, m.GenerateParams(20, speculate=False)))
    driver.run()
    assert driver.tokens_of(1) == reference_greedy(tiny_reference, PROMPT, 20)
    assert driver.tokens_of(2) == reference_greedy(reference, PROMPT, 20)
    assert driver.core.counters.steps == 20


def test_the_same_text_is_not_shared_between_models(tiny: Any, tiny_folder: Any) -> None:
    driver = pair(tiny, load(tiny_folder))
    driver.apply(m.Open(1, "background"), m.Append(1, PROMPT))
    driver.run()
    driver.apply(m.Open(2, "background", 1), m.Append(2, PROMPT))
    driver.run()
    assert driver.core.counters.prefix_hit_tokens == 0


def test_a_full_pool_of_one_model_takes_nothing_from_the_other(tiny: Any, tiny_folder: Any) -> None:
    driver = pair(tiny, load(tiny_folder))
    driver.apply(m.Open(1, "background"), m.Append(1, PROMPT))
    driver.run()
    for context in (2, 3, 4):
        driver.apply(m.Open(context, "foreground", 1), m.Append(context, [context, *PROMPT * 2]))
        driver.apply(m.Generate(context, context, m.GenerateParams(8)))
    driver.run()
    assert all(driver.finished(context).output_tokens == 8 for context in (2, 3, 4))
    assert {moved.context for moved in driver.of_kind(m.KvMoved)} <= {2, 3, 4}


def test_forks_stay_with_their_model(tiny: Any, tiny_folder: Any) -> None:
    driver = pair(tiny, load(tiny_folder))
    driver.apply(m.Open(1, "background", 1), m.Append(1, PROMPT))
    driver.run()
    driver.apply(m.Fork(1, 2, "foreground"), m.Generate(2, 2, m.GenerateParams(5)))
    driver.run()
    assert driver.tokens_of(2) == reference_greedy(load_reference(tiny_folder), PROMPT, 5)


def test_a_model_that_is_not_there_is_refused(tiny: Any, tiny_folder: Any) -> None:
    driver = pair(tiny, load(tiny_folder))
    driver.apply(m.Open(1, "foreground", 2))
    driver.run()
    assert [failure.code for failure in driver.of_kind(m.Failed)] == ["invalid_value"]
