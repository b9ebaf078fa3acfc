// The chat page: wires connection, composer, transcript and thinking panel together.

import { Composer } from "./composer.js";
import { RealtimeConnection } from "./realtime_connection.js";
import { ThinkingPanel } from "./thinking.js";
import { showError } from "./toasts.js";
import { Transcript } from "./transcript.js";
import { TurnView } from "./turn.js";

const STATUS_TEXT = { connecting: "Connecting", open: "Connected", offline: "Offline, trying again" };
const CALCULATOR = {
  tools: [{ type: "mcp", server_label: "midstream", allowed_tools: ["calculator"], require_approval: "never" }],
  choice: { type: "mcp", server_label: "midstream", name: "calculator" },
};
const STRATEGY_KEY = "midstream.strategy";
const PRIVATE_KEY = "midstream.private";

const byId = (id) => document.getElementById(id);
const connection = new RealtimeConnection();
const composer = new Composer(byId("composer"), connection);
const transcript = new Transcript();
const turn = new TurnView(transcript);
const thinking = new ThinkingPanel(composer);
const strategy = byId("strategy");
const calculator = byId("calculator");
const privateSwitch = byId("private");
const stop = byId("stop");

const calculatorIsOn = () => calculator.getAttribute("aria-pressed") === "true";
const announce = (text) => (byId("announcement").textContent = text);

// The session

function configureSession() {
  const tools = calculatorIsOn() ? CALCULATOR.tools : [];
  const midstream = { strategy: strategy.value, events: true };
  connection.send({ type: "session.update", session: { type: "realtime", midstream, tools } });
}

function isConfigured(session) {
  const { strategy: current, events } = session.midstream ?? {};
  return current === strategy.value && events === true && Boolean(session.tools?.length) === calculatorIsOn();
}

function setCalculator(on) {
  if (on === calculatorIsOn()) return;
  calculator.setAttribute("aria-pressed", String(on));
  configureSession();
}

let replayUntil = null;

function sessionOpened({ session, resumed }) {
  if (!isConfigured(session)) configureSession();
  if (!resumed) {
    turn.reset();
    thinking.reset();
    setBusy(false);
  }
  // What a resumed session's buffer holds is settled after the replay, if there is one.
  if (!resumed || connection.lastSeq < 0) composer.connected({ resumed });
}

function sessionResumed(event) {
  if (event.snapshot) {
    turn.showSnapshot(event.snapshot);
    setBusy(turn.running);
  }
  replayUntil = event.last_event_id ?? connection.lastSeq;
  afterReplay();
}

/** Once everything missed is here, what the server still does not know about was lost on the way and is sent again. */
function afterReplay() {
  if (replayUntil === null || connection.lastSeq < replayUntil) return;
  replayUntil = null;
  for (const message of turn.unconfirmed) {
    const eventId = composer.stream.commit(message.text);
    turn.resent(message, { eventId, requestId: requestResponse() });
  }
  composer.connected({ resumed: true });
}

// A turn

function requestResponse() {
  const response = calculatorIsOn() ? { tool_choice: CALCULATOR.choice } : undefined;
  return connection.send({ type: "response.create", response });
}

function setBusy(busy) {
  stop.hidden = !busy;
  composer.busy = busy;
}

composer.addEventListener("send", ({ detail }) => {
  const requestId = requestResponse();
  thinking.committed();
  turn.sent({ ...detail, requestId });
});

turn.addEventListener("begin", () => {
  setBusy(true);
  announce("Answering");
});

turn.addEventListener("end", ({ detail }) => {
  setCalculator(false);
  setBusy(turn.running);
  announce(detail ? "Answer complete" : "");
  if (detail) byId("spoken").replaceChildren(detail);
});

function stopAnswer() {
  connection.send({ type: "response.cancel" });
  announce("Stopping");
}

// Errors

function errorReceived({ code, message, event_id: eventId }) {
  if (code === "revision_conflict" || code === "response_not_active") return;
  const text = turn.refused(eventId);
  if (text !== null && !composer.text) composer.text = text;
  if (code === "session_expired") showError("That conversation is no longer there; this is a new one.");
  else showError(message);
}

connection.addEventListener("session", ({ detail }) => sessionOpened(detail));
connection.addEventListener("event", ({ detail: event }) => {
  composer.observe(event);
  thinking.observe(event);
  turn.observe(event);
  if (event.type === "error") errorReceived(event.error);
  else if (event.type === "midstream.session.resumed") sessionResumed(event);
  afterReplay();
});
connection.addEventListener("status", ({ detail: state }) => {
  byId("status").dataset.state = state;
  byId("status-text").textContent = STATUS_TEXT[state];
  if (state === "offline") announce("Connection lost, trying again");
});
addEventListener("online", () => connection.retryNow());

// Controls

strategy.value = localStorage.getItem(STRATEGY_KEY) ?? "auto";
strategy.addEventListener("change", () => {
  localStorage.setItem(STRATEGY_KEY, strategy.value);
  configureSession();
});
privateSwitch.checked = localStorage.getItem(PRIVATE_KEY) === "true";
composer.private = privateSwitch.checked;
privateSwitch.addEventListener("change", () => {
  localStorage.setItem(PRIVATE_KEY, String(privateSwitch.checked));
  composer.private = privateSwitch.checked;
});
calculator.addEventListener("click", () => setCalculator(!calculatorIsOn()));
stop.addEventListener("click", stopAnswer);
composer.addEventListener("stop", stopAnswer);
byId("new-chat").addEventListener("click", () => {
  connection.startNewSession();
  byId("input").focus();
});
for (const example of document.querySelectorAll(".example")) {
  example.addEventListener("click", () => {
    if (example.dataset.tool) setCalculator(true);
    composer.text = example.textContent;
  });
}

connection.open();
