"use strict";
// Plays only the clips in view: a page of a hundred playing videos would keep a laptop busy.
const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
let playing = !still;
const inView = new Set();
const button = document.getElementById("play");
function update(video) {
  if (playing && inView.has(video)) video.play().catch(() => {});
  else video.pause();
}
const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (entry.isIntersecting) inView.add(entry.target);
    else inView.delete(entry.target);
    update(entry.target);
  }
});
const videos = document.querySelectorAll("video");
videos.forEach((video) => watcher.observe(video));
if (button) {
  button.hidden = false;
  button.textContent = playing ? "Pause clips" : "Play clips";
  button.addEventListener("click", () => {
    playing = !playing;
    button.textContent = playing ? "Pause clips" : "Play clips";
    videos.forEach(update);
  });
}
