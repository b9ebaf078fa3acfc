// The text area: streams what is written, sends on Enter, and never disturbs an input method.

import { InputStream } from "./input_stream.js";
import { wellFormed } from "./text_splice.js";

const STREAM_EVERY_MS = 25;
const MAX_BYTES = 128 * 1024;
const HINT = "Enter sends, Shift+Enter starts a new line";
const PRIVATE_HINT = "Nothing leaves this page before you press Enter";

/** Events: "edit" (the text changed), "send" (detail: {text, eventId}), "stop" (Escape while an answer runs). */
export class Composer extends EventTarget {
  #input;
  #hint;
  #sendButton;
  #connection;
  #stream;
  #timer = 0;
  #flushedAt = 0;
  #composing = false;
  #busy = false;
  #queued = false;
  #private = false;

  constructor(form, connection) {
    super();
    this.#connection = connection;
    this.#stream = new InputStream(connection);
    this.#input = form.querySelector("textarea");
    this.#sendButton = form.querySelector("[type=submit]");
    this.#hint = document.getElementById("hint");
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.submit();
    });
    this.#input.addEventListener("compositionstart", () => (this.#composing = true));
    this.#input.addEventListener("compositionend", () => {
      this.#composing = false;
      this.#edited();
    });
    this.#input.addEventListener("input", () => this.#edited());
    this.#input.addEventListener("keydown", (event) => this.#keyPressed(event));
    this.#show();
  }

  get text() {
    return wellFormed(this.#input.value);
  }

  get stream() {
    return this.#stream;
  }

  set text(value) {
    this.#input.value = value;
    this.#edited();
    this.#input.focus();
  }

  /** While an answer runs, typing stays free and Enter waits. */
  set busy(value) {
    this.#busy = value;
    if (!value && this.#queued) this.submit();
    this.#show();
  }

  /** When on, nothing is streamed. */
  set private(value) {
    this.#private = value;
    if (value) this.#stream.clear();
    else this.#flush();
    this.#show();
  }

  /** Sends the text, now or as soon as the running answer is done. */
  submit() {
    if (this.#composing || !this.text.trim() || this.#tooLong()) return;
    this.#queued = this.#busy;
    const isSent = this.#queued || this.#send();
    this.#show();
    if (!isSent) this.#showHint("error", "Not connected; your message stays here until it can be sent");
  }

  /** A session is there: a new one, or a resumed one whose buffer may hold anything. */
  connected({ resumed }) {
    if (!resumed) this.#stream.reset();
    if (resumed && this.#mayStream()) this.#stream.resend(this.text);
    else this.#flush();
  }

  /** Gives every server event a chance to correct what is believed about the server's buffer. */
  observe(event) {
    if (event.type === "input_text_buffer.committed" || event.type === "input_text_buffer.cleared") {
      this.#stream.known(event.revision);
    } else if (event.type === "error" && this.#stream.isNewConflict(event.error) && this.#mayStream()) {
      this.#stream.resend(this.text);
    }
  }

  #keyPressed(event) {
    // Safari ends a composition before the key that ended it is reported; 229 marks that key.
    if (event.isComposing || this.#composing || event.keyCode === 229) return;
    if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      this.submit();
    } else if (event.key === "Escape" && this.#queued) {
      this.#queued = false;
      this.#show();
    } else if (event.key === "Escape" && this.#busy) {
      this.dispatchEvent(new Event("stop"));
    }
  }

  #edited() {
    this.dispatchEvent(new Event("edit"));
    this.#show();
    if (this.#timer || !this.#mayStream()) return;
    // The first key after a pause goes at once, those that follow quickly go together.
    const wait = STREAM_EVERY_MS - (performance.now() - this.#flushedAt);
    if (wait > 0) this.#timer = setTimeout(() => this.#flush(), wait);
    else this.#flush();
  }

  #flush() {
    clearTimeout(this.#timer);
    this.#timer = 0;
    this.#flushedAt = performance.now();
    if (this.#mayStream()) this.#stream.update(this.text);
  }

  #mayStream() {
    return !this.#private && !this.#composing && this.#connection.isOpen && !this.#tooLong();
  }

  /** False when there is no connection. */
  #send() {
    const text = this.text;
    clearTimeout(this.#timer);
    this.#timer = 0;
    const eventId = this.#stream.commit(text);
    if (!eventId) return false;
    this.#input.value = "";
    this.dispatchEvent(new CustomEvent("send", { detail: { text, eventId } }));
    this.dispatchEvent(new Event("edit"));
    return true;
  }

  #tooLong() {
    const text = this.#input.value;
    return text.length * 3 > MAX_BYTES && new TextEncoder().encode(text).length > MAX_BYTES;
  }

  #show() {
    const tooLong = this.#tooLong();
    this.#sendButton.disabled = !this.#input.value.trim() || tooLong;
    if (tooLong) this.#showHint("error", "Too long: a message has at most 128 KiB");
    else if (this.#queued) this.#showHint("queued", "Sends when the answer is done · Esc takes it back");
    else this.#showHint("", this.#private ? PRIVATE_HINT : HINT);
  }

  #showHint(kind, text) {
    if (this.#hint.textContent !== text) this.#hint.textContent = text;
    if (kind) this.#hint.dataset.kind = kind;
    else delete this.#hint.dataset.kind;
  }
}
