// The one script of the page: the theme, live updates and logs. Without it, every page works, but is not live.
"use strict";

const THEMES = ["system", "dark", "light"];

function theme() {
  try { return THEMES.includes(localStorage.theme) ? localStorage.theme : "system"; } catch { return "system"; }
}

function showTheme() {
  document.documentElement.dataset.theme = theme();
  const button = document.getElementById("theme");
  if (button) { button.textContent = "Theme: " + theme(); button.hidden = false; }
}

function nextTheme() {
  try { localStorage.theme = THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length]; } catch { return; }
  showTheme();
}

// --- live updates ----------------------------------------------------------------------------------------------------
const LONGEST_REST = 30000;
const REOPEN = 5000;
let wanted = false, updating = false, rest = 1000, feed = null;

function say(text, good) {
  const live = document.getElementById("live");
  if (live && live.textContent !== text) { live.textContent = text; live.classList.toggle("bad", !good); }
}

function focusKey() {
  const at = document.activeElement;
  if (!at || !at.closest("[data-live]")) return null;
  return at.id ? "#" + CSS.escape(at.id) : at.matches("a[href]") ? `a[href="${CSS.escape(at.getAttribute("href"))}"]` : null;
}

function replaceParts(text) {
  const page = new DOMParser().parseFromString(text, "text/html");
  const focused = focusKey();
  for (const part of document.querySelectorAll("[data-live]")) {
    const fresh = page.querySelector(`[data-live="${part.dataset.live}"]`);
    if (fresh && !fresh.isEqualNode(part)) part.replaceWith(document.importNode(fresh, true));
  }
  document.body.dataset.number = page.body.dataset.number ?? document.body.dataset.number;
  if (focused) document.querySelector(`[data-live] ${focused}`)?.focus({ preventScroll: true });
}

// A page is read again at most once a second, and rests for ten times the duration of the last answer.
async function update() {
  if (updating || document.hidden || !document.querySelector("[data-live]")) { wanted = true; return; }
  updating = true;
  wanted = false;
  const begun = performance.now();
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
    if (answer.redirected || answer.status === 401) { location.reload(); return; }
    if (!answer.ok) say("not updated: " + answer.status, false);
    else {
      replaceParts(await answer.text());
      if (feed?.readyState === EventSource.OPEN) say("live", true);
    }
  } catch { say("connection lost", false); }
  rest = Math.min(LONGEST_REST, Math.max(1000, 10 * (performance.now() - begun)));
  setTimeout(() => { updating = false; if (wanted) update(); }, rest);
}

// The browser itself opens a broken stream again, but not one that was answered with an error such as 503.
// A hidden page has no stream: browsers allow six connections to a host with HTTP/1.1, for all tabs together.
function openFeed() {
  if (document.hidden || (feed && feed.readyState !== EventSource.CLOSED)) return;
  const namespace = new URLSearchParams(location.search).get("namespace") || location.pathname.split("/")[2] || "";
  feed = new EventSource("/changes?" + new URLSearchParams({ after: document.body.dataset.number, namespace }));
  feed.addEventListener("open", () => say("live", true));
  feed.addEventListener("change", update);
  feed.addEventListener("error", () => {
    say("connection lost", false);
    if (feed.readyState === EventSource.CLOSED) setTimeout(openFeed, REOPEN);
  });
}

function listen() {
  openFeed();
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) { feed?.close(); return; }
    openFeed();
    update();
  });
  setInterval(update, LONGEST_REST); // ages
}

// --- logs ------------------------------------------------------------------------------------------------------------
const MOST_CHARACTERS = 2000000;
const CONTROL = /\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b\x0c\x0e-\x1f]/g;

async function readLog(log) {
  const state = document.getElementById("log-state");
  const following = () => document.getElementById("follow").getAttribute("aria-pressed") === "true";
  const stop = new AbortController();
  window.addEventListener("pagehide", () => stop.abort());
  log.textContent = "";
  state.textContent = "Waiting for the log …";
  try {
    const answer = await fetch(log.dataset.source, { signal: stop.signal });
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    state.textContent = answer.ok ? "Following." : "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      log.append(value.replace(/\r+\n/g, "\n").replace(CONTROL, ""));
      while (log.childNodes.length > 1 && log.textContent.length > MOST_CHARACTERS) log.firstChild.remove();
      if (following()) log.scrollTop = log.scrollHeight;
    }
    state.textContent = answer.ok ? "The log has ended." : "The log cannot be read.";
  } catch (error) {
    if (error.name !== "AbortError") state.textContent = "The connection was lost. Reload the page to continue.";
  }
}

function toggle(button, change) {
  button.hidden = false;
  button.addEventListener("click", () => {
    const pressed = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(pressed));
    change(pressed);
  });
}

showTheme();
document.addEventListener("DOMContentLoaded", () => {
  showTheme();
  document.getElementById("theme")?.addEventListener("click", nextTheme);
  const log = document.getElementById("log");
  if (log) {
    toggle(document.getElementById("follow"), (on) => { if (on) log.scrollTop = log.scrollHeight; });
    toggle(document.getElementById("wrap"), (on) => log.classList.toggle("wrap", on));
    readLog(log);
  } else if (document.body.dataset.number !== undefined) listen();
});
