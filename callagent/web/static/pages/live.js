import { watch } from "/static/api.js";
import { card, h, replace, table } from "/static/dom.js";
import { duration, number, plural } from "/static/text.js";

export function show(body) {
  const list = h("div", {});
  replace(body, list);
  return watch("/api/live/events", (calls) => replace(list, render(calls)));
}

function render(calls) {
  if (!calls.length) return h("p", { class: "empty card" }, "Nobody is on the line. A call appears here when it begins.");
  const rows = calls.map((call) => [
    h("a", { href: `/live/${encodeURIComponent(call.id)}` }, number(call.from_number)),
    call.wire,
    duration((Date.now() - Date.parse(call.started_at)) / 1000),
    h("span", { class: `pill ${floorStyle(call.floor)}` }, call.state === "talking" ? call.floor : call.state),
    [call.flow, call.step].filter(Boolean).join(" / ") || "–",
    call.user_input || "–",
    call.text || "–",
  ]);
  return card(plural(calls.length, "call"), table("Calls that are on", ["Caller", "Over", "For", "Floor", "Flow and step", "Caller said", "Agent said"], rows));
}

export function floorStyle(floor) {
  if (floor === "hearing" || floor === "paused") return "c-caller";
  return floor === "speaking" ? "c-agent" : "c-wait";
}
