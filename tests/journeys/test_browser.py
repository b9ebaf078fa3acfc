"""A person at the chat page, in a real browser with the real model behind it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.async_api import Locator, Page, expect

KEY_DELAY_MS = 40
QUESTION = "What is the capital of France?"
TWO_SENTENCES = "I have three cats and two dogs. Each cat eats two cans a day. "
DESKTOP, PHONE = (1280, 800), (360, 740)
DECIDED = re.compile(r"\b(kept|wait)\b")

# Keeps every state of the answer that was on the screen.
WATCH_ANSWERS = """() => {
  window.answersSeen = [];
  const messages = document.getElementById("messages");
  const note = () => window.answersSeen.push(messages.querySelector(".answer")?.textContent ?? "");
  new MutationObserver(note).observe(messages, { childList: true, subtree: true, characterData: true });
}"""


async def open_chat(page: Page) -> Locator:
    """Returns the text area."""
    await page.goto("/")
    await expect(page.get_by_test_id("connection-status")).to_have_attribute("data-state", "open")
    return page.get_by_test_id("input")


async def ask(page: Page, text: str) -> None:
    """Types and sends a message and waits for the end of the answer."""
    badges = page.get_by_test_id("turn-badge")
    count = await badges.count()
    await page.get_by_test_id("input").press_sequentially(text, delay=KEY_DELAY_MS)
    await page.keyboard.press("Enter")
    await expect(badges).to_have_count(count + 1)


async def overflow(page: Page) -> int:
    """How many pixels of the page stick out to the right."""
    width: int = await page.evaluate("() => document.documentElement.scrollWidth - window.innerWidth")
    return width


async def test_a_question_edited_while_it_is_typed_is_read_along_and_answered(page: Page) -> None:
    box = await open_chat(page)
    await page.get_by_test_id("strategy").select_option("prefill")
    read = page.get_by_test_id("read-ahead")
    await page.evaluate(WATCH_ANSWERS)
    await box.press_sequentially("What is the capitel of Fra", delay=KEY_DELAY_MS)
    await expect(read).to_have_text(re.compile(r"What is the"))
    for _ in range(len("l of Fra")):
        await page.keyboard.press("ArrowLeft")
    await page.keyboard.press("Backspace")
    await box.press_sequentially("a", delay=KEY_DELAY_MS)
    await page.keyboard.press("End")
    await box.press_sequentially("nce?", delay=KEY_DELAY_MS)
    await expect(box).to_have_value(QUESTION)
    await expect(read).to_have_text(QUESTION)
    await expect(page.get_by_test_id("reading")).to_contain_text("All read")
    await expect(page.get_by_test_id("answer")).to_have_count(0)

    await page.keyboard.press("Enter")
    badge = page.get_by_test_id("turn-badge")
    await expect(badge).to_contain_text("to the first token")
    await expect(page.get_by_test_id("message-user")).to_have_text(QUESTION)
    await expect(page.get_by_test_id("answer")).to_contain_text("Paris")
    await expect(box).to_have_value("")
    seen: list[str] = await page.evaluate("() => window.answersSeen")
    assert len({text for text in seen if text}) > 2
    ready = re.search(r"(\d+) of (\d+)", await badge.inner_text())
    assert ready is not None
    assert 0 < int(ready[1]) <= int(ready[2])


async def test_the_page_says_what_is_done_with_the_text_and_what_became_of_it(page: Page, artifacts: Path) -> None:
    box = await open_chat(page)
    await expect(page.get_by_test_id("strategy")).to_have_value("auto")
    await box.press_sequentially(QUESTION, delay=KEY_DELAY_MS)
    await expect(page.get_by_test_id("plan")).to_have_text("Begins to answer in pauses: worth a try")
    await expect(page.get_by_test_id("draft")).to_have_text("The answer is begun")
    await expect(page.get_by_test_id("answer")).to_have_count(0)
    await page.wait_for_timeout(2000)  # The draft speaks, and the page does not know of it.
    await page.screenshot(path=artifacts / "chat_auto.png")
    await page.keyboard.press("Enter")
    await expect(page.get_by_test_id("answer")).to_contain_text("Paris")
    await expect(page.get_by_test_id("draft")).to_have_text(re.compile(r"ready when you sent|went on"))


async def test_the_calculator_answers_exactly(page: Page, artifacts: Path) -> None:
    await open_chat(page)
    toggle = page.get_by_test_id("tool-calculator")
    await toggle.click()
    await expect(toggle).to_have_attribute("aria-pressed", "true")
    await ask(page, "What is 1234 * 5678?")
    await expect(page.get_by_test_id("tool-result")).to_have_text("7006652")
    await expect(page.get_by_test_id("tool-card")).to_have_attribute("data-state", "completed")
    await expect(toggle).to_have_attribute("aria-pressed", "false")
    await page.screenshot(path=artifacts / "chat_tool.png")


async def test_stop_ends_the_answer_and_the_next_one_works(page: Page) -> None:
    box = await open_chat(page)
    stop = page.get_by_test_id("stop")
    await expect(stop).to_be_hidden()
    await box.press_sequentially("Tell me a long story about the sea.", delay=KEY_DELAY_MS)
    await page.keyboard.press("Enter")
    await expect(page.get_by_test_id("answer")).to_have_text(re.compile(r"\S"))
    await stop.click()
    await expect(page.get_by_test_id("turn-badge")).to_contain_text("Stopped")
    await expect(stop).to_be_hidden()
    await ask(page, QUESTION)
    await expect(page.get_by_test_id("answer")).to_have_count(2)


async def test_notes_show_up_before_the_message_is_sent(page: Page, artifacts: Path) -> None:
    box = await open_chat(page)
    await page.get_by_test_id("strategy").select_option("notes")
    await box.press_sequentially(f"{TWO_SENTENCES}How many cans", delay=KEY_DELAY_MS)
    notes = page.get_by_test_id("note")
    await expect(notes.first).to_have_class(DECIDED)
    await expect(notes.first).to_contain_text("I have three cats")
    await expect(notes.last).to_have_class(DECIDED)
    await expect(page.get_by_test_id("read-ahead")).to_have_text(re.compile(r"How many"))
    await box.press_sequentially(" a week", delay=KEY_DELAY_MS)
    await page.screenshot(path=artifacts / "chat.png")
    await ask(page, " is that?")
    await expect(page.get_by_test_id("message-user")).to_have_text(f"{TWO_SENTENCES}How many cans a week is that?")
    await expect(page.get_by_test_id("messages")).not_to_contain_text("[The user is still typing")


async def test_a_reload_keeps_the_conversation(page: Page) -> None:
    await open_chat(page)
    await ask(page, QUESTION)
    answer = await page.get_by_test_id("answer").inner_text()
    await page.reload()
    await expect(page.get_by_test_id("message-user")).to_have_text(QUESTION)
    await expect(page.get_by_test_id("answer")).to_have_text(answer)
    await ask(page, "And of Italy?")
    await expect(page.get_by_test_id("answer")).to_have_count(2)


async def test_with_the_private_switch_nothing_is_read_before_enter(page: Page) -> None:
    box = await open_chat(page)
    frames: list[str] = []
    page.on("websocket", lambda socket: socket.on("framesent", lambda frame: frames.append(str(frame))))
    await page.get_by_test_id("send-only-on-enter").check(force=True)
    await page.reload()
    await expect(page.get_by_test_id("connection-status")).to_have_attribute("data-state", "open")
    await box.press_sequentially("My secret is seven.", delay=KEY_DELAY_MS)
    await expect(page.get_by_test_id("hint")).to_contain_text("Nothing leaves this page")
    assert not any("secret" in frame for frame in frames)
    await page.keyboard.press("Enter")
    await expect(page.get_by_test_id("turn-badge")).to_have_count(1)
    assert any("secret" in frame for frame in frames)


async def test_a_message_that_cannot_be_sent_stays_and_the_page_says_so(page: Page) -> None:
    await page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
    await page.route_web_socket(re.compile("/v1/realtime"), lambda socket: socket.close())
    await page.goto("/")
    await expect(page.get_by_test_id("connection-status")).to_contain_text("Offline")
    await page.get_by_test_id("input").fill(QUESTION)
    await page.keyboard.press("Enter")
    await expect(page.get_by_test_id("hint")).to_contain_text("Not connected")
    await expect(page.get_by_test_id("input")).to_have_value(QUESTION)
    assert await overflow(page) <= 0


@pytest.mark.parametrize(("size", "scheme"), [(DESKTOP, "light"), (DESKTOP, "dark"), (PHONE, "light"), (PHONE, "dark")])
async def test_the_page_fits_the_screen(page: Page, artifacts: Path, size: tuple[int, int], scheme: str) -> None:
    width, height = size
    await page.set_viewport_size({"width": width, "height": height})
    await page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    box = await open_chat(page)
    await page.screenshot(path=artifacts / f"chat_welcome_{width}_{scheme}.png")
    await ask(page, QUESTION)
    await box.press_sequentially("And how many people live there", delay=KEY_DELAY_MS)
    await expect(page.get_by_test_id("send")).to_be_in_viewport(ratio=1)
    await expect(page.get_by_test_id("turn-badge")).to_be_in_viewport()
    assert await overflow(page) <= 0
    await page.screenshot(path=artifacts / f"chat_{width}_{scheme}.png")
