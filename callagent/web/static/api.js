// Requests to the HTTP API, with the CSRF token of the session.

let me = null;

export async function whoAmI() {
  if (!me) me = await get("/api/me");
  return me;
}

export async function may(right) {
  return (await whoAmI()).rights.includes(right);
}

export async function get(path, parameters = {}) {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== "" && value !== null));
  return read(await fetch(query.size ? `${path}?${query}` : path, { headers: { Accept: "application/json" } }));
}

export async function send(method, path, data = null) {
  const { csrf } = await whoAmI();
  const headers = { ...(csrf ? { "X-CSRF-Token": csrf } : {}), ...(data ? { "Content-Type": "application/json" } : {}) };
  return read(await fetch(path, { method, headers, body: data ? JSON.stringify(data) : null }));
}

export function socket(path) {
  return new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}${path}`);
}

async function read(answer) {
  if (answer.status === 401) {
    location.assign("/login");
    throw new Error("Log in first.");
  }
  if (!answer.ok) throw new Error((await answer.text()) || `The server answered ${answer.status}.`);
  return answer.json();
}

// Calls `show` with each state that the event stream sends; the returned function closes the stream.
export function watch(path, show, gone = () => {}) {
  const source = new EventSource(path);
  source.addEventListener("message", (event) => {
    const data = JSON.parse(event.data);
    if (data === null) {
      source.close();
      gone();
    } else {
      show(data);
    }
  });
  return () => source.close();
}
