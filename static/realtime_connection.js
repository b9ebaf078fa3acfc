// The WebSocket to /v1/realtime: reconnects by itself and goes on with the same session where it stopped.

const STORAGE_KEY = "midstream.session";
const FIRST_DELAY_MS = 250;
const MAX_DELAY_MS = 8000;

/**
 * Events: "status" (detail: "connecting" | "open" | "offline"), "session" (detail: {session, resumed}) when a
 * session is there to talk to, and "event" (detail: the server event) for everything the server says.
 */
export class RealtimeConnection extends EventTarget {
  #socket = null;
  #attempts = 0;
  #timer = 0;
  #sessionId = sessionStorage.getItem(STORAGE_KEY);
  // -1: nothing shown yet, so a resumed session begins with a snapshot of everything.
  #lastSeq = -1;
  #eventNumber = 0;

  get isOpen() {
    return this.#socket?.readyState === WebSocket.OPEN;
  }

  get lastSeq() {
    return this.#lastSeq;
  }

  open() {
    clearTimeout(this.#timer);
    this.#report("connecting");
    const socket = new WebSocket(this.#url());
    this.#socket = socket;
    let opened = false;
    socket.addEventListener("open", () => (opened = true));
    socket.addEventListener("message", ({ data }) => socket === this.#socket && this.#receive(JSON.parse(data)));
    socket.addEventListener("close", () => socket === this.#socket && this.#closed(opened));
  }

  /** Sends one client event and returns its event_id, or null when there is no connection. */
  send(event) {
    if (!this.isOpen) return null;
    const eventId = `client_${++this.#eventNumber}`;
    this.#socket.send(JSON.stringify({ event_id: eventId, ...event }));
    return eventId;
  }

  /** Leaves the session for good and begins another. */
  startNewSession() {
    sessionStorage.removeItem(STORAGE_KEY);
    this.#sessionId = null;
    this.#lastSeq = -1;
    this.#attempts = 0;
    const old = this.#socket;
    this.open();
    old?.close();
  }

  /** Tries at once, for when the network came back. */
  retryNow() {
    if (this.#socket?.readyState === WebSocket.CLOSED) {
      this.#attempts = 0;
      this.open();
    }
  }

  #url() {
    const url = new URL("/v1/realtime", location.href);
    url.protocol = url.protocol.replace("http", "ws");
    if (this.#sessionId) url.searchParams.set("session_id", this.#sessionId);
    if (this.#sessionId && this.#lastSeq >= 0) url.searchParams.set("last_event_id", this.#lastSeq);
    return url;
  }

  #receive(event) {
    if (event.seq !== undefined) this.#lastSeq = event.seq;
    if (event.type === "session.created") {
      const resumed = event.session.id === this.#sessionId;
      this.#sessionId = event.session.id;
      sessionStorage.setItem(STORAGE_KEY, this.#sessionId);
      this.#attempts = 0;
      this.#report("open");
      this.dispatchEvent(new CustomEvent("session", { detail: { session: event.session, resumed } }));
    } else if (event.type === "error" && event.error.code === "session_expired") {
      this.#emit(event);
      this.startNewSession();
      return;
    }
    this.#emit(event);
  }

  #emit(event) {
    this.dispatchEvent(new CustomEvent("event", { detail: event }));
  }

  #closed(opened) {
    this.#report("offline");
    const delay = Math.min(MAX_DELAY_MS, FIRST_DELAY_MS * 2 ** this.#attempts++);
    this.#timer = setTimeout(() => this.open(), delay * (0.75 + Math.random() / 2));
    if (!opened) this.#checkLogin();
  }

  /** A browser does not say why a handshake was refused; another request does. */
  async #checkLogin() {
    try {
      const { status } = await fetch("/v1/models");
      if (status === 401) location.assign("/login");
    } catch {
      // No answer at all: the next attempt will tell.
    }
  }

  #report(state) {
    this.dispatchEvent(new CustomEvent("status", { detail: state }));
  }
}
