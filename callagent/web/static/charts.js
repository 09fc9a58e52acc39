// Charts as inline SVG, each with its figures as text for screen readers.

import { h, s } from "/static/dom.js";

const WIDTH = 640;
const HEIGHT = 200;
const LEFT = 44;
const BOTTOM = 24;

export function bars(label, items, { name, value, mark = () => 0, show = String }) {
  const most = Math.max(1, ...items.map(value));
  const step = (WIDTH - LEFT) / Math.max(1, items.length);
  const height = (number) => ((HEIGHT - BOTTOM - 10) * number) / most;
  const every = Math.ceil(items.length / 8);
  const parts = items.flatMap((item, place) => {
    const x = LEFT + place * step + step * 0.1;
    const whole = height(value(item));
    const marked = height(mark(item));
    return [
      s("rect", { class: "bar", x, y: HEIGHT - BOTTOM - whole, width: step * 0.8, height: whole }, s("title", {}, `${name(item)}: ${show(value(item))}`)),
      marked ? s("rect", { class: "bar bad", x, y: HEIGHT - BOTTOM - marked, width: step * 0.8, height: marked }) : null,
      place % every === 0 ? s("text", { class: "quiet", x: x + step * 0.4, y: HEIGHT - 6, "text-anchor": "middle" }, name(item)) : null,
    ];
  });
  return frame(label, most, show, parts, items.map((item) => `${name(item)}: ${show(value(item))}`));
}

export function lines(label, items, { name, values, show = String }) {
  const known = items.flatMap(values).filter((value) => value !== null && value !== undefined);
  const most = Math.max(1, ...known);
  const x = (place) => LEFT + ((WIDTH - LEFT - 10) * (place + 0.5)) / Math.max(1, items.length);
  const y = (value) => HEIGHT - BOTTOM - ((HEIGHT - BOTTOM - 10) * value) / most;
  const every = Math.ceil(items.length / 8);
  const parts = items.map((item, place) =>
    place % every === 0 ? s("text", { class: "quiet", x: x(place), y: HEIGHT - 6, "text-anchor": "middle" }, name(item)) : null,
  );
  ["line-a", "line-b"].forEach((style, which) => {
    const points = items.map((item, place) => [place, values(item)[which]]).filter(([, value]) => value !== null && value !== undefined);
    parts.push(s("polyline", { class: style, points: points.map(([place, value]) => `${x(place)},${y(value)}`).join(" ") }));
    for (const [place, value] of points) parts.push(s("circle", { class: style, cx: x(place), cy: y(value), r: 2.5 }));
  });
  const described = items.map((item) => `${name(item)}: ${values(item).map((value) => (value === null || value === undefined ? "none" : show(value))).join(", ")}`);
  return frame(label, most, show, parts, described);
}

function frame(label, most, show, parts, described) {
  const base = HEIGHT - BOTTOM;
  return h(
    "figure",
    {},
    s(
      "svg",
      { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${label}. ${described.slice(-14).join("; ")}` },
      s("line", { class: "axis", x1: LEFT, y1: base, x2: WIDTH, y2: base }),
      s("line", { class: "axis", x1: LEFT, y1: 10, x2: WIDTH, y2: 10, "stroke-dasharray": "3 4" }),
      s("text", { class: "quiet", x: LEFT - 6, y: 14, "text-anchor": "end" }, show(most)),
      s("text", { class: "quiet", x: LEFT - 6, y: base, "text-anchor": "end" }, "0"),
      parts.filter(Boolean),
    ),
  );
}

export function shares(items, { name, value, total }) {
  return h(
    "table",
    {},
    h("tbody", {}, items.map((item) => h("tr", {}, h("th", { scope: "row" }, name(item)), h("td", {}, meter(value(item), total)), h("td", {}, `${value(item).toLocaleString()} (${total ? Math.round((100 * value(item)) / total) : 0} %)`)))),
  );
}

function meter(value, total) {
  const width = total ? (100 * value) / total : 0;
  return s("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", height: 10, "aria-hidden": "true" }, s("rect", { class: "bar", width, height: 10, rx: 1 }));
}

export function key(entries) {
  return h("ul", { class: "key" }, entries.map(([style, text]) => h("li", {}, h("span", { class: style, "aria-hidden": "true" }), text)));
}
