"use strict";
// The flame graph of Python and operators: boxes as those of the modules, and a search that marks names.

function drawFlame(figure, found) {
  const icicle = new Icicle(figure, found, { changed: "status" in found, onChoose: (at) => showFrame(figure, at) });
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
  icicle.arrange();
  showFrame(figure, icicle.focus);
  return icicle;
}

// The time of the chosen line or operator, and its share of a step.
function showFrame(figure, at) {
  showChosen(figure, at, "choose_frame", () => {
    if (figure.icicle.changed) return numbersOf(figure.icicle, at);
    const { samples, sides } = figure.icicle.found;
    const { time, self } = sides.experiment;
    const facts = { time: inTime(time[at]), share: FORMATS.ratio(time[at] / time[0]), self: inTime(self[at]), samples: samples[at] };
    return make("p", {}, say("frame_times", facts));
  });
}
