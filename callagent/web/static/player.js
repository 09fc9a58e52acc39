// The recording with its waveform, in step with the transcript. Offsets are seconds since the call began.

import { get } from "/static/api.js";
import { h, s } from "/static/dom.js";
import { clock } from "/static/text.js";

const WIDTH = 1000;
const MIDDLE = 55;

export async function player(call) {
  const path = `/api/calls/${encodeURIComponent(call.id)}`;
  let shape;
  try {
    shape = await get(`${path}/waveform`, { points: 500 });
  } catch {
    return { element: h("p", { class: "empty" }, "The recording cannot be read."), seek: null, follow: () => {}, stop: () => {} };
  }
  // The recording begins when the call is answered, the record when it began to ring.
  const offset = call.answered_at ? (Date.parse(call.answered_at) - Date.parse(call.started_at)) / 1000 : 0;
  const audio = h("audio", { controls: true, preload: "metadata", src: `${path}/recording`, "aria-label": "Recording of the call" });
  const position = s("line", { class: "position", x1: 0, x2: 0, y1: 0, y2: 110 });
  const wave = s(
    "svg",
    { class: "wave", viewBox: `0 0 ${WIDTH} 110`, preserveAspectRatio: "none", "aria-hidden": "true" },
    s("path", { class: "c-caller", d: outline(shape.caller, -50) }),
    s("path", { class: "c-agent", d: outline(shape.agent, 50) }),
    position,
  );
  wave.addEventListener("click", (event) => {
    const box = wave.getBoundingClientRect();
    audio.currentTime = ((event.clientX - box.left) / box.width) * shape.seconds;
    audio.play();
  });
  const seek = (second) => {
    audio.currentTime = Math.max(0, second - offset);
    audio.play();
  };
  const follow = (list) => {
    audio.addEventListener("timeupdate", () => {
      const x = shape.seconds ? (WIDTH * audio.currentTime) / shape.seconds : 0;
      position.setAttribute("x1", x);
      position.setAttribute("x2", x);
      const now = audio.currentTime + offset;
      for (const item of list.children) {
        if (item.dataset.start === undefined) continue;
        item.classList.toggle("now", !audio.paused && now >= Number(item.dataset.start) && now <= Number(item.dataset.end));
      }
    });
  };
  const key = h("ul", { class: "key" }, h("li", {}, h("span", { class: "c-caller" }), "caller, above"), h("li", {}, h("span", { class: "c-agent" }), "agent, below"), h("li", {}, clock(shape.seconds)), h("li", {}, h("a", { href: `${path}/recording`, download: "" }, "Download")));
  return { element: h("div", {}, wave, audio, key), seek, follow, stop: () => audio.pause() };
}

function outline(levels, height) {
  const step = WIDTH / Math.max(1, levels.length);
  const points = levels.map((level, place) => `L${(place * step).toFixed(1)} ${(MIDDLE + level * height).toFixed(1)}`);
  return `M0 ${MIDDLE} ${points.join(" ")} L${WIDTH} ${MIDDLE} Z`;
}
