// What was said and done, turn by turn. `seek` (optional) plays the recording from a second on.

import { h } from "/static/dom.js";
import { clock, delay, json } from "/static/text.js";

export function talk(turns, seek = null, more = () => null) {
  const shown = turns.filter((turn) => turn.number || turn.spoken.length || turn.functions.length);
  if (!shown.length) return h("p", { class: "empty" }, "Nothing has been said yet.");
  return h("ol", { class: "talk" }, shown.map((turn) => h("li", { "data-start": begin(turn), "data-end": end(turn) }, events(turn, seek), more(turn))));
}

export function begin(turn) {
  const instants = turn.instants ?? {};
  const times = [instants.speech_started, ...turn.spoken.map((one) => one.started_at), ...turn.functions.map((one) => one.started_at)];
  const known = times.filter((time) => typeof time === "number");
  return known.length ? Math.min(...known) : 0;
}

export function end(turn) {
  const times = [...turn.spoken.map((one) => one.ended_at), turn.instants?.playout_ended, turn.instants?.turn_ended];
  const known = times.filter((time) => typeof time === "number");
  return known.length ? Math.max(...known) : begin(turn);
}

function events(turn, seek) {
  const found = [];
  if (turn.number) {
    const at = turn.instants?.speech_started ?? turn.instants?.turn_ended ?? null;
    const keyed = turn.user_input_dtmf ? `pressed ${turn.user_input_dtmf}` : "";
    found.push([at ?? 0, said(at, "c-caller", "Caller", [turn.user_input || keyed || "(silence)", answered(turn)], seek)]);
  }
  for (const one of turn.functions) found.push([one.started_at, said(one.started_at, "c-function", "Function", ran(one), seek)]);
  for (const one of turn.spoken) {
    const filler = one.kind === "filler";
    const cut = one.interrupted ? h("span", { class: "bad" }, ` [interrupted after “${one.heard}”]`) : null;
    found.push([one.started_at, said(one.started_at, filler ? "c-filler" : "c-agent", filler ? "Filler" : "Agent", [one.text, cut], seek)]);
  }
  return found.sort((one, other) => one[0] - other[0]).map(([, element]) => element);
}

function said(at, style, who, content, seek) {
  const time = at === null ? "" : clock(at);
  const place = seek && at !== null ? h("button", { class: "plain", type: "button", onclick: () => seek(at), "aria-label": `Play from ${time}` }, time) : h("span", { class: "quiet" }, time);
  return h("div", { class: "said" }, place, h("span", { class: `who ${style}` }, who), h("p", {}, content));
}

function answered(turn) {
  const response = turn.latency?.response;
  return response === null || response === undefined ? null : h("span", { class: "quiet" }, ` · answered after ${delay(response)}`);
}

function ran(one) {
  const outcome = one.error ? h("span", { class: "bad" }, ` failed: ${one.error}`) : ` ${Math.round(one.duration_ms)} ms`;
  return h(
    "details",
    {},
    h("summary", {}, h("strong", {}, one.name), outcome),
    h("h3", {}, "Arguments"),
    h("pre", {}, json(one.arguments)),
    h("h3", {}, "Result"),
    h("pre", {}, json(one.result)),
    one.transition ? [h("h3", {}, "Transition"), h("pre", {}, json(one.transition))] : null,
    Object.keys(one.state_changes ?? {}).length ? [h("h3", {}, "State changes"), h("pre", {}, json(one.state_changes))] : null,
    one.logs?.length ? [h("h3", {}, "Log"), h("pre", {}, one.logs.map((line) => json(line)).join("\n"))] : null,
  );
}
