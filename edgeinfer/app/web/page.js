// The link to this page has the key after its #, which browsers never send. It is stored for pages of this origin, port
// included; a cookie would also be sent to servers on other ports of this computer.
const given = new URLSearchParams(location.hash.slice(1)).get("key");
if (given) {
  localStorage.setItem("key", given);
  history.replaceState(null, "", location.pathname + location.search);
}
window.addEventListener("hashchange", () => location.reload()); // a new link, opened in the same tab
document.addEventListener("DOMContentLoaded", () => {
  const key = encodeURIComponent(localStorage.getItem("key") ?? "");
  const place = `${location.protocol.replace("http", "ws")}//${location.host}`;
  document.querySelector("#terminal").dataset.sessionWebsocketUrl = `${place}/tab/${key}`;
});
// Keys go to the app as soon as it is there, without a click.
new MutationObserver((_, observer) => {
  const input = document.querySelector("#terminal textarea");
  if (input && document.body.classList.contains("-first-byte")) {
    observer.disconnect();
    input.focus();
  }
}).observe(document.documentElement, { attributes: true, childList: true, subtree: true });
