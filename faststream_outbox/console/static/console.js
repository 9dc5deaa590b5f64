// Liveness and comfort; every page works without it.
"use strict";

(() => {
  const part = document.getElementById("live");
  const mark = document.querySelector(".live-mark");
  const say = (state, text, detail = "") => {
    if (mark) { mark.dataset.state = state; mark.textContent = text; mark.title = detail; }
  };

  // Rows that somebody is choosing stay where they are: no update while a box is ticked, a field is in use or text is
  // selected.
  const isInUse = () => {
    const selected = window.getSelection();
    if (selected && !selected.isCollapsed && part.contains(selected.anchorNode)) return true;
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

  // What scrolls by itself, and has the focus while it is scrolled by keys.
  const regions = () => [...part.querySelectorAll(".scroll, pre")];

  const replace = (html) => {
    const focused = selectorOf(document.activeElement);
    const before = regions().map((each) => [each.scrollLeft, each.scrollTop, each === document.activeElement]);
    const parsed = new DOMParser().parseFromString(html, "text/html");
    part.replaceChildren(...parsed.body.childNodes);
    regions().forEach((each, at) => {
      const [left, top, hadFocus] = before[at] || [0, 0, false];
      each.scrollLeft = left;
      each.scrollTop = top;
      if (hadFocus) each.focus({ preventScroll: true });
    });
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

  // The stream of the page: open while the page is seen, and opened again whenever it ends.
  let stream = null, nextTry = 0, worry = 0, failures = 0;
  const LOST_MS = 5000, SILENT_MS = 40000;
  const heard = () => {
    failures = 0;
    clearTimeout(worry);
    worry = setTimeout(() => say("trouble", "No news from the server"), SILENT_MS);
  };
  const close = () => {
    clearTimeout(worry);
    clearTimeout(nextTry);
    stream?.close();
    stream = null;
  };
  const open = () => {
    close();
    const mine = stream = new EventSource(part.dataset.live);
    mine.addEventListener("open", () => { heard(); say("live", "Live"); });
    mine.addEventListener("alive", heard);
    // The server ends a stream from time to time, and checks the rights anew.
    mine.addEventListener("again", open);
    mine.addEventListener("error", () => {
      failures += 1;
      clearTimeout(worry);
      // A short gap is not worth a word.
      const text = failures < 6 ? "Connection lost, trying again" : "Connection lost: reload the page";
      worry = setTimeout(() => say("trouble", text), failures < 2 ? LOST_MS : 0);
      // The browser tries again by itself, but not after an answer that is no stream, as a proxy gives it.
      if (mine.readyState === EventSource.CLOSED) nextTry = setTimeout(open, LOST_MS);
    });
    mine.addEventListener("trouble", (event) => {
      heard();
      const { text, detail } = JSON.parse(event.data);
      say("trouble", text, detail);
    });
    mine.addEventListener("live", (event) => {
      heard();
      if (isInUse()) { say("held", "Held while you choose"); return; }
      replace(JSON.parse(event.data));
      say("live", "Live");
      // An act that has ended does not change any more.
      if (part.querySelector("[data-ended]")) { close(); delete mark.dataset.state; }
    });
  };

  if (part && part.dataset.live && window.EventSource && !part.querySelector("[data-ended]")) {
    // A page in the background costs nothing.
    if (!document.hidden) open();
    document.addEventListener("visibilitychange", () => { if (document.hidden) close(); else if (!stream) open(); });
    window.addEventListener("pagehide", close);
  }
  prepare(document);

  // A second click does not send a form again while the first is under way. A download leaves the page as it is.
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (form.method !== "post" || event.submitter?.hasAttribute("formaction")) return;
    if (form.dataset.sent) event.preventDefault(); else form.dataset.sent = "yes";
  });
  // The button "Back" may show a page as it was left.
  window.addEventListener("pageshow", () => {
    document.querySelectorAll("form[data-sent]").forEach((form) => { delete form.dataset.sent; });
  });

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
