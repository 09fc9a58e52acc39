const form = document.querySelector("#login");
const message = document.querySelector("#message");

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  message.textContent = "";
  const entered = new FormData(form);
  const answer = await fetch("/api/login", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ name: entered.get("name"), password: entered.get("password") }),
  });
  if (answer.ok) {
    location.assign("/");
    return;
  }
  message.textContent = await answer.text();
  form.elements.password.value = "";
  form.elements.password.focus();
});
