import { get } from "/static/api.js";
import { card, h, replace, s, table } from "/static/dom.js";

const BOX = { width: 190, height: 44, across: 260, down: 74 };

export async function show(body, _, heading) {
  const { served } = await get("/api/projects");
  if (!served.length) {
    replace(body, h("p", { class: "empty" }, "No project is served."));
    return;
  }
  const drawing = h("div", {});
  const load = async (name) => {
    const graph = await get(`/api/projects/${encodeURIComponent(name)}/graph`);
    heading.textContent = `Project ${name}`;
    replace(drawing, render(graph));
  };
  const choice = served.length > 1 ? h("label", {}, "Project", h("select", { onchange: (event) => load(event.target.value) }, served.map((name) => h("option", {}, name)))) : null;
  replace(body, choice, drawing);
  await load(served[0]);
}

function render(graph) {
  const traffic = new Map(graph.traffic.map((one) => [`${one.previous}\n${one.position}`, one.turns]));
  const visits = new Map();
  for (const one of graph.traffic) visits.set(one.position, (visits.get(one.position) ?? 0) + one.turns);
  const known = new Set(graph.edges.map((edge) => `${edge.source}\n${edge.target}`));
  const edges = new Map();
  for (const edge of graph.edges) edges.set(`${edge.source}\n${edge.target}`, { source: edge.source, target: edge.target, turns: traffic.get(`${edge.source}\n${edge.target}`) ?? 0 });
  for (const one of graph.traffic) {
    if (one.previous !== one.position && !known.has(`${one.previous}\n${one.position}`)) edges.set(`${one.previous}\n${one.position}`, { source: one.previous, target: one.position, turns: one.turns });
  }
  return [
    graph.flows.map((flow) => card(flow.name, h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Graph of ${flow.name}` }, draw(flow, [...edges.values()], visits)), h("p", { class: "quiet" }, "Dashed: function steps. Numbers: turns of the last 30 days; a blue line is one that calls took."))),
    card("Traffic", table("Traffic between steps", ["From", "To", "Turns"], graph.traffic.map((one) => [one.previous || "start", one.position || "outside flows", one.turns.toLocaleString()]))),
  ];
}

function draw(flow, edges, visits) {
  const places = layout(flow, edges);
  const width = Math.max(...[...places.values()].map((place) => place.x)) + BOX.width + 20;
  const height = Math.max(...[...places.values()].map((place) => place.y)) + BOX.height + 20;
  const inside = edges.filter((edge) => places.has(edge.source) && places.has(edge.target) && edge.source !== edge.target);
  const drawing = s(
    "svg",
    { class: "graph", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${flow.name}: ${inside.map((edge) => `${edge.source} to ${edge.target}, ${edge.turns} turns`).join("; ")}` },
    s("defs", {}, s("marker", { id: "tip", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 10, markerHeight: 10, markerUnits: "userSpaceOnUse", orient: "auto" }, s("path", { d: "M0 0 L8 4 L0 8 Z", class: "c-wait" }))),
    inside.map((edge) => line(edge, places)),
    flow.steps.map((step) => node(step, places.get(step.id), visits.get(step.id) ?? 0)),
  );
  drawing.setAttribute("width", width);
  return drawing;
}

function layout(flow, edges) {
  const depth = new Map([[flow.start, 0]]);
  const waiting = [flow.start];
  while (waiting.length) {
    const source = waiting.shift();
    for (const edge of edges) {
      if (edge.source === source && !depth.has(edge.target) && flow.steps.some((step) => step.id === edge.target)) {
        depth.set(edge.target, depth.get(source) + 1);
        waiting.push(edge.target);
      }
    }
  }
  const rows = new Map();
  const places = new Map();
  for (const step of flow.steps) {
    const column = depth.get(step.id) ?? 0;
    const row = rows.get(column) ?? 0;
    rows.set(column, row + 1);
    places.set(step.id, { x: 10 + column * BOX.across, y: 20 + row * BOX.down + (column % 2) * 18 });
  }
  return places;
}

function node(step, place, visits) {
  return s(
    "g",
    { class: `node ${step.kind}`, transform: `translate(${place.x} ${place.y})` },
    s("rect", { width: BOX.width, height: BOX.height, rx: 8 }),
    s("text", { x: 10, y: 18 }, step.name.length > 26 ? `${step.name.slice(0, 25)}…` : step.name, s("title", {}, step.name)),
    s("text", { class: "quiet", x: 10, y: 35 }, visits ? `${visits.toLocaleString()} turns` : step.kind === "function" ? "function step" : "step"),
  );
}

function line(edge, places) {
  const from = places.get(edge.source);
  const to = places.get(edge.target);
  const forward = to.x > from.x;
  const start = { x: forward ? from.x + BOX.width : from.x + BOX.width / 2, y: forward ? from.y + BOX.height / 2 : from.y + BOX.height };
  const stop = { x: forward ? to.x : to.x + BOX.width / 2, y: forward ? to.y + BOX.height / 2 : to.y + BOX.height };
  const bend = forward ? `C${start.x + 40} ${start.y} ${stop.x - 40} ${stop.y}` : `C${start.x} ${start.y + 46} ${stop.x} ${stop.y + 46}`;
  return [
    s("path", { class: edge.turns ? "edge busy" : "edge", "stroke-width": 1.5 + Math.min(4, Math.log10(1 + edge.turns)), d: `M${start.x} ${start.y} ${bend} ${stop.x} ${stop.y}`, "marker-end": "url(#tip)" }),
    edge.turns ? s("text", { class: "quiet", x: (start.x + stop.x) / 2, y: (start.y + stop.y) / 2 - 4 }, edge.turns.toLocaleString()) : null,
  ];
}
