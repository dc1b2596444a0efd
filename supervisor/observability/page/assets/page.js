"use strict";

/* Keeps the page up to date, and counts its durations between two updates by the browser's clock. */
(() => {
  const SILENCE_MS = 15000;
  const NOW_S = 5;
  const FIRST_PAUSE_MS = 200;
  const MAX_PAUSE_MS = 5000;
  const FULL_PAUSE_MS = 30000;
  const POLL_MS = 5000;

  const content = document.getElementById("content");
  const lost = document.getElementById("lost");
  const filter = document.getElementById("filter");
  const found = document.getElementById("found");
  let updatedAt = performance.now();
  let failed = false;
  /* The history does not follow what happens: a page of it that changed under the reader would be of no use. */
  const follows = () => "stream" in content.dataset || "poll" in content.dataset;

  function span(seconds) {
    const whole = Math.floor(seconds);
    const two = (number) => String(number).padStart(2, "0");
    if (whole < 60) return `${whole} s`;
    if (whole < 3600) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
    if (whole < 86400) return `${Math.floor(whole / 3600)} h ${two(Math.floor((whole % 3600) / 60))} min`;
    return `${Math.floor(whole / 86400)} d ${two(Math.floor((whole % 86400) / 3600))} h`;
  }

  function countDurations() {
    const passed = (performance.now() - updatedAt) / 1000;
    for (const each of content.querySelectorAll("[data-left]")) {
      const left = Number(each.dataset.left) - passed;
      /* The server says what is so from then on, if that is anything else than overdue. */
      const since = each.dataset.over || (left > -NOW_S ? "now" : `was due ${span(-left)} ago`);
      put(each, left > 0 ? span(left) : since);
    }
    for (const each of content.querySelectorAll("[data-ago]")) put(each, span(Number(each.dataset.ago) + passed));
    const silent = follows() && performance.now() - updatedAt > SILENCE_MS;
    if (lost.hidden === (silent || failed)) lost.hidden = !(silent || failed);
  }

  function put(element, text) {
    if (element.textContent !== text) element.textContent = text;
  }

  /* Changes only what differs, so that focus, selection and the position of a screen reader stay. */
  function update(old, wanted) {
    if (old.nodeType !== wanted.nodeType || old.nodeName !== wanted.nodeName) {
      old.replaceWith(wanted.cloneNode(true));
    } else if (old.nodeType === Node.ELEMENT_NODE) {
      for (const { name } of [...old.attributes]) if (!wanted.hasAttribute(name)) old.removeAttribute(name);
      for (const { name, value } of wanted.attributes) {
        if (old.getAttribute(name) !== value) old.setAttribute(name, value);
      }
      updateChildren(old, wanted);
    } else if (old.nodeValue !== wanted.nodeValue) {
      old.nodeValue = wanted.nodeValue;
    }
  }

  function updateChildren(old, wanted) {
    const [oldNodes, newNodes] = [[...old.childNodes], [...wanted.childNodes]];
    newNodes.forEach((each, index) => {
      if (index < oldNodes.length) update(oldNodes[index], each);
      else old.appendChild(each.cloneNode(true));
    });
    oldNodes.slice(newNodes.length).forEach((each) => each.remove());
  }

  /* Hides the rows that do not contain the words, in the texts that the page shows. */
  function filterRows() {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = [...content.querySelectorAll("tbody tr")];
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
    const left = rows.filter((row) => !row.hidden).length;
    put(found, words.length ? `${left} of the ${rows.length} rows on this page` : "");
  }

  function show(html) {
    const wanted = document.createElement("template");
    wanted.innerHTML = html;
    updateChildren(content, wanted.content);
    updatedAt = performance.now();
    countDurations();
    filterRows();
    offerCopies();
  }

  /* Browsers have a clipboard only on pages that nobody could have changed on their way. */
  function offerCopies() {
    for (const each of content.querySelectorAll("[data-copy]")) each.hidden = !navigator.clipboard;
  }

  async function copy(event) {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
    put(found, "Copied.");
  }

  function onLine(line) {
    const message = JSON.parse(line);
    failed = message.type === "failed";
    if (message.type === "page") show(message.html);
  }

  async function read(answer) {
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      lines.forEach(onLine);
    }
  }

  /* Follows one stream to its end; returns the pause in milliseconds before the next attempt. */
  async function follow(pause) {
    try {
      if (!content.dataset.stream) return await poll();
      const answer = await fetch(content.dataset.stream, { cache: "no-store" });
      if (answer.status === 401 || answer.status === 403) location.reload();
      if (answer.status === 429) return FULL_PAUSE_MS;
      if (answer.ok) {
        await read(answer);
        return FIRST_PAUSE_MS;
      }
    } catch {
      /* The supervisor does not answer: the page says so after a while, and the loop tries again. */
    }
    return Math.min(pause * 2, MAX_PAUSE_MS);
  }

  /* A page without a stream, such as that of one job, is loaded again every few seconds, also if the job is not known. */
  async function poll() {
    const answer = await fetch(location.href, { cache: "no-store" });
    if (answer.status === 401 || answer.status === 403) location.reload();
    failed = !answer.ok && answer.status !== 404;
    if (!failed) {
      const wanted = new DOMParser().parseFromString(await answer.text(), "text/html");
      const found = wanted.getElementById("content");
      /* A page that has what it waited for does not change any more. */
      if (!("poll" in found.dataset)) delete content.dataset.poll;
      show(found.innerHTML);
    }
    return POLL_MS;
  }

  async function forever() {
    for (let pause = FIRST_PAUSE_MS; follows(); ) {
      pause = await follow(pause);
      await new Promise((resume) => setTimeout(resume, pause * (0.5 + Math.random() / 2)));
    }
  }

  document.getElementById("search").hidden = !follows() && content.querySelector("table") === null;
  filter.addEventListener("input", filterRows);
  content.addEventListener("click", copy);
  filterRows();
  offerCopies();
  countDurations();
  setInterval(countDurations, 250);
  forever();
})();
