import { get, may } from "/static/api.js";
import { card, facts, h, replace, table } from "/static/dom.js";
import { ladder } from "/static/ladder.js";
import { player } from "/static/player.js";
import { talk } from "/static/talk.js";
import { duration, json, number, reason, when } from "/static/text.js";
import { timeline } from "/static/timeline.js";

export async function show(body, id, heading) {
  const call = await get(`/api/calls/${encodeURIComponent(id)}`);
  heading.textContent = `Call from ${number(call.from_number)}`;
  const audio = call.recording && (await may("personal")) ? await player(call) : null;
  const turns = talk(call.turns, audio?.seek ?? null, timeline);
  audio?.follow(turns);
  replace(
    body,
    card("Summary", summary(call)),
    audio ? card("Recording", audio.element) : null,
    card("Conversation", turns),
    card("SIP", ladder(call)),
    h(
      "div",
      { class: "columns" },
      card("Metrics", table("Metrics", ["Name", "Value"], call.metrics.map((one) => [one.name, json(one.value)]), "None written.")),
      card("State at the end", Object.keys(call.state ?? {}).length ? h("pre", {}, json(call.state)) : h("p", { class: "empty" }, "Empty.")),
      card("Transfers", table("Transfers", ["To", "By", "Outcome", "Detail"], call.transfers.map((one) => [one.target, one.method, one.status, one.detail]), "None.")),
      card("Errors", table("Errors", ["At", "What", "Detail"], call.errors.map((one) => [`${one.at} s`, one.what, one.detail]), "None.")),
      card("Limits reached", table("Limits reached", ["At", "Limit", "Detail"], (call.limits_reached ?? []).map((one) => [`${one.at} s`, one.limit, one.detail]), "None.")),
      card("Media", Object.keys(call.media ?? {}).length ? facts(Object.entries(call.media).map(([name, value]) => [name.replaceAll("_", " "), String(value)])) : h("p", { class: "empty" }, "No media.")),
      card("Functions' log", logs(call)),
    ),
  );
  return () => audio?.stop();
}

function summary(call) {
  return facts([
    ["Started", when(call.started_at)],
    ["Duration", duration(call.total_duration)],
    ["Ended by", reason(call.end_reason)],
    ["Handoff", call.handoff_destination ? `${call.handoff_destination}: ${call.handoff_outcome}` : "none"],
    ["Called", number(call.to_number)],
    ["Over", call.wire],
    ["Project", `${call.project_id} (${call.environment})`],
    ["Variant", call.variant_name ?? "–"],
    ["Turns", String(call.num_turns)],
    ["Silent turns", String(call.num_silences)],
    ["End function", call.end_function],
    ["Id", call.id],
  ]);
}

function logs(call) {
  const lines = call.turns.flatMap((turn) => turn.functions.flatMap((one) => (Array.isArray(one.logs) ? one.logs.map((line) => `${one.name}: ${json(line)}`) : [])));
  return lines.length ? h("pre", {}, lines.join("\n")) : h("p", { class: "empty" }, "Nothing logged.");
}
