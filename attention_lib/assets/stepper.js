for (const box of document.querySelectorAll(".stepper:not([data-ready])")) {
  box.dataset.ready = "";
  const words = box.dataset, frames = [...box.querySelectorAll("figure")];
  const last = frames.length - 1, texts = frames.map(f => f.querySelector("figcaption").textContent);
  const make = (tag, attributes, text = "") => {
    const node = document.createElement(tag);
    for (const [name, to] of Object.entries(attributes)) node.setAttribute(name, to);
    node.textContent = text;
    return node;
  };
  // The second attribute keeps JupyterLab's own keys away from the controls.
  const bar = make("div", { class: "stepper-bar", "data-lm-suppress-shortcuts": "true" });
  const back = make("button", { type: "button", "aria-label": words.back }, "←");
  const range = make("input", { type: "range", min: 0, max: last, step: 1, "aria-label": words.step });
  const next = make("button", { type: "button", "aria-label": words.next }, "→");
  const play = make("button", { type: "button" }, words.play);
  const count = make("output", {}), say = make("span", { class: "stepper-say", "aria-live": "polite" });
  // Nothing moves by itself for a reader who asks for no motion.
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  bar.append(back, range, next, ...(still ? [] : [play]), count, say);
  box.prepend(bar);

  let at = 0, timer = 0;
  const show = to => {
    at = Math.max(0, Math.min(last, to));
    frames.forEach((frame, i) => frame.classList.toggle("stepper-off", i !== at));
    range.value = at;
    range.setAttribute("aria-valuetext", texts[at]);
    count.textContent = `${at + 1} / ${last + 1}`;
    back.setAttribute("aria-disabled", at === 0);
    next.setAttribute("aria-disabled", at === last);
  };
  const stop = () => {
    clearInterval(timer);
    timer = 0;
    play.textContent = words.play;
  };
  // The slider speaks for itself; after a button the caption is read out.
  const go = (to, aloud = true) => {
    stop();
    show(to);
    if (aloud) say.textContent = texts[at];
  };
  back.onclick = () => go(at - 1);
  next.onclick = () => go(at + 1);
  range.oninput = () => go(+range.value, false);
  play.onclick = () => {
    if (timer) return stop();
    if (at === last) show(0);
    play.textContent = words.pause;
    timer = setInterval(() => {
      show(at + 1);
      if (at === last) stop();
    }, 1200);
  };
  bar.onkeydown = event => {
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: last }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    go(to, event.target !== range);
  };
  show(0);
}
