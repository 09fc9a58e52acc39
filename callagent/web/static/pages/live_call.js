import { get, may, send, socket, watch } from "/static/api.js";
import { listenIn } from "/static/listening.js";
import { announce, card, facts, h, replace } from "/static/dom.js";
import { floorStyle } from "/static/pages/live.js";
import { duration, number } from "/static/text.js";
import { talk } from "/static/talk.js";

export async function show(body, id, heading) {
  const control = await may("control");
  const state = h("div", {});
  const words = h("div", { "aria-live": "polite" });
  const hangUp = h("button", { class: "danger", type: "button", onclick: () => end() }, "Hang up");
  const ear = (await may("personal")) ? h("button", { class: "plain", type: "button", "aria-pressed": "false", onclick: () => listen() }, "Listen in") : null;
  const takeOver = control ? await takeOverForm(id) : null;
  let stopListening = null;
  async function listen() {
    if (stopListening) return stopListening();
    ear.setAttribute("aria-pressed", "true");
    ear.textContent = "Stop listening";
    stopListening = await listenIn(socket(`/api/live/${encodeURIComponent(id)}/audio`), () => {
      stopListening = null;
      ear.setAttribute("aria-pressed", "false");
      ear.textContent = "Listen in";
    });
  }
  async function end() {
    if (!confirm("End this call now?")) return;
    hangUp.disabled = true;
    await send("POST", `/api/calls/${encodeURIComponent(id)}/hangup`).catch((error) => alert(error.message));
  }
  replace(body, card("State", state, h("div", { class: "row" }, ear, control ? hangUp : null), takeOver), card("Conversation", words));
  let turns = "";
  const stop = watch(
    `/api/live/${encodeURIComponent(id)}/events`,
    (call) => {
      heading.textContent = `Live call from ${number(call.from_number)}`;
      replace(state, render(call));
      // The list is drawn again only when it has changed, so that a reader keeps the place.
      const now = JSON.stringify([call.turns, call.partial]);
      if (now !== turns) replace(words, talk(call.turns), call.partial ? h("p", { class: "quiet" }, `… ${call.partial}`) : null);
      turns = now;
    },
    () => {
      hangUp.disabled = true;
      if (ear) ear.disabled = true;
      stopListening?.();
      replace(state, h("p", {}, "The call is over. ", h("a", { href: `/calls/${encodeURIComponent(id)}` }, "Open its record")));
    },
  );
  return () => {
    stop();
    stopListening?.();
  };
}

// Named targets, and a number where the settings allow numbers by prefix.
async function takeOverForm(id) {
  const { targets, numbers } = await get("/api/targets");
  if (!targets.length && !numbers) return null;
  const chosen = h("select", { name: "target" }, [...targets.map((name) => h("option", {}, name)), numbers ? h("option", { value: "" }, "a number") : null]);
  const dialled = h("input", { name: "takeover-number", type: "tel", autocomplete: "off", placeholder: "+441632960123", pattern: "\\+[1-9][0-9]{6,14}", title: "+ and the country code, digits only" });
  const field = h("label", {}, "Number", dialled);
  const choose = () => {
    field.hidden = dialled.disabled = chosen.value !== "";
    dialled.required = !dialled.disabled;
  };
  chosen.addEventListener("change", choose);
  choose();
  const submit = async (event) => {
    event.preventDefault();
    const place = chosen.value || dialled.value;
    if (!confirm(`Give this call to ${place} now?`)) return;
    try {
      await send("POST", `/api/calls/${encodeURIComponent(id)}/takeover`, chosen.value ? { target: place } : { number: place });
      announce(`The call goes to ${place}`);
    } catch (error) {
      alert(error.message);
    }
  };
  return h("form", { class: "row takeover", onsubmit: submit }, h("label", {}, "Take over to", chosen), field, h("button", { type: "submit" }, "Take over"));
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
