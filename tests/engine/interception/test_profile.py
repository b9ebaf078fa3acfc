"""Profiles are found again in noisy timings, and kept."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from engine.interception.profile import (
    PROFILES,
    MovePoint,
    Profile,
    ProfileError,
    StepPoint,
    error,
    fit,
    load,
    save,
)

TRUE = Profile("true", 4e-3, 0.03e-3, 0.05e-6, 3e-6, swap_base_s=20e-6, flat_tokens=64, saturation_tokens=197)


def measured(seed: int, sizes: list[int]) -> list[StepPoint]:
    rng = random.Random(seed)
    contexts = (0, 2_000, 20_000)
    return [StepPoint(n, c, TRUE.forward_s(n, c) * rng.uniform(0.95, 1.05)) for n in sizes for c in contexts]


def moves() -> list[MovePoint]:
    rng = random.Random(3)
    return [MovePoint(n, TRUE.swap_s(n) * rng.uniform(0.95, 1.05)) for n in (16, 64, 256, 1024, 4096) for _ in range(3)]


@pytest.mark.parametrize("seed", range(5))
def test_a_fit_predicts_steps_that_it_has_not_seen(seed: int) -> None:
    profile = fit("found", measured(seed, [1, 4, 16, 64, 128, 256, 512, 1024]), moves())
    assert error(profile, measured(seed + 100, [8, 48, 200, 700, 1500])) < 0.06
    assert profile.flat_tokens in (16, 64)
    assert profile.saturation_tokens == pytest.approx(TRUE.saturation_tokens, rel=0.15)
    assert profile.swap_s(1000) == pytest.approx(TRUE.swap_s(1000), rel=0.05)


def test_a_fit_is_never_negative() -> None:
    steps = [StepPoint(n, c, 0.001 + 0.0001 * n - 1e-8 * c) for n in (1, 10, 100) for c in (0, 1000)]
    profile = fit("found", steps, [MovePoint(10, 0.001), MovePoint(1000, 0.0011)])
    assert profile.context_token_s == 0
    assert min(profile.base_s, profile.token_s, profile.swap_base_s, profile.swap_token_s) >= 0


def test_too_little_is_refused() -> None:
    with pytest.raises(ProfileError, match="three sizes"):
        fit("found", [StepPoint(1, 0, 0.01), StepPoint(2, 0, 0.01)], [])
    with pytest.raises(ProfileError, match="does not get longer"):
        fit("found", [StepPoint(n, 0, 0.01) for n in (1, 10, 100)], [])


def test_a_profile_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "profile.json"
    save(TRUE, path)
    assert load(path) == TRUE
    assert [file.name for file in path.parent.iterdir()] == ["profile.json"]


@pytest.mark.parametrize("text", ["", "{}", '{"name": 3}', "[1, 2]"])
def test_a_damaged_profile_is_refused_with_its_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "profile.json"
    path.write_text(text)
    with pytest.raises(ProfileError, match=r"profile\.json"):
        load(path)
    with pytest.raises(ProfileError, match="missing"):
        load(tmp_path / "missing.json")


def test_released_constants_mean_what_was_decoded() -> None:
    six, thirteen = PROFILES["gptj-6b"], PROFILES["vicuna-13b-tp2"]
    assert six.forward_s(384, 0) == pytest.approx(0.0278, rel=0.01)
    assert thirteen.forward_s(384, 0) == pytest.approx(0.0261, rel=0.01)
    # 448 and 400 KiB a token: 10 and 5 GB/s.
    assert 448 * 1024 / six.swap_s(1) == pytest.approx(10e9, rel=0.01)
    assert 400 * 1024 / thirteen.swap_s(1) == pytest.approx(5e9, rel=0.01)
