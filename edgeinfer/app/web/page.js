// The link that leads in has the key behind its #, which browsers send nowhere. It is kept for pages of this origin, port
// included; a cookie would be sent to whoever listens at another port of this computer.
const given = new URLSearchParams(location.hash.slice(1)).get("key");
if (given) {
  localStorage.setItem("key", given);
  history.replaceState(null, "", location.pathname + location.search);
}
window.addEventListener("hashchange", () => location.reload()); // a new link, opened where an old one was
document.addEventListener("DOMContentLoaded", () => {
  const key = encodeURIComponent(localStorage.getItem("key") ?? "");
  const place = `${location.protocol.replace("http", "ws")}//${location.host}`;
  document.querySelector("#terminal").dataset.sessionWebsocketUrl = `${place}/tab/${key}`;
});
// Keys go to the app as soon as there is one: nobody has to click first.
new MutationObserver((_, observer) => {
  const input = document.querySelector("#terminal textarea");
  if (input && document.body.classList.contains("-first-byte")) {
    observer.disconnect();
    input.focus();
  }
}).observe(document.documentElement, { attributes: true, childList: true, subtree: true });
