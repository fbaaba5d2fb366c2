// Keys go to the app as soon as there is one: nobody has to click first.
new MutationObserver((_, observer) => {
  const input = document.querySelector("#terminal textarea");
  if (input && document.body.classList.contains("-first-byte")) {
    observer.disconnect();
    input.focus();
  }
}).observe(document.documentElement, { attributes: true, childList: true, subtree: true });
