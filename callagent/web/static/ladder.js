// The SIP messages of a call as a ladder: the peer on the left, we on the right.

import { h, s } from "/static/dom.js";

export function ladder(call) {
  const messages = call.signalling ?? [];
  if (!messages.length) return h("p", { class: "empty" }, call.wire === "sip" ? "No messages were kept." : "This call did not come over SIP.");
  const began = Date.parse(messages[0].at);
  return h(
    "div",
    {},
    h("div", { class: "ladder-ends", "aria-hidden": "true" }, h("span", {}, messages[0].peer), h("span", {}, "callagent")),
    h("ol", { class: "ladder", tabindex: "0", "aria-label": "SIP messages" }, messages.map((message) => rung(message, (Date.parse(message.at) - began) / 1000))),
  );
}

function rung(message, at) {
  const way = message.sent ? "sent" : "received";
  return h(
    "li",
    {},
    h("details", {}, h("summary", {}, h("span", { class: "quiet" }, at.toFixed(3)), h("span", { class: message.sent ? "c-agent" : "c-caller" }, short(message.line), h("span", { class: "unseen" }, ` ${way}`)), arrow(message.sent)), h("pre", {}, message.text)),
  );
}

function arrow(sent) {
  const [from, to, tip] = sent ? [100, 1, "M7 1 L1 5 L7 9"] : [0, 99, "M93 1 L99 5 L93 9"];
  return s("svg", { class: sent ? "c-agent" : "c-caller", viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" }, s("line", { x1: from, y1: 5, x2: to, y2: 5 }), s("path", { d: tip }));
}

function short(line) {
  return line.startsWith("SIP/2.0 ") ? line.slice(8) : line.split(" ")[0];
}
