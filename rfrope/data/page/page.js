"use strict";
// What a page of `rfrope ... --html` does. The numbers are in the element "report"; mean kernels are summed here, at
// whole lags, so that they follow the sliders; the same sums of Python's are what the tests hold them against.
(() => {
  const report = JSON.parse(document.getElementById("report").textContent);
  const COLOURS = ["#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9"]; // Okabe and Ito
  const DASHES = [[], [8, 4], [8, 3, 2, 3], [2, 3]];
  const ALL = 2 ** 18; // lags up to which every one counts
  const SOME = 64; // of a bin, beyond
  const SYNC = 128; // lags between cosines that are taken anew
  const ROUNDED = 1e-12; // what the sums leave unknown
  const style = getComputedStyle(document.documentElement);
  const ink = () => style.getPropertyValue("--ink").trim(), line = () => style.getPropertyValue("--line").trim();
  const digits = (value, n = 4) => (value == null ? "" : String(+value.toPrecision(n)));

  // -- mathematics ---------------------------------------------------------------------------------------------------

  // Gain times the cosines of the terms, and one for each block that stands still, over all of them: lags 0 to n.
  function meanKernel(set, n) {
    const out = new Float64Array(n + 1);
    for (const w of set.terms) {
      const ct = Math.cos(w), st = Math.sin(w);
      for (let from = 0; from <= n; from += SYNC) {
        const end = Math.min(n + 1, from + SYNC);
        let c = Math.cos(from * w), s = Math.sin(from * w);
        for (let m = from; m < end; m++) {
          out[m] += c;
          const next = c * ct - s * st;
          s = s * ct + c * st;
          c = next;
        }
      }
    }
    const blocks = set.terms.length + set.still;
    for (let m = 0; m <= n; m++) out[m] = (set.gain * out[m] + set.still) / blocks;
    return out;
  }

  function meanKernelAt(set, lag) {
    let sum = 0;
    for (const w of set.terms) sum += Math.cos(lag * w);
    return (set.gain * sum + set.still) / (set.terms.length + set.still);
  }

  // Smallest, median and largest value in each bin of lags, and what the text says of all lags, where all are summed.
  function over(set, starts, end, last) {
    const low = [], mid = [], high = [], all = last <= ALL ? meanKernel(set, last) : null;
    starts.forEach((first, i) => {
      const stop = Math.min((i + 1 < starts.length ? starts[i + 1] : end + 1) - 1, last);
      if (first > last) return [low, mid, high].forEach((one) => one.push(null));
      let values;
      if (all) values = all.slice(first, stop + 1);
      else {
        const count = Math.min(stop - first + 1, SOME), step = count > 1 ? (stop - first) / (count - 1) : 0;
        values = Float64Array.from({length: count}, (_, j) => meanKernelAt(set, first + Math.round(j * step)));
      }
      values.sort();
      const half = values.length >> 1;
      low.push(values[0]);
      high.push(values[values.length - 1]);
      mid.push(values.length % 2 ? values[half] : 0.5 * (values[half - 1] + values[half]));
    });
    return {low, mid, high, told: all && told(set, all, last)};
  }

  function told(set, all, last) {
    const found = {half: null, negative: null, lowest: Infinity, at: 0, still: set.still};
    for (let m = 1; m <= last; m++) {
      if (found.half === null && all[m] < 0.5 - ROUNDED) found.half = m;
      if (found.negative === null && all[m] < -ROUNDED) found.negative = m;
      if (all[m] < found.lowest) [found.lowest, found.at] = [all[m], m];
    }
    for (const w of set.terms) if (Math.abs(w) * (last + 1) < 2 * Math.PI) found.still++;
    return found;
  }

  const ladder = (width, base) => Array.from({length: width / 2}, (_, i) => base ** ((-2 * i) / width));

  // Frequencies of a ladder by a scheme; the formulas are those of rfrope.scaling.
  const SCHEMES = {
    default: (g, base) => ladder(g.width, base),
    linear: (g, base, s) => ladder(g.width, base).map((w) => w / s),
    ntk: (g, base, s) => ladder(g.width, base * s ** (g.width / (g.width - 2))),
    yarn: (g, base, s) => {
      const place = (turns) => (g.width * Math.log(g.original / (2 * Math.PI * turns))) / (2 * Math.log(base));
      const [floor, ceil] = g.truncate ? [Math.floor, Math.ceil] : [(x) => x, (x) => x];
      const low = Math.max(floor(place(g.beta_fast)), 0);
      let high = Math.min(ceil(place(g.beta_slow)), g.width - 1);
      if (low === high) high += 0.001;
      return ladder(g.width, base).map((w, i) => {
        const kept = 1 - Math.min(Math.max((i - low) / (high - low), 0), 1);
        return (w / s) * (1 - kept) + w * kept;
      });
    },
    llama3: (g, base, s) => ladder(g.width, base).map((w) => {
      const t = (g.original * w) / (2 * Math.PI);
      if (g.low_freq_factor === g.high_freq_factor) return t < g.low_freq_factor ? w / s : w;
      const kept = Math.min(Math.max((t - g.low_freq_factor) / (g.high_freq_factor - g.low_freq_factor), 0), 1);
      return ((1 - kept) * w) / s + kept * w;
    }),
  };

  // -- elements ------------------------------------------------------------------------------------------------------

  function element(tag, text, parent, properties = {}) {
    const made = Object.assign(document.createElement(tag), properties);
    if (text) made.textContent = text;
    if (parent) parent.append(made);
    return made;
  }

  // A number beside a slider on a logarithmic scale; both call `changed`.
  function slider(parent, name, low, high, start, whole, changed) {
    const label = element("label", name, parent);
    const range = element("input", "", label, {type: "range", min: 0, max: 1000, step: 1});
    const number = element("input", "", label, {type: "number", min: low, max: high, step: "any", name});
    for (const input of [range, number]) input.setAttribute("aria-label", name);
    const ratio = Math.log(high / low);
    const control = {
      value: start,
      set(value) {
        control.value = Math.min(Math.max(whole ? Math.round(value) : value, low), high);
        number.value = control.value;
        range.value = Math.round((1000 * Math.log(control.value / low)) / ratio);
        range.setAttribute("aria-valuetext", control.value); // and not the place on the scale
      },
    };
    control.set(start);
    // what is no number leaves the value as it was, what is out of range goes to the end
    number.addEventListener("change", () => { control.set(number.value === "" ? control.value : +number.value); changed(); });
    range.addEventListener("input", () => {
      const value = low * Math.exp((ratio * range.value) / 1000);
      control.set(whole ? value : +value.toPrecision(4));
      changed();
    });
    return control;
  }

  function chooser(parent, name, choices, start, changed) {
    const select = element("select", "", element("label", name, parent), {name});
    for (const [value, text] of choices) element("option", text, select, {value});
    select.value = start;
    select.addEventListener("change", changed);
    return select;
  }

  function table(parent, rows, left) {
    const scroll = element("div", "", parent, {className: "scroll"}), made = element("table", "", scroll);
    rows.forEach((row, number) => {
      const line = element("tr", "", made);
      row.forEach((cell, i) => {
        const one = element(number ? "td" : "th", cell, line);
        if (left.includes(i)) one.className = "left";
      });
    });
    return scroll;
  }

  // Names of lines with the values under the pointer; a click hides a line.
  function legend(parent, lines, toggled) {
    const list = element("ul", "", parent, {className: "legend"});
    const buttons = lines.map((one, number) => {
      const button = element("button", "", element("li", "", list), {type: "button"});
      button.innerHTML = `<svg width="28" height="8" aria-hidden="true"><line x1="0" y1="4" x2="28" y2="4"
        stroke="${one.colour}" stroke-width="3" stroke-dasharray="${one.dash.join(" ")}"/></svg><span></span>`;
      button.setAttribute("aria-pressed", "true");
      button.addEventListener("click", () => {
        const on = button.getAttribute("aria-pressed") !== "true";
        button.setAttribute("aria-pressed", on);
        toggled(number, on);
      });
      return button.querySelector("span");
    });
    return (number, text) => {
      buttons[number].textContent = text;
      buttons[number].closest("li").hidden = !text;
    };
  }

  const look = (number) => ({colour: COLOURS[number % 6], dash: DASHES[Math.floor(number / 6) % 4]});
  const charts = [];

  function chart(parent, name, options, data) {
    const box = element("div", "", parent, {className: "chart"});
    box.setAttribute("role", "img");
    box.setAttribute("aria-label", name);
    const axis = {stroke: ink, grid: {stroke: line, width: 0.5}, ticks: {stroke: line, width: 0.5}};
    options.axes.forEach((one) => Object.assign(one, axis, one));
    const size = () => ({width: Math.max(box.clientWidth, 200), height: 380});
    const made = new uPlot({...size(), legend: {show: false}, cursor: {drag: {x: false, y: false}}, ...options}, data, box);
    charts.push(() => made.setSize(size()));
    return made;
  }

  addEventListener("resize", () => charts.forEach((resize) => resize()));
  const short = (u, splits) => splits.map((v) => (v == null ? "" : v >= 1e6 ? digits(v / 1e6) + "M" : digits(v)));

  // -- mean kernels and wavelengths, with their sliders --------------------------------------------------------------

  function curves(parent, given) {
    const controls = element("div", "", parent, {className: "controls"});
    const state = {context: slider(controls, "context", 2, given.most, given.context, true, () => draw())};
    const changed = () => { state.tried = true; draw(); };
    const of = given.ladder;
    const several = given.groups && given.groups.length > 1;
    if (several) state.group = chooser(controls, given.group_name, given.groups.map((g, i) => [i, g]), given.group, () => draw());
    if (of) state.base = slider(controls, "base", Math.min(100, of.base), Math.max(1e8, of.base), of.base, false, changed);
    if (of) state.scheme = chooser(controls, "scheme", Object.keys(SCHEMES).map((s) => [s, s]), of.scheme, changed);
    state.factor = slider(controls, "factor", 1, 64, of ? of.factor : 1, false, changed);
    const reset = element("button", "reset", controls, {type: "button"});
    reset.addEventListener("click", () => {
      state.tried = false;
      state.context.set(given.context);
      if (of) { state.base.set(of.base); state.scheme.value = of.scheme; }
      state.factor.set(of ? of.factor : 1);
      draw();
    });

    const shown = () => given.sets.filter((s) => !several || s.group === +state.group.value);
    // What the sliders make: of the ladder by the scheme, or else the first set with all wavelengths times the factor.
    function trial() {
      const first = shown()[several ? 0 : given.stretched];
      if (!state.tried) return null;
      const terms = of ? SCHEMES[state.scheme.value](of, state.base.value, state.factor.value)
        : first.terms.map((w) => w / state.factor.value);
      return {label: "as the sliders say", terms, still: of ? of.still : first.still, gain: 1, last: given.context - 1};
    }
    const slots = Math.max(...(several ? given.groups : [0]).map((_, i) => given.sets.filter((s) => !several || s.group === i).length));
    const names = Array.from({length: slots + 1}, (_, i) => look(i));
    if (given.phi) names.push({colour: ink(), dash: []});

    element("p", given.caption, parent, {className: "note"});
    const series = [{}], bands = [];
    for (const one of names.slice(0, slots + 1)) {
      const at = series.length;
      series.push({stroke: one.colour, dash: one.dash, width: 1.6, points: {show: false}});
      series.push({stroke: "transparent", points: {show: false}}, {stroke: "transparent", points: {show: false}});
      bands.push({series: [at + 2, at + 1], fill: one.colour + "38"});
    }
    const phiAt = series.length;
    if (given.phi) {
      series.push({stroke: ink, width: 1.6, points: {show: false}});
      series.push({stroke: "transparent", points: {show: false}}, {stroke: "transparent", points: {show: false}});
      bands.push({series: [phiAt + 2, phiAt + 1], fill: "#7f7f7f40"});
    }
    const where = element("p", "", parent, {className: "note"});
    let ready = false;
    const kernelPlot = chart(parent, given.title, {
      scales: {x: {time: false, distr: 3, range: () => [1, Math.max(state.context.value - 1, 2)]}},
      axes: [{label: given.xlabel, values: short}, {label: given.ylabel, size: 64}],
      series, bands, hooks: {setCursor: [() => read()]},
    }, [given.starts, ...series.slice(1).map(() => given.starts.map(() => null))]);
    const name = legend(parent, names, (number, on) => {
      for (let i = 0; i < 3; i++) kernelPlot.setSeries(1 + 3 * number + i, {show: on});
      if (number <= slots && waves) waves.setSeries(number + 1, {show: on});
    });
    const readout = element("div", "", parent);

    let waves = null;
    if (given.waves) {
      element("h2", "Wavelengths of the blocks", parent);
      element("p", "A block above the context, the dashed line, completes no turn in it.", parent, {className: "note"});
      waves = chart(parent, "wavelengths of the blocks", {
        scales: {x: {time: false}, y: {distr: 3}},
        axes: [{label: "block"}, {label: "wavelength (positions)", size: 72, values: short}],
        series: [{}, ...names.slice(0, slots + 1).map((one) => ({stroke: one.colour, dash: one.dash, width: 1.4, points: {size: 4}})),
          {stroke: ink, dash: [6, 3], width: 1, points: {show: false}}],
      }, [[0], ...Array(slots + 2).fill([null])]);
    }

    const drawn = {};
    function draw() {
      const context = state.context.value, sets = shown(), tried = trial();
      const rows = [["", "first < 1/2", "first < 0", "lowest", "at", "never turn"]];
      const data = [given.starts.map((first, i) => drawnAt(i))];
      drawn.sets = {};
      for (let i = 0; i <= slots; i++) {
        const set = i < slots ? sets[i] : tried;
        if (!set) { data.push(...Array(3).fill(given.starts.map(() => null))); continue; }
        const last = set.last === given.context - 1 ? context - 1 : Math.min(set.last, context - 1);
        const found = over(set, given.starts, given.most - 1, last);
        drawn.sets[set.label] = found;
        data.push(found.mid, found.low, found.high);
        const at = found.told;
        rows.push([set.label, ...(at ? [at.half ?? "never", at.negative ?? "never", at.lowest.toFixed(3), at.at, at.still]
          : ["", "", "", "", ""]).map(String)]);
      }
      if (given.phi) {
        const phi = given.phi[several ? +state.group.value : 0];
        data.push(phi.values, phi.values.map((v, i) => v - phi.stderr[i]), phi.values.map((v, i) => v + phi.stderr[i]));
      }
      kernelPlot.setData(data);
      readout.replaceChildren();
      table(readout, rows, [0]);
      if (context - 1 > ALL)
        element("p", `Beyond ${ALL} positions a sample of the lags is summed, and no first lag is given.`, readout, {className: "note"});
      if (waves) {
        const all = [...Array.from({length: slots}, (_, i) => sets[i]), tried];
        const most = Math.max(...all.filter(Boolean).map((s) => s.terms.length));
        const index = Array.from({length: most}, (_, i) => i);
        waves.setData([index, ...all.map((s) => index.map((i) => (s && s.terms[i] ? (2 * Math.PI) / Math.abs(s.terms[i]) : null))),
          index.map(() => context)]);
      }
      Object.assign(drawn, {context, tried: tried && tried.terms, lags: given.starts});
      read();
    }
    // the lag at which a bin is drawn: its middle
    function drawnAt(i) {
      const stop = (i + 1 < given.starts.length ? given.starts[i + 1] : given.most) - 1;
      return (given.starts[i] + stop) >> 1;
    }
    function read() {
      if (!ready) return;
      const i = kernelPlot.cursor.idx, sets = shown(), labels = [...Array.from({length: slots}, (_, j) => sets[j] && sets[j].label)];
      labels.push(state.tried ? "as the sliders say" : "");
      labels.forEach((label, j) => {
        const [mid, low, high] = [0, 1, 2].map((part) => (i == null ? null : kernelPlot.data[1 + 3 * j + part][i]));
        const range = mid !== null && low !== high ? ` (${low.toFixed(4)} to ${high.toFixed(4)})` : "";
        name(j, label ? label + (mid === null ? "" : `: ${mid.toFixed(4)}${range}`) : "");
      });
      if (given.phi) {
        const v = i == null ? null : kernelPlot.data[phiAt][i], low = i == null ? null : kernelPlot.data[phiAt + 1][i];
        name(slots + 1, "Φ" + (v == null ? "" : `: ${v.toFixed(4)} ± ${(v - low).toFixed(4)}, one standard deviation of independent draws`));
      }
      if (i == null) where.textContent = "Point at the figure to read its values.";
      else {
        const stop = (i + 1 < given.starts.length ? given.starts[i + 1] : given.most) - 1;
        where.textContent = stop > given.starts[i] ? `lags ${given.starts[i]} to ${stop}: median (smallest to largest)` : `lag ${stop}`;
      }
    }
    ready = true;
    draw();
    return drawn;
  }

  // -- points in groups, between two bounds --------------------------------------------------------------------------

  function points(parent, given) {
    const controls = element("div", "", parent, {className: "controls"});
    const choice = chooser(controls, "kernel", given.results.map((one, i) => [i, one.label]), given.start, () => draw());
    element("p", given.caption, parent, {className: "note"});
    let ready = false;
    const where = element("p", "", parent, {className: "note"});
    const series = given.quantities.map((quantity, i) => ({stroke: COLOURS[i % 6], fill: COLOURS[i % 6], width: 0, paths: () => null,
      points: {show: true, size: 6, fill: COLOURS[i % 6]}}));
    const bound = {stroke: ink, dash: [6, 3], width: 1, points: {show: false}};
    const made = chart(parent, given.title, {
      scales: {x: {time: false}},
      axes: [{label: given.xlabel, values: (u, splits) => splits.map(() => "")}, {label: given.ylabel, size: 56}],
      series: [{}, ...series, bound, bound], hooks: {setCursor: [() => read()]},
    }, [[0], ...Array(given.quantities.length + 2).fill([null])]);
    const name = legend(parent, given.quantities.map((_, i) => ({colour: COLOURS[i % 6], dash: []})),
      (number, on) => made.setSeries(number + 1, {show: on}));
    given.quantities.forEach((quantity, i) => name(i, quantity));
    const drawn = {};
    function draw() {
      const one = given.results[+choice.value], x = one.rows.map((_, i) => i);
      const data = given.quantities.map((quantity) => one.rows.map((row) => (row[0] === quantity ? row[3] : null)));
      made.setData([x, ...data, x.map(() => one.bound), x.map(() => -one.bound)]);
      Object.assign(drawn, {label: one.label, z: one.rows.map((row) => row[3]), bound: one.bound});
      read();
    }
    function read() {
      if (!ready) return;
      const i = made.cursor.idx, one = given.results[+choice.value];
      where.textContent = i == null || !one.rows[i] ? "Point at the figure to read its values."
        : `${one.rows[i][0]}, lag ${one.rows[i][1]}${one.rows[i][2] == null ? "" : `, pair ${one.rows[i][2]}`}: z ${digits(one.rows[i][3], 3)}, `
          + `closed form ${digits(one.rows[i][4], 6)}, estimate ${digits(one.rows[i][5], 6)} ± ${digits(one.rows[i][6], 2)}`;
    }
    ready = true;
    draw();
    return drawn;
  }

  // -- the page ------------------------------------------------------------------------------------------------------

  function copyable(parent, text) {
    const box = element("div", "", parent, {className: "copyable"}), pre = element("pre", text, box);
    const button = element("button", "copy", box, {type: "button"});
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(text);
      } catch {
        getSelection().selectAllChildren(pre); // a browser that does not let the page copy
        document.execCommand("copy");
      }
      button.textContent = "copied";
      setTimeout(() => { button.textContent = "copy"; }, 1500);
    });
  }

  const kinds = {curves, points, table: (parent, one) => table(parent, one.rows, one.left),
    words: (parent, one) => one.paragraphs.forEach((text) => element("p", text, parent)), copyable: (parent, one) => copyable(parent, one.text)};
  const body = document.getElementById("body"), drawn = [];
  for (const part of report.parts) {
    const section = element("section", "", body);
    if (part.title) element("h2", part.title, section);
    if (part.note) element("p", part.note, section, {className: "note"});
    drawn.push(kinds[part.kind](section, part));
  }
  window.rfrope = {report, drawn}; // what is drawn, for the console and for tests
})();
