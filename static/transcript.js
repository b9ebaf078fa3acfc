// The conversation on the page. Text arrives as text nodes only, batched per animation frame.

import { ToolCard } from "./tool_card.js";

const NEAR_BOTTOM_PX = 100;

export class Transcript {
  #scroller = document.getElementById("transcript");
  #list = document.getElementById("messages");
  #welcome = document.getElementById("welcome");
  #jump = document.getElementById("jump");
  #following = true;
  #pendingText = new Map();
  #frame = 0;
  #items = new Map();
  #turn = null;

  constructor() {
    this.#scroller.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    this.#jump.addEventListener("click", () => this.#scrollDown());
    const resized = new ResizeObserver(() => this.#follow());
    resized.observe(this.#scroller);
    resized.observe(this.#list);
  }

  clear() {
    this.#list.replaceChildren();
    this.#items.clear();
    this.#pendingText.clear();
    this.#turn = null;
    this.#welcome.hidden = false;
  }

  /** A message of the user; pending until the server has it. */
  addUser(text, { pending = false } = {}) {
    const message = this.#message("user");
    message.textContent = text;
    message.classList.toggle("pending", pending);
    this.#scrollDown();
    return message;
  }

  /** The place of the next answer, with a sign that it is being waited for. */
  beginTurn() {
    this.#turn = this.#message("assistant");
    this.#turn.classList.add("running", "waiting");
    this.#follow();
  }

  /** Takes an empty answer back, when its request was refused. */
  abandonTurn() {
    if (this.#turn?.classList.contains("waiting")) this.#turn.remove();
    else this.#turn?.classList.remove("running");
    this.#turn = null;
  }

  /** The part of the answer that belongs to an item: running text or a tool card. */
  addItem(item) {
    if (this.#items.has(item.id)) return;
    if (!this.#turn) this.beginTurn();
    this.#turn.classList.remove("waiting");
    if (item.type === "message") {
      const answer = document.createElement("div");
      answer.className = "answer";
      answer.dataset.testid = "answer";
      answer.append(textOf(item));
      this.#turn.append(answer);
      this.#items.set(item.id, answer);
    } else {
      const card = new ToolCard(item);
      this.#turn.append(card.element);
      this.#items.set(item.id, card);
    }
    this.#follow();
  }

  /** The card of a tool call, if it is on the page. */
  tool(itemId) {
    const found = this.#items.get(itemId);
    return found instanceof ToolCard ? found : null;
  }

  /** The card of the call that is under way, if any. */
  get openTool() {
    return [...this.#items.values()].find((item) => item instanceof ToolCard && item.isOpen);
  }

  appendText(itemId, delta) {
    this.#pendingText.set(itemId, (this.#pendingText.get(itemId) ?? "") + delta);
    this.#frame ||= requestAnimationFrame(() => this.#flushText());
  }

  /** The whole text, which settles whatever the pieces said. */
  setText(itemId, text) {
    this.#pendingText.delete(itemId);
    const answer = this.#items.get(itemId);
    if (answer && answer.textContent !== text) answer.textContent = text;
    this.#follow();
  }

  /** One more badge for the answer that ended last. */
  addBadge(badge) {
    const rows = this.#list.querySelectorAll(".badges");
    rows[rows.length - 1]?.append(badgeElement(badge));
    this.#follow();
  }

  /** The answer is over; badges are `{text, strong, title, kind}`. Returns the answer's text. */
  endTurn(badges) {
    this.#flushText();
    const turn = this.#turn;
    this.#turn = null;
    if (!turn) return "";
    turn.classList.remove("running", "waiting");
    if (badges.length) turn.append(badgeRow(badges));
    this.#follow();
    return [...turn.querySelectorAll(".answer")].map((answer) => answer.textContent).join("\n");
  }

  #message(role) {
    this.#welcome.hidden = true;
    const message = document.createElement("li");
    message.className = `message ${role}`;
    message.dataset.testid = `message-${role}`;
    this.#list.append(message);
    return message;
  }

  #flushText() {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    for (const [itemId, text] of this.#pendingText) {
      const answer = this.#items.get(itemId);
      if (answer?.lastChild) answer.lastChild.appendData(text);
      else answer?.append(text);
    }
    this.#pendingText.clear();
    this.#follow();
  }

  #scrolled() {
    const { scrollHeight, scrollTop, clientHeight } = this.#scroller;
    this.#following = scrollHeight - scrollTop - clientHeight < NEAR_BOTTOM_PX;
    this.#jump.hidden = this.#following;
  }

  #follow() {
    if (this.#following && this.#welcome.hidden) this.#scroller.scrollTop = this.#scroller.scrollHeight;
  }

  #scrollDown() {
    this.#following = true;
    this.#follow();
  }
}

/** The text of a message item. */
export function textOf(item) {
  return (item.content ?? []).map((part) => part.text ?? "").join("");
}

function badgeRow(badges) {
  const row = document.createElement("p");
  row.className = "badges";
  row.dataset.testid = "turn-badge";
  row.append(...badges.map(badgeElement));
  return row;
}

function badgeElement({ strong, text, title, kind }) {
  const badge = document.createElement("span");
  badge.className = kind ? `badge ${kind}` : "badge";
  if (title) badge.title = title;
  const value = document.createElement("strong");
  value.textContent = strong;
  badge.append(value, text);
  return badge;
}
