// Liveness and comfort; every page works without it.
"use strict";

(() => {
  const part = document.getElementById("live");
  const mark = document.querySelector(".live-mark");
  const say = (state, text) => {
    if (mark) { mark.dataset.state = state; mark.textContent = text; }
  };

  // Rows that somebody is choosing stay where they are: no update while a box is ticked or a field is in use.
  const isInUse = () => {
    if (part.querySelector("input:checked, details[open]")) return true;
    const active = document.activeElement;
    return part.contains(active) && active.matches("input:not([type=checkbox]), select, textarea");
  };

  // What a focused element is, in words that also fit its successor in the new part.
  const selectorOf = (element) => {
    if (!element || !part.contains(element)) return null;
    if (element.id) return `#${CSS.escape(element.id)}`;
    if (element.tagName === "A") return `a[href="${CSS.escape(element.getAttribute("href"))}"]`;
    if (element.name) return `[name="${CSS.escape(element.name)}"][value="${CSS.escape(element.value)}"]`;
    return null;
  };

  const replace = (html) => {
    const focused = selectorOf(document.activeElement);
    const scrolled = [...part.querySelectorAll(".scroll")].map((each) => each.scrollLeft);
    const parsed = new DOMParser().parseFromString(html, "text/html");
    part.replaceChildren(...parsed.body.childNodes);
    part.querySelectorAll(".scroll").forEach((each, at) => { each.scrollLeft = scrolled[at] || 0; });
    if (focused) part.querySelector(focused)?.focus({ preventScroll: true });
    prepare(part);
  };

  // One box in the head of a table ticks all of its rows.
  const prepare = (root) => {
    root.querySelectorAll("input[data-all]").forEach((all) => {
      all.hidden = false;
      all.addEventListener("change", () => {
        all.closest("table").querySelectorAll("tbody input[type=checkbox]").forEach((each) => { each.checked = all.checked; });
      });
    });
  };

  const watch = () => {
    const stream = new EventSource(part.dataset.live);
    stream.addEventListener("open", () => say("live", "Live"));
    stream.addEventListener("error", () => say("trouble", "Connection lost, trying again"));
    stream.addEventListener("trouble", (event) => say("trouble", JSON.parse(event.data)));
    stream.addEventListener("live", (event) => {
      if (isInUse()) { say("held", "Held while you choose"); return; }
      replace(JSON.parse(event.data));
      say("live", "Live");
      // An act that has ended does not change any more.
      if (part.querySelector("[data-ended]")) { stream.close(); delete mark.dataset.state; }
    });
    return stream;
  };

  if (part && part.dataset.live && window.EventSource && !part.querySelector("[data-ended]")) {
    // A page in the background costs nothing.
    let stream = document.hidden ? null : watch();
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) { stream?.close(); stream = null; } else if (!stream) { stream = watch(); }
    });
    window.addEventListener("pagehide", () => { stream?.close(); stream = null; });
  }
  prepare(document);

  // JSON is checked while it is typed; the server checks it again.
  document.querySelectorAll("textarea[data-json]").forEach((area) => {
    const hint = document.getElementById(area.dataset.json);
    const check = () => {
      let wrong = "";
      try { JSON.parse(area.value); } catch (error) { wrong = error.message; }
      area.setCustomValidity(wrong && `The body is not JSON: ${wrong}`);
      hint.textContent = wrong ? `Not JSON: ${wrong}` : "Valid JSON.";
    };
    area.addEventListener("input", check);
    check();
  });

  // "/" goes to the search, as in many consoles.
  document.addEventListener("keydown", (event) => {
    const search = document.getElementById("search");
    const typing = event.target.matches("input, textarea, select");
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && search) { event.preventDefault(); search.focus(); }
  });
})();
