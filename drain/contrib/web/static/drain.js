// Live updates, saved searches and keyboard shortcuts. Everything else works without this script.
"use strict";

// Keyboard: `/` searches, `g` and a letter open a page, `j` and `k` choose a row, `?` lists all. Speech input may type
// them by mistake, so that the dialog turns them off.
(() => {
  const dialog = document.getElementById("shortcuts");
  if (!dialog) return;
  const open = document.getElementById("open-shortcuts");
  const isOn = document.getElementById("shortcuts-on");
  const key = `drain shortcuts ${dialog.dataset.root}`;
  let isGoing = false;

  // Without storage, the choice lasts as long as the page.
  const recall = () => {
    try {
      isOn.checked = localStorage.getItem(key) !== "off";
    } catch {
      isOn.checked = true;
    }
    open.querySelector("kbd").hidden = !isOn.checked;
  };
  recall();
  open.hidden = false;
  open.addEventListener("click", () => dialog.showModal());
  isOn.addEventListener("change", () => {
    open.querySelector("kbd").hidden = !isOn.checked;
    try {
      localStorage.setItem(key, isOn.checked ? "on" : "off");
    } catch {
      // As above.
    }
  });
  addEventListener("storage", (event) => event.key === key && recall());

  const rows = () => [...document.querySelectorAll("main tbody tr")].filter((row) => row.querySelector("a"));

  const choose = (step) => {
    const all = rows();
    if (!all.length) return;
    const place = all.findIndex((row) => row.contains(document.activeElement));
    all[Math.min(Math.max(place + step, 0), all.length - 1)].querySelector("a").focus();
  };

  document.addEventListener("keydown", (event) => {
    const isTyping = event.target.closest("input:not([type=checkbox]):not([type=radio]), textarea, select");
    if (isTyping || event.ctrlKey || event.metaKey || event.altKey || !isOn.checked) return;
    const goes = isGoing && dialog.querySelector(`[data-go="${CSS.escape(event.key)}"]`);
    isGoing = event.key === "g" && !isGoing;
    if (goes) goes.click();
    else if (event.key === "j") choose(1);
    else if (event.key === "k") choose(-1);
    else if (event.key === "?") dialog.showModal();
    else if (event.key === "/") {
      const field = document.getElementById("q") || document.getElementById("find");
      if (!field) return;
      event.preventDefault();
      field.focus();
    }
  });
})();

// Saved searches, kept in this browser. Mounts under different prefixes have their own.
(() => {
  const saved = document.getElementById("saved-searches");
  if (!saved) return;
  const form = saved.querySelector("form");
  const list = saved.querySelector("ul");
  const said = saved.querySelector("[role=status]");
  const key = `drain searches ${saved.dataset.search}`;
  const most = 50;

  const read = () => {
    try {
      const found = JSON.parse(localStorage.getItem(key) || "[]");
      return found.filter((each) => typeof each?.name === "string" && typeof each.query === "string").slice(0, most);
    } catch (error) {
      if (error.name === "SecurityError") throw error;
      return [];
    }
  };

  const show = () => {
    const rows = read().map(({ name, query }) => {
      const row = document.createElement("li");
      const link = document.createElement("a");
      link.href = `${saved.dataset.search}?${new URLSearchParams({ q: query })}`;
      link.textContent = name;
      const text = document.createElement("code");
      text.textContent = query;
      const remove = document.createElement("button");
      remove.className = "quiet";
      remove.textContent = "Delete";
      remove.setAttribute("aria-label", `Delete ${name}`);
      remove.addEventListener("click", () => {
        const place = rows.indexOf(row);
        keep(read().filter((each) => each.name !== name), `Deleted ${name}.`);
        const left = list.querySelectorAll("button");
        (left[Math.min(place, left.length - 1)] || form.elements.name).focus();
      });
      row.append(link, " ", text, " ", remove);
      return row;
    });
    list.replaceChildren(...rows);
  };

  const keep = (searches, text) => {
    try {
      localStorage.setItem(key, JSON.stringify(searches));
      said.textContent = text;
    } catch {
      said.textContent = "This browser cannot store the search.";
    }
    show();
  };

  try {
    show();
  } catch {
    // The browser refuses storage, so the section stays hidden.
    return;
  }
  saved.hidden = false;
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const name = form.elements.name.value.trim();
    const query = document.getElementById("q").value.trim();
    const others = read().filter((each) => each.name !== name);
    if (!name || !query) said.textContent = "Enter a search and a name.";
    else if (others.length >= most) said.textContent = `Delete a search first: ${most} are saved.`;
    else {
      keep([...others, { name, query }], `Saved ${name}.`);
      form.reset();
    }
  });
  // Another tab changed them.
  addEventListener("storage", (event) => event.key === key && show());
})();

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

  // A link that changes between press and release gets no click, so changes wait for the end of both.
  let isPressed = false;
  let waiting = null;
  addEventListener("pointerdown", () => (isPressed = true));
  const released = () =>
    setTimeout(() => {
      isPressed = false;
      if (waiting !== null) show(waiting);
      waiting = null;
    });
  addEventListener("pointerup", released);
  addEventListener("pointercancel", released);
  addEventListener("blur", released);

  const follow = () => {
    if (!said) say("Connecting.", false);
    source = new EventSource(connection.dataset.stream);
    source.addEventListener("page", (event) => {
      if (isPressed) waiting = event.data;
      else show(event.data);
      say("Live.", false);
    });
    source.addEventListener("away", (event) => say(`Not available, showing the last known state: ${event.data}`, true));
    source.onerror = () => {
      say("Connection lost, retrying.", true);
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
    pause.textContent = hold ? "Resume updates" : "Pause updates";
    if (hold) {
      stop();
      say("Updates paused.", false);
    } else follow();
  });
  // A hidden tab costs nothing.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) stop();
    else if (!isHeld() && !source) follow();
  });
  if (!document.hidden) follow();
})();
