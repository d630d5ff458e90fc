// Follows the live part of the page. Everything else works without this script.
"use strict";

(() => {
  const connection = document.getElementById("connection");
  const live = document.getElementById("live");
  const pause = document.getElementById("pause");
  if (!connection || !live || !pause || !window.EventSource) return;

  let source = null;
  let said = "";

  // A screen reader speaks each change, so the same text is not set twice.
  const say = (text, isAway) => {
    if (text !== said) connection.textContent = said = text;
    document.body.classList.toggle("is-away", isAway);
  };

  // Changes what differs and leaves the rest, so that focus, selection and opened details stay.
  const become = (old, fresh) => {
    if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName) {
      old.replaceWith(fresh.cloneNode(true));
      return;
    }
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue;
      return;
    }
    for (const { name } of [...old.attributes]) {
      if (!fresh.hasAttribute(name) && !(old.nodeName === "DETAILS" && name === "open")) old.removeAttribute(name);
    }
    for (const { name, value } of fresh.attributes) {
      if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    const before = [...old.childNodes];
    const after = [...fresh.childNodes];
    after.forEach((child, number) => {
      if (before[number]) become(before[number], child);
      else old.append(child.cloneNode(true));
    });
    before.slice(after.length).forEach((child) => child.remove());
  };

  const show = (html) => {
    const fresh = new DOMParser().parseFromString(html, "text/html").body;
    const shell = live.cloneNode(false);
    shell.append(...fresh.childNodes);
    const focused = live.contains(document.activeElement) && document.activeElement;
    const was = focused && focused.cloneNode(true);
    become(live, shell);
    // The keyboard stays on its link when rows move.
    if (was && !(focused.isConnected && focused.isEqualNode(was))) {
      const again = [...live.querySelectorAll(was.nodeName)].find((each) => each.isEqualNode(was));
      if (again) again.focus({ preventScroll: true });
      else if (!focused.isConnected) document.getElementById("main").focus({ preventScroll: true });
    }
  };

  const follow = () => {
    if (!said) say("Begins to follow.", false);
    source = new EventSource(connection.dataset.stream);
    source.addEventListener("page", (event) => {
      show(event.data);
      say("Follows by itself.", false);
    });
    source.addEventListener("away", (event) => say(`Not available now, shows what was: ${event.data}`, true));
    source.onerror = () => {
      say("The connection is lost; it is tried again.", true);
      // A browser gives up after an answer that is no stream.
      if (source && source.readyState === EventSource.CLOSED) setTimeout(() => source && follow(), 10000);
    };
  };

  const stop = () => {
    if (source) source.close();
    source = null;
  };

  const isHeld = () => pause.getAttribute("aria-pressed") === "true";

  pause.hidden = false;
  pause.addEventListener("click", () => {
    const hold = !isHeld();
    pause.setAttribute("aria-pressed", String(hold));
    if (hold) {
      stop();
      say("Holds still.", false);
    } else follow();
  });
  // A tab that nobody sees costs nothing.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) stop();
    else if (!isHeld() && !source) follow();
  });
  if (!document.hidden) follow();
})();
