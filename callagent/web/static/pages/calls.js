import { get, may } from "/static/api.js";
import { announce, card, h, replace, table } from "/static/dom.js";
import { duration, number, plural, reason, when } from "/static/text.js";

const REASONS = ["agent_hangup", "caller_hangup", "handoff", "cancelled", "silence_limit", "media_timeout", "max_duration", "rejected", "error", "operator_hangup", "server_shutdown", "server_killed"];

export async function show(body) {
  const personal = await may("personal");
  const { recorded } = await get("/api/projects");
  const results = h("div", {});
  const asked = new URLSearchParams(location.search);
  const field = (name) => asked.get(name) ?? "";
  const options = (name, values) => h("select", { name }, h("option", { value: "" }, "any"), values.map(([value, text]) => h("option", { value, selected: field(name) === value }, text)));
  const form = h(
    "form",
    { class: "filters card", role: "search", onsubmit: submit },
    personal ? h("label", {}, "Words", h("input", { name: "search", type: "search", value: field("search"), placeholder: "said, number, function" })) : null,
    h("label", {}, "Ended by", options("end_reason", REASONS.map((value) => [value, reason(value)]))),
    h("label", {}, "Handoff", options("handoff", [["true", "handed off"], ["false", "contained"]])),
    h("label", {}, "Over", options("wire", ["sip", "twilio", "browser", "session"].map((value) => [value, value]))),
    h("label", {}, "Project", options("project_id", recorded.map((value) => [value, value]))),
    h("label", {}, "From day", h("input", { name: "start_time", type: "date", value: field("start_time").slice(0, 10) })),
    h("label", {}, "Before day", h("input", { name: "end_time", type: "date", value: field("end_time").slice(0, 10) })),
    h("button", { type: "submit" }, "Show"),
  );
  let pages = [""];

  function submit(event) {
    event.preventDefault();
    pages = [""];
    const query = new URLSearchParams(chosen());
    history.replaceState({}, "", query.size ? `/calls?${query}` : "/calls");
    load();
  }
  function chosen() {
    return [...new FormData(form)].filter(([, value]) => value !== "");
  }
  async function load() {
    try {
      const page = await get("/api/calls", { ...Object.fromEntries(chosen()), limit: 50, cursor: pages.at(-1) });
      replace(results, render(page, pages.length > 1, turn));
      announce(plural(page.total, "call"));
    } catch (error) {
      replace(results, h("p", { class: "notice", role: "alert" }, error.message));
    }
  }
  function turn(cursor) {
    if (cursor === null) pages.pop();
    else pages.push(cursor);
    load();
  }
  replace(body, form, results);
  await load();
}

function render(page, earlier, turn) {
  const rows = page.calls.map((call) => [
    h("a", { href: `/calls/${encodeURIComponent(call.id)}` }, when(call.started_at)),
    number(call.from_number),
    duration(call.total_duration),
    call.num_turns ?? "–",
    h("span", { class: ["error", "server_killed"].includes(call.end_reason) ? "bad" : "" }, reason(call.in_progress ? null : call.end_reason), call.handoff_destination ? ` to ${call.handoff_destination}` : ""),
    call.project_id,
    [call.wire, call.recording ? "recorded" : null].filter(Boolean).join(", "),
  ]);
  const count = page.total >= 10000 ? `${page.total.toLocaleString()} calls or more` : plural(page.total, "call");
  return card(
    count,
    table("Calls", ["Started", "Caller", "Duration", "Turns", "Ended by", "Project", "Over"], rows, "No call fits."),
    h(
      "div",
      { class: "row" },
      h("button", { type: "button", class: "plain", disabled: !earlier, onclick: () => turn(null) }, "Newer"),
      h("button", { type: "button", class: "plain", disabled: !page.next_cursor, onclick: () => turn(page.next_cursor) }, "Older"),
    ),
  );
}
