import { may, send, watch } from "/static/api.js";
import { card, facts, h, replace } from "/static/dom.js";
import { floorStyle } from "/static/pages/live.js";
import { duration, number } from "/static/text.js";
import { talk } from "/static/talk.js";

export async function show(body, id, heading) {
  const control = await may("control");
  const state = h("div", {});
  const words = h("div", { "aria-live": "polite" });
  const hangUp = h("button", { class: "danger", type: "button", onclick: () => end() }, "Hang up");
  async function end() {
    if (!confirm("End this call now?")) return;
    hangUp.disabled = true;
    await send("POST", `/api/calls/${encodeURIComponent(id)}/hangup`).catch((error) => alert(error.message));
  }
  replace(body, card("State", state, control ? h("div", { class: "row" }, hangUp) : null), card("Conversation", words));
  let turns = "";
  const stop = watch(
    `/api/live/${encodeURIComponent(id)}/events`,
    (call) => {
      heading.textContent = `Live call from ${number(call.from_number)}`;
      replace(state, render(call));
      // The list is drawn again only when it has changed: whoever reads keeps their place.
      const now = JSON.stringify(call.turns);
      if (now !== turns) replace(words, talk(call.turns));
      turns = now;
    },
    () => {
      hangUp.disabled = true;
      replace(state, h("p", {}, "The call is over. ", h("a", { href: `/calls/${encodeURIComponent(id)}` }, "Open its record")));
    },
  );
  return stop;
}

function render(call) {
  return facts([
    ["State", call.state],
    ["Floor", h("span", { class: `pill ${floorStyle(call.floor)}` }, call.floor)],
    ["Flow", call.flow ?? "–"],
    ["Step", call.step ?? "–"],
    ["Called", number(call.to_number)],
    ["Over", call.wire],
    ["For", duration((Date.now() - Date.parse(call.started_at)) / 1000)],
  ]);
}
