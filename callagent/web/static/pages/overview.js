import { get } from "/static/api.js";
import { bars, key, lines, shares } from "/static/charts.js";
import { card, h, replace, table } from "/static/dom.js";
import { json, milliseconds, plural, reason } from "/static/text.js";

const SPANS = [7, 30, 90, 365];

export async function show(body) {
  const chosen = { days: 30, project_id: "" };
  const { recorded } = await get("/api/projects");
  const figures = h("div", { "aria-live": "polite" });
  const update = async () => {
    const found = await get("/api/overview", chosen);
    replace(figures, render(found));
  };
  const choose = (name) => (event) => {
    chosen[name] = event.target.value;
    update().catch((error) => replace(figures, h("p", { class: "notice" }, error.message)));
  };
  replace(
    body,
    h(
      "form",
      { class: "filters card", onsubmit: (event) => event.preventDefault() },
      h("label", {}, "Period", h("select", { onchange: choose("days") }, SPANS.map((days) => h("option", { value: days, selected: days === 30 }, `${days} days`)))),
      h("label", {}, "Project", h("select", { onchange: choose("project_id") }, h("option", { value: "" }, "all"), recorded.map((name) => h("option", { value: name }, name)))),
    ),
    figures,
  );
  await update();
}

function render(found) {
  const calls = sum(found.days, "calls");
  if (!calls) return h("p", { class: "empty" }, "No calls in this period. When one has ended, its figures are here.");
  const handoffs = sum(found.days, "handoffs");
  const day = (item) => item.day.slice(5);
  return [
    h("dl", { class: "figures" }, [
      ["Calls", calls.toLocaleString()],
      ["Contained", `${Math.round((100 * (calls - handoffs)) / calls)} %`],
      ["Handed off", handoffs.toLocaleString()],
      ["Mean duration", `${Math.round(sum(found.days, "seconds") / calls)} s`],
      ["Response, median", milliseconds(found.response.p50)],
      ["Response, p95", milliseconds(found.response.p95)],
    ].map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
    h(
      "div",
      { class: "columns" },
      card("Calls per day", bars("Calls per day", found.days, { name: day, value: (item) => item.calls, mark: (item) => item.handoffs }), key([["c-caller", "calls"], ["c-function", "of these handed off"]])),
      card("Response time per day", lines("Response time per day, median and p95", found.days, { name: day, values: (item) => [item.p50, item.p95], show: milliseconds }), key([["c-caller", "median"], ["c-filler", "p95"]])),
      card("Response time", bars("Turns by response time", grouped(found.response.histogram), { name: (item) => `${item.ms / 1000} s`, value: (item) => item.turns }), h("p", { class: "quiet" }, "From the caller's last sound to the agent's first.")),
      card("Where the time goes", stages(found.stages)),
      card("How calls ended", shares(found.reasons, { name: (item) => reason(item.reason), value: (item) => item.calls, total: calls })),
      card("Handoffs by reason", found.handoffs.length ? shares(found.handoffs, { name: (item) => item.reason || "no reason given", value: (item) => item.calls, total: handoffs }) : h("p", { class: "empty" }, "No handoffs.")),
    ),
    card("Metrics of projects", table("Metrics of projects", ["Metric", "Written", "Mean", "Most frequent values"], found.metrics.map((metric) => [metric.name, metric.written.toLocaleString(), metric.mean ?? "–", metric.values.map((one) => `${json(one.value)} (${one.written})`).join(", ")]))),
    h("p", { class: "quiet" }, `${plural(calls, "call")} since ${found.since}.`),
  ];
}

function stages(found) {
  const names = { endpointing: "Endpointing", transcription: "Transcription", model: "Model, first token", functions: "Functions", barge_in: "Barge-in reaction" };
  return table("Mean time by stage", ["Stage", "Mean"], Object.entries(names).map(([name, text]) => [text, milliseconds(found[name])]));
}

function grouped(histogram) {
  const groups = new Map();
  for (const { ms, turns } of histogram) {
    const place = Math.min(Math.floor(ms / 250) * 250, 4000);
    groups.set(place, (groups.get(place) ?? 0) + turns);
  }
  const most = Math.max(0, ...groups.keys());
  return Array.from({ length: most / 250 + 1 }, (_, place) => ({ ms: place * 250, turns: groups.get(place * 250) ?? 0 }));
}

function sum(items, name) {
  return items.reduce((total, item) => total + (item[name] ?? 0), 0);
}
