// One tool call as a card: arguments, state, progress, result.

const STATE_TEXT = { writing: "writing arguments", running: "running", completed: "done", failed: "failed" };

export class ToolCard {
  #name = document.createElement("span");
  #state = document.createElement("span");
  #kv = document.createElement("span");
  #progress = document.createElement("progress");
  #rows = document.createElement("dl");
  #values = new Map();
  #startedAt = 0;

  constructor(item) {
    this.element = document.createElement("section");
    this.element.className = "tool";
    this.element.dataset.testid = "tool-card";
    this.element.setAttribute("aria-label", `Tool call: ${item.name}`);
    this.#name.className = "tool-name";
    this.#name.textContent = item.name;
    this.#state.className = "tool-state";
    this.#state.dataset.testid = "tool-state";
    this.#kv.className = "tool-kv";
    this.#progress.className = "tool-progress";
    this.#progress.hidden = true;
    const head = document.createElement("div");
    head.className = "tool-head";
    head.append(this.#name, this.#state, this.#kv);
    this.element.append(head, this.#progress, this.#rows);
    this.#setState("writing");
    if (item.arguments) this.setArguments(item.arguments);
    if (item.output != null || item.error) this.finish(item);
  }

  get isOpen() {
    return ["writing", "running"].includes(this.element.dataset.state);
  }

  addArguments(delta) {
    this.#row("Arguments").append(delta);
  }

  setArguments(text) {
    this.#row("Arguments").textContent = text;
  }

  run() {
    this.#startedAt = performance.now();
    this.#setState("running");
  }

  /** Progress only grows, and stops counting once the call is over. */
  progress({ progress, total, message }) {
    if (this.element.dataset.state !== "running") return;
    this.#progress.hidden = false;
    if (total) {
      this.#progress.max = total;
      this.#progress.value = Math.max(this.#progress.value, progress);
    }
    if (message) this.#state.textContent = message;
  }

  finish({ output, error }) {
    this.#progress.hidden = true;
    this.#setState(error ? "failed" : "completed");
    if (this.#startedAt) this.#state.textContent += ` in ${Math.round(performance.now() - this.#startedAt)} ms`;
    const value = this.#row(error ? "Error" : "Result");
    value.dataset.testid = "tool-result";
    value.textContent = error ? error.message : output;
  }

  /** Where the answer's memory was meanwhile. */
  kvState({ state, tokens }) {
    this.#kv.textContent = `KV ${state} · ${tokens} tokens`;
  }

  #setState(state) {
    this.element.dataset.state = state;
    this.#state.textContent = STATE_TEXT[state];
  }

  #row(label) {
    if (!this.#values.has(label)) {
      const term = document.createElement("dt");
      const value = document.createElement("dd");
      term.textContent = label;
      this.#rows.append(term, value);
      this.#values.set(label, value);
    }
    return this.#values.get(label);
  }
}
