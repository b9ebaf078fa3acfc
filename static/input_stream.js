// Mirrors the text being written into the server's input buffer, edit by edit.

import { minimalSplice } from "./text_splice.js";

const REMEMBERED_REVISIONS = 64;

/**
 * Every accepted edit raises the server's revision by one, so it can be predicted while edits are on their way. When
 * the server disagrees, the whole text is sent once more, and the revision is unknown (null) until the server tells it.
 */
export class InputStream {
  #connection;
  #text = "";
  #revision = null;
  #editsSinceKnown = 0;
  #resentAt = 0;
  #sent = 0;
  #textAt = new Map();

  constructor(connection) {
    this.#connection = connection;
  }

  /** Brings the server's buffer to `text`; false when that could not be sent. */
  update(text) {
    if (text === this.#text) return true;
    const { start, end, text: inserted } = minimalSplice(this.#text, text);
    const appends = start === this.#text.length;
    return this.#edit(text, appends
      ? { type: "input_text_buffer.append", text: inserted }
      : { type: "input_text_buffer.replace", text: inserted, start, end });
  }

  /** The text of an edit that the server speaks about; null when it is not remembered. */
  textAt(revision) {
    return this.#textAt.get(revision) ?? null;
  }

  /** Empties the server's buffer. */
  clear() {
    if (this.#text && this.#edit("", { type: "input_text_buffer.clear" })) this.#editsSinceKnown = 0;
  }

  /** Commits `text`, whatever the buffer held; returns the event_id, or null without a connection. */
  commit(text) {
    const eventId = this.#connection.send({ type: "input_text_buffer.commit", text });
    if (eventId) {
      this.#text = "";
      this.#count();
      this.#editsSinceKnown = 0;
    }
    return eventId;
  }

  /** A new session: its buffer is empty. */
  reset() {
    this.#text = "";
    this.#revision = this.#editsSinceKnown = 0;
    this.#textAt.clear();
  }

  /** After a reconnect, or when the server's buffer turned out to be at another revision. */
  resend(text) {
    this.#revision = null;
    this.#resentAt = this.#sent + 1;
    return this.#edit(text, { type: "input_text_buffer.replace", text });
  }

  /** The server said at which revision it is, counting everything up to the last commit or clear. */
  known(revision) {
    this.#revision = revision + this.#editsSinceKnown;
  }

  /** Whether an error means that the whole text must be sent again; edits already under way then are not counted. */
  isNewConflict(error) {
    const number = Number(/^edit_(\d+)$/.exec(error.event_id ?? "")?.[1] ?? 0);
    return error.code === "revision_conflict" && number >= this.#resentAt;
  }

  #edit(text, event) {
    const base = this.#revision === null ? {} : { base_revision: this.#revision };
    const sent = this.#connection.send({ ...event, ...base, event_id: `edit_${this.#sent + 1}` });
    if (!sent) return false;
    this.#sent++;
    this.#text = text;
    this.#count();
    return true;
  }

  #count() {
    this.#editsSinceKnown++;
    if (this.#revision === null) return;
    this.#textAt.set(++this.#revision, this.#text);
    this.#textAt.delete(this.#revision - REMEMBERED_REVISIONS);
  }
}
