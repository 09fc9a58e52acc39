// One turn's times as a strip: speech, endpointing, model, functions, voice, fillers, barge-in.

import { h, s } from "/static/dom.js";
import { delay } from "/static/text.js";

const WIDTH = 600;

export function timeline(turn) {
  const spans = spansOf(turn).filter((span) => typeof span.from === "number" && typeof span.to === "number" && span.to >= span.from);
  if (!turn.number || !spans.length) return null;
  const first = Math.min(...spans.map((span) => span.from));
  const last = Math.max(...spans.map((span) => span.to), first + 0.1);
  const x = (time) => (WIDTH * (time - first)) / (last - first);
  const text = spans.map((span) => `${span.name} ${delay(span.to - span.from)}`);
  const height = spans.length * 15 + 4;
  return h(
    "details",
    {},
    h("summary", {}, `Timeline, ${(last - first).toFixed(1)} s`, turn.barge_in ? h("span", { class: "bad" }, " · barge-in") : null),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Timeline of turn ${turn.number}` }, s(
      "svg",
      { class: "strip", viewBox: `0 0 ${WIDTH + 190} ${height}`, role: "img", "aria-label": text.join(", ") },
      spans.map((span, row) => [
        s("rect", { class: span.style, x: x(span.from), y: row * 15 + 2, width: Math.max(2, x(span.to) - x(span.from)), height: 11, rx: 2 }),
        s("text", { x: WIDTH + 10, y: row * 15 + 12 }, text[row]),
      ]),
    )),
  );
}

function spansOf(turn) {
  const at = turn.instants ?? {};
  return [
    { name: "Caller", style: "c-caller", from: at.speech_started, to: at.speech_ended },
    { name: "Endpointing", style: "c-wait", from: at.speech_ended, to: at.turn_ended },
    { name: "Transcription", style: "c-wait", from: at.speech_ended, to: at.transcript_ready },
    { name: "Model", style: "c-model", from: at.turn_ended, to: at.first_token },
    ...turn.functions.map((one) => ({ name: one.name, style: "c-function", from: one.started_at, to: one.started_at + one.duration_ms / 1000 })),
    ...turn.spoken.filter((one) => one.kind === "filler").map((one) => ({ name: "Filler", style: "c-filler", from: one.started_at, to: one.ended_at })),
    { name: "Voice", style: "c-wait", from: at.first_token ?? at.turn_ended, to: at.first_audio },
    { name: "Agent", style: "c-agent", from: at.first_audio, to: at.playout_ended },
    { name: "Barge-in", style: "c-function", from: at.interruption_started, to: at.interrupted_at },
  ];
}
