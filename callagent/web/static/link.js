// The secret stands behind the # of the link, which browsers send to nobody. It leaves the address before anything else.

const link = location.hash.slice(1);
const message = document.querySelector("#message");

async function follow() {
  history.replaceState(null, "", location.pathname);
  const answer = await fetch("/api/login/link", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ link }),
  });
  if (answer.ok) {
    location.replace("/");
    return;
  }
  message.textContent = await answer.text();
}

if (link) await follow();
// A link that is opened in this tab while the page is there changes only what stands behind the #.
addEventListener("hashchange", () => location.reload());
