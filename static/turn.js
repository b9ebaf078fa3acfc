// One exchange: the message that was sent, the answer to it, and how long that took.

import { textOf } from "./transcript.js";

/** Drives the transcript from server events. Events: "begin", "end" (detail: the answer's text). */
export class TurnView extends EventTarget {
  #transcript;
  #unconfirmed = [];
  #sentAt = 0;
  #firstDeltaMs = null;
  #responseId = null;
  #requestId = null;

  constructor(transcript) {
    super();
    this.#transcript = transcript;
  }

  /** Whether an answer is awaited or running. */
  get running() {
    return this.#sentAt > 0 || this.#responseId !== null;
  }

  /** Messages that the server has not confirmed yet. */
  get unconfirmed() {
    return this.#unconfirmed;
  }

  /** A message and the request for an answer to it are on their way, under these event_ids. */
  sent(message) {
    this.#requestId = message.requestId;
    this.#unconfirmed.push({ ...message, element: this.#transcript.addUser(message.text, { pending: true }) });
    this.#sentAt = performance.now();
    this.#firstDeltaMs = null;
    this.#transcript.beginTurn();
    this.dispatchEvent(new Event("begin"));
  }

  /** The request with this event_id was refused; returns the text to give back to the user, or null. */
  refused(eventId) {
    if (!eventId) return null;
    const index = this.#unconfirmed.findIndex((message) => message.eventId === eventId);
    if (index < 0 && this.#requestId !== eventId) return null;
    const [message] = index < 0 ? [] : this.#unconfirmed.splice(index, 1);
    message?.element.remove();
    this.#transcript.abandonTurn();
    this.#end("");
    return message?.text ?? null;
  }

  /** The unconfirmed message was sent once more. */
  resent(message, { eventId, requestId }) {
    message.eventId = eventId;
    this.#requestId = requestId;
  }

  /** Another session begins, or this one is shown from a snapshot. */
  reset() {
    this.#transcript.clear();
    this.#unconfirmed = [];
    this.#sentAt = 0;
    this.#responseId = null;
    this.#firstDeltaMs = null;
  }

  /** Shows a conversation as the server has it, and the answer that is running in it. */
  showSnapshot({ items, response }) {
    const wasRunning = this.running;
    const last = items.findLast((item) => item.role === "user");
    const unconfirmed = this.#unconfirmed.filter((message) => !last || textOf(last) !== message.text);
    this.reset();
    for (const item of items) {
      if (item.type === "message" && item.role === "user") {
        this.#transcript.endTurn([]);
        this.#transcript.addUser(textOf(item));
      } else if (item.type !== "message" || item.role === "assistant") {
        this.#transcript.addItem(item);
      }
    }
    if (response) {
      this.#responseId = response.id;
      if (response.item_id) {
        const content = [{ text: response.text }];
        this.#transcript.addItem({ id: response.item_id, type: "message", role: "assistant", content });
      } else {
        this.#transcript.beginTurn();
      }
      this.dispatchEvent(new Event("begin"));
    } else {
      this.#transcript.endTurn([]);
      if (wasRunning && !unconfirmed.length) this.#end("");
    }
    for (const message of unconfirmed) this.sent(message);
  }

  observe(event) {
    this.#handlers[event.type]?.(event);
  }

  #handlers = {
    "conversation.item.added": ({ item }) => this.#itemAdded(item),
    "response.created": ({ response }) => this.#created(response),
    "response.output_item.added": ({ item }) => {
      this.#firstOutput();
      this.#transcript.addItem(item);
    },
    "response.output_text.delta": ({ item_id, delta }) => this.#transcript.appendText(item_id, delta),
    "response.output_text.done": ({ item_id, text }) => this.#transcript.setText(item_id, text),
    "response.mcp_call_arguments.delta": ({ item_id, delta }) => this.#transcript.tool(item_id)?.addArguments(delta),
    "response.mcp_call_arguments.done": (event) => this.#transcript.tool(event.item_id)?.setArguments(event.arguments),
    "response.mcp_call.in_progress": ({ item_id }) => this.#transcript.tool(item_id)?.run(),
    "response.output_item.done": ({ item }) => this.#transcript.tool(item.id)?.finish(item),
    "midstream.tool.progress": (event) => this.#transcript.tool(event.item_id)?.progress(event),
    "midstream.kv.state": (event) => this.#transcript.openTool?.kvState(event),
    "midstream.turn": (event) => this.#turnMeasured(event),
    "response.done": ({ response }) => this.#done(response),
  };

  #itemAdded(item) {
    if (item.role !== "user") return;
    const message = this.#unconfirmed.shift();
    if (message) message.element.classList.remove("pending");
    else this.#transcript.addUser(textOf(item));
  }

  #created(response) {
    this.#responseId = response.id;
    if (!this.#sentAt) this.#transcript.beginTurn();
    this.dispatchEvent(new Event("begin"));
  }

  /** An item opens with its first piece: the answer's first token, or a tool call's name. */
  #firstOutput() {
    if (this.#sentAt && this.#firstDeltaMs === null) this.#firstDeltaMs = performance.now() - this.#sentAt;
  }

  #done(response) {
    const text = this.#transcript.endTurn(this.#badges(response));
    this.#end(text);
  }

  /** What only the server knows of the turn that just ended. */
  #turnMeasured({ ttft_ms: ttft, notes }) {
    if (this.#firstDeltaMs === null && ttft !== null) this.#transcript.addBadge(firstTokenBadge(ttft));
    if (notes) this.#transcript.addBadge({ strong: `${notes}`, text: notes === 1 ? "note used" : "notes used" });
  }

  #end(text) {
    this.#sentAt = 0;
    this.#responseId = null;
    this.dispatchEvent(new CustomEvent("end", { detail: text }));
  }

  #badges({ status, status_details: details, usage }) {
    const badges = [];
    if (this.#firstDeltaMs !== null) badges.push(firstTokenBadge(this.#firstDeltaMs));
    if (usage?.input_tokens) {
      const cached = usage.input_token_details?.cached_tokens ?? 0;
      badges.push({ strong: `${cached} of ${usage.input_tokens}`, text: "prompt tokens were ready",
        title: "Prompt tokens that were already computed when you pressed Enter" });
    }
    if (status === "cancelled") badges.push({ strong: "Stopped", text: "" });
    if (status === "incomplete") badges.push({ strong: "Cut off", text: "at the token limit" });
    if (status === "failed") badges.push({ strong: "Failed", text: details?.error?.code ?? "", kind: "failed" });
    return badges;
  }
}

function firstTokenBadge(milliseconds) {
  return {
    strong: `${Math.round(milliseconds)} ms`,
    text: "to the first token",
    kind: "fast",
    title: "From pressing Enter to the first piece of the answer",
  };
}
