// Small repairs that need a running page.

// Opened from disk, a page may not read other pages, so results come without excerpts.
if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;

// An equation that scrolls can be reached with the keyboard.
const equations = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const box = target.querySelector("mjx-container");
    if (box) box.tabIndex = box.scrollWidth > box.clientWidth ? 0 : -1;
  }
});
document.querySelectorAll("div.math").forEach((box) => equations.observe(box));

// The theme makes code that scrolls reachable, but looks only when the window changes.
document.addEventListener("toggle", () => dispatchEvent(new Event("resize")), true);

// On paper everything is open.
addEventListener("beforeprint", () => {
  document.querySelectorAll("details").forEach((box) => (box.open = true));
});
