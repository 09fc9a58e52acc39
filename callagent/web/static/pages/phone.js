import { may, socket } from "/static/api.js";
import { decode, encode, fromBase64, toBase64 } from "/static/audio.js";
import { announce, card, facts, h, replace } from "/static/dom.js";
import { floorStyle } from "/static/pages/live.js";
import { talk } from "/static/talk.js";
import { delay, reason } from "/static/text.js";

const KEYS = ["1", "2", "3", "4", "5", "6", "7", "8", "9", "*", "0", "#"];
const PING_MS = 2000;

export async function show(body) {
  if (!(await may("call"))) {
    replace(body, h("p", { class: "notice" }, "The right ‘call’ is needed to talk to the agent from here."));
    return null;
  }
  let call = null;
  const number = h("input", { name: "number", inputmode: "tel", autocomplete: "off", placeholder: "any", maxlength: 64 });
  const start = h("button", { type: "submit" }, "Call");
  const end = h("button", { type: "button", class: "danger", disabled: true, onclick: () => call?.hangUp() }, "Hang up");
  const mute = h("button", { type: "button", class: "plain", disabled: true, "aria-pressed": "false", onclick: () => toggle() }, "Mute");
  const keys = h("div", { class: "keypad", role: "group", "aria-label": "Keypad" }, KEYS.map((digit) => h("button", { type: "button", class: "plain", disabled: true, onclick: () => call?.press(digit) }, digit)));
  const state = h("div", { role: "status" }, h("p", { class: "empty" }, "Not in a call."));
  const words = h("div", { "aria-live": "polite" }, h("p", { class: "empty" }, "What is said appears here."));
  const form = h("form", { class: "row", onsubmit: dial }, h("label", {}, "Number that is called", number), start, end, mute);
  replace(body, card("Call", form, keys, h("p", { class: "quiet" }, "Use headphones: without them the agent may hear itself.")), card("State", state), card("Captions", words));

  function toggle() {
    const muted = call?.toggleMute() ?? false;
    mute.setAttribute("aria-pressed", String(muted));
    mute.textContent = muted ? "Unmute" : "Mute";
  }
  function enable(on) {
    start.disabled = on;
    for (const button of [end, mute, ...keys.children]) button.disabled = !on;
  }
  async function dial(event) {
    event.preventDefault();
    if (call) return;
    enable(true);
    replace(state, h("p", {}, "Calling…"));
    try {
      call = await openCall(number.value, { captions, ended });
    } catch (error) {
      ended(error.name === "NotAllowedError" ? "the microphone may not be used" : error.message);
    }
  }
  function captions(shown) {
    replace(state, render(shown));
    const partial = shown.partial ? h("p", { class: "quiet" }, `… ${shown.partial}`) : null;
    replace(words, talk(shown.turns), partial);
  }
  function ended(why) {
    call = null;
    enable(false);
    mute.textContent = "Mute";
    replace(state, h("p", {}, `The call is over: ${reason(why)}.`));
    announce("The call is over");
  }
  return () => call?.hangUp();
}

function render(shown) {
  return facts([
    ["State", shown.state],
    ["Floor", h("span", { class: `pill ${floorStyle(shown.floor)}` }, shown.floor)],
    ["Last answer after", h("span", { id: "answered-after" }, delay(shown.response))],
    ["Network, there and back", shown.roundTrip === null ? "–" : `${Math.round(shown.roundTrip)} ms`],
    ["Sound card", `${Math.round(shown.soundCard)} ms`],
  ]);
}

// One call: microphone → worklet → socket, and back.
async function openCall(number, { captions, ended }) {
  const microphone = await navigator.mediaDevices.getUserMedia({ audio: { echoCancellation: true, noiseSuppression: true, autoGainControl: true } });
  const audio = new AudioContext({ latencyHint: "interactive" });
  const close = () => {
    for (const track of microphone.getTracks()) track.stop();
    if (audio.state !== "closed") audio.close();
  };
  let line;
  try {
    await audio.audioWorklet.addModule("/static/phone_worklet.js");
    line = socket(`/api/phone?${new URLSearchParams({ number })}`);
  } catch (error) {
    close();
    throw error;
  }
  const worklet = new AudioWorkletNode(audio, "phone", { outputChannelCount: [1] });
  const turns = new Map();
  const shown = { state: "ringing", floor: "listening", partial: "", turns: [], response: null, roundTrip: null, soundCard: 1000 * ((audio.baseLatency || 0) + (audio.outputLatency || 0)) };
  const send = (message) => line.readyState === WebSocket.OPEN && line.send(JSON.stringify(message));
  let why = "connection lost";
  let muted = false;
  worklet.port.onmessage = ({ data }) => {
    if (data.mark) send({ event: "mark", name: data.mark });
    else send({ event: "media", payload: toBase64(encode(muted ? new Float32Array(data.frame.length) : data.frame)) });
  };
  const heard = {
    ringing: () => captions(shown),
    answered: () => captions(Object.assign(shown, { state: "talking" })),
    media: ({ payload }) => worklet.port.postMessage({ samples: decode(fromBase64(payload)) }),
    mark: ({ name }) => worklet.port.postMessage({ mark: name }),
    clear: () => worklet.port.postMessage({ clear: true }),
    pong: ({ at }) => captions(Object.assign(shown, { roundTrip: performance.now() - at })),
    captions: (message) => captions(Object.assign(shown, message, { turns: merged(turns, message.turns), response: lastResponse(turns) })),
    ended: (message) => {
      why = message.reason;
    },
  };
  line.addEventListener("message", ({ data }) => {
    const message = JSON.parse(data);
    heard[message.event]?.(message);
  });
  line.addEventListener("open", () => audio.createMediaStreamSource(microphone).connect(worklet).connect(audio.destination));
  const pings = setInterval(() => send({ event: "ping", at: performance.now() }), PING_MS);
  line.addEventListener("close", () => {
    clearInterval(pings);
    close();
    ended(why);
  });
  return {
    hangUp: () => {
      why = "you hung up";
      send({ event: "stop" });
      line.close();
    },
    press: (digit) => send({ event: "digit", digit }),
    toggleMute: () => (muted = !muted),
  };
}

// The server sends the last two turns; a turn that the caller took back is not among them.
function merged(turns, latest) {
  for (const turn of latest) turns.set(turn.number, { ...turn, functions: [], latency: { response: turn.response } });
  const last = Math.max(...latest.map((turn) => turn.number));
  for (const number of turns.keys()) if (number > last) turns.delete(number);
  return [...turns.values()].sort((one, other) => one.number - other.number);
}

function lastResponse(turns) {
  const known = [...turns.values()].map((turn) => turn.response).filter((value) => typeof value === "number");
  return known.length ? known.at(-1) : null;
}
