"use strict";

/* Keeps the page as the supervisor has it now, and counts between two of its words by this browser's own clock. */
(() => {
  const SILENCE_MS = 15000;
  const FIRST_PAUSE_MS = 200;
  const MOST_PAUSE_MS = 5000;
  const FULL_PAUSE_MS = 30000;

  const content = document.getElementById("content");
  const lost = document.getElementById("lost");
  let said = performance.now();
  let failed = false;

  function span(seconds) {
    const whole = Math.floor(seconds);
    const two = (number) => String(number).padStart(2, "0");
    if (whole < 60) return `${whole} s`;
    if (whole < 3600) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
    if (whole < 86400) return `${Math.floor(whole / 3600)} h ${two(Math.floor((whole % 3600) / 60))} min`;
    return `${Math.floor(whole / 86400)} d ${two(Math.floor((whole % 86400) / 3600))} h`;
  }

  function count() {
    const passed = (performance.now() - said) / 1000;
    for (const each of content.querySelectorAll("[data-left]")) {
      const left = Number(each.dataset.left) - passed;
      put(each, left > 0 ? span(left) : "now");
    }
    for (const each of content.querySelectorAll("[data-ago]")) put(each, span(Number(each.dataset.ago) + passed));
    const silent = performance.now() - said > SILENCE_MS;
    if (lost.hidden === (silent || failed)) lost.hidden = !(silent || failed);
  }

  function put(element, text) {
    if (element.textContent !== text) element.textContent = text;
  }

  /* Changes what differs and leaves the rest, so that focus, selection and what a screen reader reads stay. */
  function become(old, wanted) {
    if (old.nodeType !== wanted.nodeType || old.nodeName !== wanted.nodeName) {
      old.replaceWith(wanted.cloneNode(true));
    } else if (old.nodeType === Node.ELEMENT_NODE) {
      for (const { name } of [...old.attributes]) if (!wanted.hasAttribute(name)) old.removeAttribute(name);
      for (const { name, value } of wanted.attributes) {
        if (old.getAttribute(name) !== value) old.setAttribute(name, value);
      }
      children(old, wanted);
    } else if (old.nodeValue !== wanted.nodeValue) {
      old.nodeValue = wanted.nodeValue;
    }
  }

  function children(old, wanted) {
    const [here, there] = [[...old.childNodes], [...wanted.childNodes]];
    there.forEach((each, place) => {
      if (place < here.length) become(here[place], each);
      else old.appendChild(each.cloneNode(true));
    });
    here.slice(there.length).forEach((each) => each.remove());
  }

  function heard(line) {
    const message = JSON.parse(line);
    failed = message.type === "failed";
    if (message.type === "page") {
      const wanted = document.createElement("template");
      wanted.innerHTML = message.html;
      children(content, wanted.content);
      said = performance.now();
      count();
    }
  }

  async function listen(answer) {
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      lines.forEach(heard);
    }
  }

  /* The pause, in milliseconds, after a stream that ended or never was. */
  async function follow(pause) {
    try {
      const answer = await fetch("status/stream", { cache: "no-store" });
      if (answer.status === 401 || answer.status === 403) location.reload();
      if (answer.status === 429) return FULL_PAUSE_MS;
      if (answer.ok) {
        await listen(answer);
        return FIRST_PAUSE_MS;
      }
    } catch {
      /* It is away: the page says so after a while, and this tries again. */
    }
    return Math.min(pause * 2, MOST_PAUSE_MS);
  }

  async function forever() {
    for (let pause = FIRST_PAUSE_MS; ; ) {
      pause = await follow(pause);
      await new Promise((resume) => setTimeout(resume, pause * (0.5 + Math.random() / 2)));
    }
  }

  count();
  setInterval(count, 250);
  forever();
})();
