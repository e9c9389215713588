// Shows the slides, each made to fit the screen before it is seen.

const HEIGHT = 720, WIDTH = 1280;

// What is too tall is drawn smaller, in steps, until all of it is in view.
function fit(section) {
  const screen = section.querySelector(".screen");
  for (let size = 100; size >= 40; size -= 5) {
    screen.style.zoom = `${size}%`;
    screen.dataset.size = size;
    const box = screen.getBoundingClientRect();
    if (box.height <= HEIGHT && screen.scrollWidth <= screen.clientWidth + 1) break;
  }
}

async function start() {
  await MathJax.startup.promise;
  await document.fonts.ready;
  const images = [...document.images];
  await Promise.allSettled(images.map((image) => image.decode()));
  document.body.classList.add("measuring");
  document.querySelectorAll(".slides > section > section").forEach(fit);
  document.body.classList.remove("measuring");
  await Reveal.initialize({
    width: WIDTH,
    height: HEIGHT,
    margin: 0,
    center: false,
    hash: true,
    transition: "none",
    slideNumber: "c/t",
    plugins: [RevealNotes],
  });
}

addEventListener("load", start);
