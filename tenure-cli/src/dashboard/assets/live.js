// Everything here is optional: without it the pages can be read, and every form can be posted.
// Loaded without `defer`, because the theme must be set before the first paint; the rest waits for the document.
(() => {
  "use strict";
  const one = (selector, within = document) => within.querySelector(selector);
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];

  // Storage throws where cookies are blocked: then no choice is remembered, and the rest works.
  const recall = (key) => { try { return localStorage.getItem(`tenure.${key}`); } catch { return null; } };
  const remember = (key, value) => { try { localStorage.setItem(`tenure.${key}`, value); } catch { /* as above */ } };

  // --- Theme: the system's, unless the user chose one.
  const THEMES = ["auto", "light", "dark"];
  const theme = () => (THEMES.includes(recall("theme")) ? recall("theme") : "auto");

  function showTheme() {
    document.documentElement.dataset.theme = theme();
    const button = one("#theme");
    if (button) button.textContent = `Theme: ${theme()}`;
  }

  function nextTheme() {
    remember("theme", THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length]);
    showTheme();
  }

  // --- Live updates. The server renders a region, and the page morphs its own into it.
  const FIRST_WAIT = 1000;
  const LONGEST_WAIT = 30_000;
  const SILENT_AFTER = 45_000; // the server sends a ping every 15 s: three missed pings mean a dead connection
  const live = { source: null, timer: 0, failures: 0, heard: 0, paused: false, ended: false, stale: false };

  function sync() {
    const wanted = one("#main[data-live]") && !live.paused && !live.ended && !document.hidden;
    if (!wanted) hangUp();
    else if (!live.source && !live.timer) call();
    showState();
  }

  function call() {
    live.timer = 0;
    live.heard = Date.now();
    const source = (live.source = new EventSource(one("#main").dataset.live));
    const on = (name, act) => source.addEventListener(name, (event) => {
      live.heard = Date.now();
      live.failures = 0; // only an event counts: a proxy that opens and closes is still a failure
      act(event);
      showState();
    });
    on("region", (event) => morph(JSON.parse(event.data)));
    on("ping", () => {});
    on("stale", () => { live.stale = true; }); // the server cannot read the page: the last one stays
    on("fresh", () => { live.stale = false; });
    on("gone", () => { live.ended = true; hangUp(); });
    source.addEventListener("error", () => source === live.source && failed());
  }

  function hangUp() {
    clearTimeout(live.timer);
    live.source?.close();
    live.source = null;
    live.timer = 0;
  }

  // The browser's own reconnect has no backoff and gives up on a 502, so the page reconnects itself: with jitter, or
  // all viewers would return at the same moment.
  function failed() {
    hangUp();
    live.failures += 1;
    const wait = Math.min(LONGEST_WAIT, FIRST_WAIT * 2 ** (live.failures - 1));
    live.timer = setTimeout(call, wait * (0.75 + Math.random() / 2));
    showState();
  }

  // A single failure is not shown: a proxy that closes long requests looks like one. The text changes only with the
  // state, so that a screen reader reads each state once.
  function showState() {
    const box = one("#live-state");
    if (!box) return;
    const state = live.ended ? "ended" : live.paused ? "paused" : live.failures > 1 ? "reconnecting"
      : live.stale ? "out of date" : "live";
    if (box.dataset.state === state) return;
    box.dataset.state = state;
    box.textContent = state;
    const button = one("#live-pause");
    button.textContent = live.paused ? "Resume" : "Pause";
    button.hidden = live.ended;
  }

  function togglePause() {
    live.paused = !live.paused;
    live.failures = 0;
    sync();
  }

  // The user's changes stay: an open <details>, a check mark, a choice, a text that differs from the server's.
  function keep(attribute, node) {
    if (attribute === "open") return node.matches("details, dialog");
    if (attribute === "checked" || attribute === "selected") return true;
    return attribute === "value" && node.matches("input, textarea") && node.value !== node.defaultValue;
  }

  // While a question is open, its form must stay as the user saw it: what it touches, and how many. The updates that
  // come meanwhile wait.
  let held = [];
  let asking = false; // from the click on: what is counted for the question must be what the form sends
  function release() {
    const regions = held;
    held = [];
    regions.forEach(morph);
  }

  function morph({ id, html }) {
    const question = one("dialog.ask");
    if (question || asking) {
      held.push({ id, html });
      if (question) question.dataset.held = held.map((region) => region.id).join(" ");
      return;
    }
    const old = document.getElementById(id);
    if (!old) return;
    const focused = document.activeElement;
    Idiomorph.morph(old, html, {
      morphStyle: "outerHTML",
      callbacks: { beforeAttributeUpdated: (attribute, node) => !keep(attribute, node) },
    });
    // A browser without moveBefore() drops the focus of a row that changed places.
    if (focused?.isConnected && focused !== document.activeElement) focused.focus({ preventScroll: true });
    count();
  }

  // --- Selection. `<form data-bulk>`: check boxes named `id`, `[data-all]` in the head, `[data-matching]` for all
  // matches and not only this page. `<button data-count="Redrive" data-can="redrive">` shows how many of the selected
  // it can touch: a box lists what can be done in its own `data-can`, and of all matches it is the button's `data-all`,
  // or more: then `data-more` is an address that counts them all, for the question before the action. Without
  // `data-all`, the server counts when the user clicks.
  const boxes = (form) => all("input[name=id]", form);
  const checked = (form) => boxes(form).filter((box) => box.checked);
  const matching = (form) => one("[data-matching]", form);

  function selected(form, button) {
    const act = button?.dataset.can;
    if (button && matching(form)?.checked) {
      return { number: Number(button.dataset.all ?? Infinity), more: button.dataset.more ?? null };
    }
    const can = (box) => !act || (box.dataset.can ?? act).split(" ").includes(act);
    return { number: checked(form).filter(can).length, more: null };
  }

  const COUNTED_WITHIN = 15_000;
  const words = ({ number, more }) =>
    number === Infinity ? "all" : number.toLocaleString("en") + (more ? " or more" : "");

  function count() {
    for (const form of all("form[data-bulk]")) {
      const page = checked(form).length;
      const head = one("[data-all][type=checkbox]", form);
      if (head) {
        head.checked = page > 0 && page === boxes(form).length;
        head.indeterminate = page > 0 && !head.checked;
        head.disabled = boxes(form).length === 0;
      }
      for (const button of all("button[data-count]", form)) {
        const these = selected(form, button);
        button.disabled = these.number === 0;
        button.textContent = these.number ? `${button.dataset.count} ${words(these)}` : button.dataset.count;
      }
    }
  }

  function onChange({ target }) {
    if (target.matches("input[data-all]")) for (const box of boxes(target.form)) box.checked = target.checked;
    if (target.matches("#keys-on")) remember("keys", target.checked ? "on" : "off");
    count();
  }

  // --- Confirmations. `data-confirm` on the form, or on one of its buttons; `{n}` is the number selected.
  function make(tag, properties, ...children) {
    const node = Object.assign(document.createElement(tag), properties); // text only: never HTML from an attribute
    node.append(...children);
    return node;
  }

  function ask(question, label, dangerous) {
    const no = make("button", { value: "no", textContent: "Go back", autofocus: dangerous });
    const yes = make("button", { value: "yes", textContent: label, autofocus: !dangerous });
    yes.className = dangerous ? "danger" : "primary";
    const text = make("p", { id: "question", textContent: question });
    const buttons = label ? [no, yes] : [no];
    const dialog = make("dialog", { className: "ask" }, make("form", { method: "dialog" }, text, ...buttons));
    dialog.setAttribute("aria-labelledby", "question");
    document.body.append(dialog);
    dialog.showModal();
    return new Promise((resolve) => dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes");
    }));
  }

  const fill = (question, these) =>
    question.replace(/\{n\} (job|dead letter)s/, (many, one) => (words(these) === "1" ? `1 ${one}` : many))
      .replace("{n}", words(these));

  // How many the action touches, exactly. Without an answer the question says "or more", as the button does.
  async function counted(form, button) {
    const these = selected(form, button);
    if (!these.more) return these;
    try {
      const fields = new URLSearchParams(new FormData(form));
      ["csrf", "id", "back", "selection"].forEach((name) => fields.delete(name));
      fields.set("action", button.dataset.can);
      const answer = await fetch(`${these.more}?${fields}`, { signal: AbortSignal.timeout(COUNTED_WITHIN) });
      if (!answer.ok) throw new Error(answer.statusText);
      const counted = await answer.json();
      // The form then sends which jobs were counted: it is for them alone.
      if (counted.selection) form.elements.selection.value = counted.selection;
      return { number: counted[button.dataset.can], more: null, why: counted.why };
    } catch {
      return these.number === Infinity
        ? { ...these, why: "The jobs could not be counted in time; narrow the list." } : these;
    }
  }

  let confirmed = null;
  async function onSubmit(event) {
    const { target: form, submitter } = event;
    const question = submitter?.dataset.confirm ?? form.dataset.confirm;
    if (!question || confirmed === form) return;
    event.preventDefault();
    if (asking) return;
    asking = true;
    const dangerous = submitter?.classList.contains("danger") ?? false;
    const these = await counted(form, submitter);
    if (these.why) {
      await ask(these.why, null, false);
      asking = false;
      release();
      return;
    }
    const act = submitter?.dataset.count;
    const label = act ? `${act} ${words(these)}` : submitter?.textContent ?? "Yes";
    const yes = await ask(fill(question, these), label, dangerous);
    asking = false;
    if (yes) {
      confirmed = form;
      form.requestSubmit(submitter?.isConnected ? submitter : undefined);
      confirmed = null;
    }
    release();
  }

  // --- Keys. Links carry their own letter (`data-key`), so that this script needs no paths.
  const typing = (node) => node.matches("textarea, select, [contenteditable], input:not([type=checkbox], [type=radio])");
  let going = 0; // until when a letter after `g` names a page

  function onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || recall("keys") === "off") return;
    if (typing(event.target)) return void (event.key === "Escape" && event.target.blur());
    if (one("dialog[open]")) return;
    if (act(event)) event.preventDefault();
  }

  function act({ key, target }) {
    if (going > Date.now()) {
      going = 0;
      const link = one(`a[data-key="${CSS.escape(key)}"]`);
      if (link) return link.click(), true;
    }
    const inRow = target.closest("tr, li")?.querySelector("a.row");
    switch (key) {
      case "g": going = Date.now() + 1500; return true;
      case "?": one("#keys")?.showModal(); return true;
      case "p": if (one("#main[data-live]")) togglePause(); return true;
      case "/": return search();
      case "j": return step(1);
      case "k": return step(-1);
      case "ArrowDown": return Boolean(inRow) && step(1); // elsewhere the arrows scroll
      case "ArrowUp": return Boolean(inRow) && step(-1);
      case "x": return toggleRow(target.closest("tr"));
    }
    return false;
  }

  function search() {
    const field = one("input[type=search]");
    if (field) field.select(), field.focus();
    const jobs = one('a[data-key="j"]');
    if (!field && jobs) location.href = `${jobs.href}#search`;
    return Boolean(field ?? jobs);
  }

  // The row's own link has the focus, so Enter opens it.
  function step(by) {
    const links = all("#main a.row").filter((link) => link.checkVisibility?.() ?? true);
    const row = document.activeElement?.closest("tr, li");
    const at = links.findIndex((link) => row?.contains(link));
    const next = links[at < 0 ? (by > 0 ? 0 : links.length - 1) : at + by];
    next?.focus();
    next?.closest("tr, li").scrollIntoView({ block: "nearest" });
    return Boolean(next);
  }

  function toggleRow(row) {
    const box = row && one("input[name=id]", row);
    box?.click();
    return Boolean(box);
  }

  // --- Wiring. One listener per kind of event, on the document, so that morphed-in nodes need none.
  function onClick({ target }) {
    if (target.closest("#theme")) nextTheme();
    if (target.closest("#live-pause")) togglePause();
    if (target.closest("#keys-open")) one("#keys").showModal();
  }

  document.documentElement.classList.add("js");
  showTheme();
  document.addEventListener("DOMContentLoaded", () => {
    showTheme();
    count();
    sync();
    const keys = one("#keys-on");
    if (keys) keys.checked = recall("keys") !== "off";
    one('nav [aria-current="page"]')?.scrollIntoView({ block: "nearest", inline: "center" });
    document.addEventListener("click", onClick);
    document.addEventListener("change", onChange);
    document.addEventListener("submit", onSubmit);
    document.addEventListener("keydown", onKey);
    // A hidden tab must cost the server nothing, and browsers allow only six connections per host.
    document.addEventListener("visibilitychange", sync);
    addEventListener("pagehide", hangUp);
    addEventListener("pageshow", (event) => event.persisted && sync());
    setInterval(() => live.source && Date.now() - live.heard > SILENT_AFTER && failed(), 5000);
  });
})();
