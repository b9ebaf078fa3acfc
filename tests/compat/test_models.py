"""/v1/models."""

from __future__ import annotations

import openai
import pytest


def test_models_are_listed(client: openai.OpenAI) -> None:
    models = list(client.models.list())
    assert [model.object for model in models] == ["model"]
    assert models[0].id
    assert models[0].owned_by == "midstream"


def test_a_model_is_retrieved_by_its_name_and_as_default(client: openai.OpenAI) -> None:
    (listed,) = client.models.list()
    assert client.models.retrieve(listed.id) == listed
    assert client.models.retrieve("default") == listed


def test_an_unknown_model_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as refused:
        client.models.retrieve("gpt-9")
    assert (refused.value.code, refused.value.param) == ("model_not_found", "model")
    assert refused.value.type == "invalid_request_error"


def test_a_model_cannot_be_deleted(client: openai.OpenAI) -> None:
    with pytest.raises(openai.APIStatusError) as refused:
        client.models.delete("default")
    assert (refused.value.status_code, refused.value.code) == (405, "method_not_allowed")
