// What is done with the unsent text and why, what the model has read of it, its notes, and the answer it has begun.

import { commonPrefixLength } from "./text_splice.js";

const PLANS = {
  off: "Leaves this text alone",
  prefill: "Reads along",
  draft: "Begins to answer in pauses",
  notes: "Takes notes",
};
const REASONS = {
  too_long: "it is too long",
  busy: "others are waiting for answers",
  many_sentences: "there is enough to think about",
  drafts_pay: "that has paid lately",
  drafts_wasted: "begun answers were of little use lately",
  drafts_untried: "worth a try",
};
const DROPPED = { changed: "the text changed", engine: "the engine restarted" };

export class ThinkingPanel {
  #panel = document.getElementById("thinking");
  #reading = document.getElementById("reading");
  #meter = document.getElementById("meter");
  #list = document.getElementById("notes");
  #plan = document.getElementById("plan");
  #draft = document.getElementById("draft");
  #read = document.getElementById("read");
  #unread = document.getElementById("unread");
  #composer;
  #text = "";
  #readLength = 0;
  #tokens = 0;
  #notes = new Map();
  #sent = false;

  constructor(composer) {
    this.#composer = composer;
    composer.addEventListener("edit", () => this.#edited());
    this.#draw();
  }

  /** How many notes on the current message are in force. */
  get noteCount() {
    return [...this.#notes.values()].filter((note) => note.classList.contains("kept")).length;
  }

  /** The message was sent: its notes stay to be seen until the next message is begun. */
  committed() {
    this.#sent = true;
    this.#readLength = this.#tokens = 0;
    this.#draw();
  }

  reset() {
    this.#sent = false;
    this.#readLength = this.#tokens = 0;
    this.#plan.textContent = this.#draft.textContent = "";
    this.#forgetNotes();
    this.#draw();
  }

  observe(event) {
    if (event.type === "midstream.prefill") this.#prefilled(event);
    else if (event.type === "midstream.inference.started") this.#started(event);
    else if (event.type === "midstream.inference.delta") this.#append(event);
    else if (event.type === "midstream.inference.done") this.#done(event);
    else if (event.type === "midstream.inference.discarded") this.#discarded(event);
    else if (event.type === "midstream.strategy") this.#planned(event);
    else if (event.type === "midstream.draft.started") this.#draft.textContent = "The answer is begun";
    else if (event.type === "midstream.draft.tool") this.#draft.textContent = `The answer is begun and uses ${event.name}`;
    else if (event.type === "midstream.draft.discarded") this.#draftDropped(event);
    else if (event.type === "midstream.turn") this.#turnEnded(event);
  }

  #edited() {
    const text = this.#composer.text;
    this.#readLength = Math.min(this.#readLength, commonPrefixLength(this.#text, text));
    this.#text = text;
    if (text && this.#sent) this.#forgetNotes();
    this.#draw();
  }

  #prefilled({ revision, prefilled_chars: count, tokens }) {
    const then = this.#composer.stream.textAt(revision) ?? this.#text;
    this.#readLength = commonPrefixLength(then.slice(0, count), this.#text);
    this.#tokens = tokens;
    this.#draw();
  }

  #planned({ strategy, reason }) {
    this.#plan.textContent = `${PLANS[strategy] ?? strategy}: ${REASONS[reason] ?? reason}`;
  }

  #draftDropped({ reason }) {
    this.#draft.textContent = `A begun answer was dropped: ${DROPPED[reason] ?? reason}`;
  }

  #turnEnded({ draft, draft_tokens: tokens }) {
    if (!draft) return;
    const ready = tokens === 1 ? "1 token was" : `${tokens} tokens were`;
    if (tokens) this.#draft.textContent = `${ready} ready when you sent`;
    else this.#draft.textContent = draft === "promoted" ? "The begun answer went on" : "The begun answer was of no use";
  }

  #draw() {
    // The line break at the end gives the last, empty line its height.
    this.#read.textContent = this.#text.slice(0, this.#readLength);
    this.#unread.textContent = `${this.#text.slice(this.#readLength)}\n`;
    const share = this.#text ? this.#readLength / this.#text.length : 0;
    this.#meter.style.width = `${100 * share}%`;
    this.#reading.textContent = this.#readingText();
    this.#panel.classList.toggle("sent", this.#sent);
    this.#panel.classList.toggle("quiescent", !this.#text && !this.#notes.size);
  }

  #readingText() {
    if (this.#sent && this.#notes.size) return `Sent with ${this.noteCount} ${this.noteCount === 1 ? "note" : "notes"}`;
    if (!this.#readLength) return this.#text ? "Not read yet" : "Nothing to read";
    const part = this.#readLength === this.#text.length ? "All" : `${this.#readLength} of ${this.#text.length}`;
    return `${part} read · ${this.#tokens} tokens ready`;
  }

  #started({ index, segment }) {
    if (this.#sent) this.#forgetNotes();
    const note = document.createElement("li");
    note.className = "note";
    note.dataset.testid = "note";
    const source = document.createElement("span");
    source.className = "note-source";
    source.textContent = `On “${segment.trim()}”`;
    const text = document.createElement("span");
    text.className = "note-text";
    note.append(source, text);
    this.#notes.get(index)?.remove();
    this.#notes.set(index, note);
    this.#list.append(note);
    this.#follow();
  }

  #append({ index, delta }) {
    const text = this.#notes.get(index)?.lastChild;
    if (!text) return;
    text.textContent += delta;
    this.#follow();
  }

  #done({ index, action, text }) {
    const note = this.#notes.get(index);
    if (!note) return;
    note.classList.add(action === "wait" ? "wait" : "kept");
    note.lastChild.textContent = action === "wait" ? "waits for more" : text;
    this.#follow();
  }

  #discarded({ index, reason }) {
    const note = this.#notes.get(index);
    if (!note) return;
    note.classList.remove("kept");
    note.classList.add("discarded");
    note.title = `Dropped: ${reason}`;
  }

  #forgetNotes() {
    this.#sent = false;
    this.#notes.clear();
    this.#list.replaceChildren();
  }

  #follow() {
    this.#list.scrollTop = this.#list.scrollHeight;
    this.#draw();
  }
}
