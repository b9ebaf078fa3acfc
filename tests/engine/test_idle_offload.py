"""KV of idle contexts that must make room: moved to the host, where the longest idle makes room in turn."""

from __future__ import annotations

from typing import Any

from engine import messages as m
from engine.interception.policies.static import Preserve
from engine.interception.policy import Load
from tests.engine.driver import Driver, make_driver, reference_greedy

PROMPT = list(range(3, 25))


class Moves(Preserve):
    """Moves whatever must make room."""

    def moves_preempted(self, tokens: int, load: Load) -> bool:
        return True


def idle(tiny: Any, count: int, *, blocks: int, host_blocks: int) -> Driver:
    """Contexts of 22 tokens in 6 blocks that were computed one after another and have nothing to do."""
    driver = make_driver(tiny, blocks=blocks, host_blocks=host_blocks, policy=Moves())
    for i in range(1, count + 1):
        driver.apply(m.Open(i, "background"), m.Append(i, [i, *PROMPT[1:]]))
        driver.run()
    return driver


def need(driver: Driver, blocks: int) -> None:
    """Other work takes so many blocks, and ends."""
    driver.apply(
        m.Open(90, "foreground"), m.Append(90, [90] * (4 * blocks - 1)), m.Generate(90, 90, m.GenerateParams(1))
    )
    driver.run()
    driver.apply(m.Close(90))
    driver.run()


def test_an_idle_context_goes_on_from_what_the_host_kept(tiny: Any, tiny_reference: Any) -> None:
    driver = idle(tiny, 2, blocks=12, host_blocks=16)
    need(driver, 12)
    assert driver.core.stats().blocks_host == 12
    for i in (1, 2):
        driver.apply(m.Generate(i, i, m.GenerateParams(4)))
        driver.run()
        assert driver.finished(i).cached_tokens == len(PROMPT)
        assert driver.tokens_of(i) == reference_greedy(tiny_reference, [i, *PROMPT[1:]], 4)
    assert driver.core.counters.recomputed_tokens <= 2


def test_text_can_be_changed_while_its_kv_is_on_the_host(tiny: Any, tiny_reference: Any) -> None:
    driver = idle(tiny, 1, blocks=8, host_blocks=8)
    need(driver, 8)
    driver.apply(m.Truncate(1, 10), m.Append(1, [40, 41, 42]), m.Generate(1, 1, m.GenerateParams(4)))
    driver.run()
    assert driver.finished(1).cached_tokens == 10
    assert driver.tokens_of(1) == reference_greedy(tiny_reference, [1, *PROMPT[1:10], 40, 41, 42], 4)


def test_the_longest_idle_makes_room_on_the_host(tiny: Any) -> None:
    driver = idle(tiny, 3, blocks=24, host_blocks=15)
    need(driver, 24)
    assert driver.core.stats().blocks_host == 12
    for i, cached in ((3, 22), (2, 22), (1, 0)):
        driver.apply(m.Generate(i, i, m.GenerateParams(1)))
        driver.run()
        assert driver.finished(i).cached_tokens == cached


def test_held_contexts_find_a_share_of_the_host_free(tiny: Any) -> None:
    driver = idle(tiny, 2, blocks=12, host_blocks=12)
    need(driver, 12)
    assert driver.core.stats().blocks_host == 6


def test_closing_frees_the_host(tiny: Any) -> None:
    driver = idle(tiny, 2, blocks=12, host_blocks=16)
    need(driver, 12)
    driver.apply(m.Close(1), m.Close(2))
    driver.run()
    assert (driver.core.stats().blocks_host, driver.core.stats().blocks_free) == (0, 12)
