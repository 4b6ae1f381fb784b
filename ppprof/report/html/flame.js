"use strict";
// The flame graph of Python and operators: boxes as those of the modules, and a search that marks names.

function drawFlame(figure, found) {
  const icicle = new Icicle(figure, found, { changed: false, onChoose: (at) => showFrame(figure, at) });
  figure.icicle = icicle;
  const mark = () => {
    const text = (figure.searched || "").toLowerCase();
    for (const [at, box] of icicle.boxes) {
      box.classList.toggle("found", text !== "" && found.name[at].toLowerCase().includes(text));
    }
  };
  const draw = icicle.draw.bind(icicle);
  icicle.draw = (places) => { draw(places); mark(); };
  once(figure, () => {
    const label = make("label", { class: "search" });
    const input = searchBox(say("search"));
    input.addEventListener("input", () => { figure.searched = input.value; figure.icicle.arrange(); });
    label.append(input);
    return [label];
  });
  if (!figure.querySelector(".chosen")) figure.append(make("div", { class: "chosen", "aria-live": "polite" }));
  icicle.arrange();
  showFrame(figure, icicle.focus);
  return icicle;
}

// The chosen line or operator: its path, its time and share of a step, and a link to its longest sample.
function showFrame(figure, at) {
  const { icicle } = figure;
  const { found } = icicle;
  const panel = figure.querySelector(".chosen");
  if (at < 0) {
    panel.replaceChildren(make("p", { class: "about" }, say("choose_frame")));
    return;
  }
  const title = make("p", { class: "path" });
  icicle.path(at).forEach((name, depth) => title.append(depth ? " › " : "", make("b", {}, name)));
  title.append(" ", makeButton(say("whole_step"), () => icicle.choose(-1)));
  if (found.href[at]) title.append(" ", make("a", { href: found.href[at] }, say("see")));
  const { time, self } = found.sides.experiment;
  const facts = { time: inTime(time[at]), share: FORMATS.ratio(time[at] / time[0]), self: inTime(self[at]), samples: found.samples[at] };
  panel.replaceChildren(title, make("p", {}, say("frame_times", facts)));
}
