import { send, whoAmI } from "/static/api.js";
import { announce, h, replace } from "/static/dom.js";

const PAGES = [
  [/^\/$/, "overview", "Overview"],
  [/^\/live$/, "live", "Live calls"],
  [/^\/live\/([^/]+)$/, "live_call", "Live call"],
  [/^\/calls$/, "calls", "Calls"],
  [/^\/calls\/([^/]+)$/, "call", "Call"],
  [/^\/project$/, "project", "Project"],
  [/^\/phone$/, "phone", "Phone"],
];

const main = document.querySelector("#main");
let leave = null;
let shown = 0;

async function show({ focus = false } = {}) {
  const turn = ++shown;
  leave?.();
  leave = null;
  const found = PAGES.map(([pattern, ...page]) => [location.pathname.match(pattern), ...page]).find(([match]) => match);
  const [match, name, title] = found ?? [[], "overview", "Overview"];
  document.title = `${title} · callagent`;
  markCurrent();
  const heading = h("h1", { tabindex: "-1" }, title);
  const body = h("div", {}, h("p", {}, "Loading…"));
  replace(main, heading, body);
  try {
    const page = await import(`/static/pages/${name}.js`);
    const end = await page.show(body, match[1] ? decodeURIComponent(match[1]) : null, heading);
    if (turn !== shown) end?.();
    else leave = end ?? null;
  } catch (error) {
    if (turn === shown) replace(body, h("p", { class: "notice", role: "alert" }, error.message));
  }
  if (focus && turn === shown) heading.focus({ preventScroll: true });
  announce(title);
}

function markCurrent() {
  const top = `/${location.pathname.split("/")[1]}`;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.pathname === top) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[href]");
  const ours = link && link.origin === location.origin && !link.hash && !link.hasAttribute("download");
  const plain = event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey && !event.altKey;
  if (!ours || !plain || /^\/(api|static|login)/.test(link.pathname)) return;
  event.preventDefault();
  history.pushState({}, "", link.href);
  scrollTo(0, 0);
  show({ focus: true });
});
addEventListener("popstate", () => show({ focus: true }));

async function showAccount() {
  const me = await whoAmI();
  if (!me.csrf) return;
  const out = async () => {
    await send("POST", "/api/logout");
    location.assign("/login");
  };
  replace(document.querySelector("#account"), h("span", {}, me.name), h("button", { type: "button", onclick: out }, "Log out"));
}

show();
showAccount().catch(() => {});
