"use strict";
// Draws a page of `rfrope ... --html`. Python has computed all numbers, which are in the element "report".
(() => {
  const report = JSON.parse(document.getElementById("report").textContent);
    const DASHES = [[], [8, 4], [8, 3, 2, 3], [2, 3]];
  const style = getComputedStyle(document.documentElement);
  const held = (name) => () => style.getPropertyValue(name).trim(); // as the page is by then, light or dark
  const ink = held("--ink"), line = held("--line");
  const COLOURS = [0, 1, 2, 3, 4, 5].map((i) => held(`--line-${i}`)); // Okabe and Ito; lighter on a dark page
  const digits = (value, n = 4) => (value == null ? "" : String(+value.toPrecision(n)));

  // -- elements ------------------------------------------------------------------------------------------------------

  function element(tag, text, parent, properties = {}) {
    const made = Object.assign(document.createElement(tag), properties);
    if (text) made.textContent = text;
    if (parent) parent.append(made);
    return made;
  }

  // A slider over some values, which it shows.
  function slider(parent, name, values, start, changed) {
    const label = element("label", name, parent);
    const range = element("input", "", label, {type: "range", min: 0, step: 1, name});
    const shown = element("output", "", label);
    range.setAttribute("aria-label", name);
    const control = {
      label,
      index: start,
      set(index) {
        control.index = range.value = index;
        shown.textContent = control.values[index];
        range.setAttribute("aria-valuetext", control.values[index]); // and not its number
      },
      offer(choices, index) {
        control.values = choices;
        range.max = choices.length - 1;
        control.set(index);
      },
    };
    control.offer(values, start);
    range.addEventListener("input", () => { control.set(+range.value); changed(); });
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
    const scroll = element("div", "", parent, {className: "scroll", tabIndex: 0}), made = element("table", "", scroll);
    scroll.setAttribute("role", "region"); // which the keyboard can scroll
    scroll.setAttribute("aria-label", "table: " + rows[0].filter(Boolean).join(", "));
    rows.forEach((row, number) => {
      const line = element("tr", "", made);
      row.forEach((cell, i) => {
        const one = element(number ? "td" : "th", cell, line);
        if (left.includes(i)) one.className = "left";
        if (!number) one.scope = "col";
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
        style="stroke: var(${one.named})" stroke-width="3" stroke-dasharray="${one.dash.join(" ")}"/></svg><span></span>`;
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

  const look = (number) => ({colour: COLOURS[number % 6], named: `--line-${number % 6}`, dash: DASHES[Math.floor(number / 6) % 4]});
  const charts = [];

  function chart(parent, name, options, data) {
    const box = element("div", "", parent, {className: "chart", tabIndex: 0});
    box.setAttribute("role", "slider"); // arrows move along the axis, and what the lines have there is read out
    box.setAttribute("aria-label", name + ", figure");
    box.setAttribute("aria-valuenow", 0);
    box.setAttribute("aria-valuetext", "use the arrow keys to read the figure");
    const axis = {stroke: ink, grid: {stroke: line, width: 0.5}, ticks: {stroke: line, width: 0.5}};
    options.axes.forEach((one) => Object.assign(one, axis, one));
    const size = () => ({width: Math.max(box.clientWidth, 200), height: 380});
    const made = new uPlot({...size(), legend: {show: false}, cursor: {drag: {x: false, y: false}}, ...options}, data, box);
    charts.push(() => made.setSize(size()));
    box.addEventListener("keydown", (event) => {
      const x = made.data[0], low = made.scales.x.min, high = made.scales.x.max, now = made.cursor.idx;
      const seen = x.flatMap((value, i) => (value >= low && value <= high ? [i] : [])), at = seen.indexOf(now);
      const step = {ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 20, PageDown: -20}[event.key];
      const next = event.key === "Home" ? 0 : event.key === "End" ? seen.length - 1 : step && (at < 0 ? 0 : at + step);
      if (next === undefined || !seen.length) return;
      event.preventDefault();
      const i = seen[Math.min(Math.max(next, 0), seen.length - 1)];
      made.setCursor({left: made.valToPos(x[i], "x"), top: 10});
      box.setAttribute("aria-valuenow", x[i]);
      box.setAttribute("aria-valuetext", [...parent.querySelectorAll(".where, .legend li:not([hidden])")].map((one) => one.textContent).join("; "));
    });
    return made;
  }

  addEventListener("resize", () => charts.forEach((resize) => resize()));
  const short = (u, splits) => splits.map((v) => (v == null ? "" : v >= 1e6 ? digits(v / 1e6) + "M" : digits(v)));

  // -- mean kernels and wavelengths, with their choices --------------------------------------------------------------

  function curves(parent, given) {
    const controls = element("div", "", parent, {className: "controls"});
    const several = given.groups.length > 1, any = given.others.length > 0;
    const context = slider(controls, "context", given.contexts, given.start, () => draw());
    const group = several && chooser(controls, "head", given.groups.map((name, i) => [i, name]), given.group, () => draw());
    const beside = any && chooser(controls, "one more line", [["", "none"], ...given.others.map((one, i) => [i, one.name])], "", () => {
      offer();
      draw();
    });
    const value = any && slider(controls, "value", [""], 0, () => draw());
    function offer() {
      const other = given.others[beside.value];
      value.label.hidden = !other;
      value.offer(other ? other.sets.map((one) => one.label) : [""], 0);
    }
    if (any) offer();
    element("button", "reset", controls, {type: "button"}).addEventListener("click", () => {
      context.set(given.start);
      if (any) { beside.value = ""; offer(); }
      draw();
    });

    const ofGroup = (number) => given.sets.filter((one) => !several || one.group === number);
    const slots = Math.max(...(several ? given.groups : [0]).map((_, i) => ofGroup(i).length));
    // the lines in the order of their colours: those of the command, the one more, and the kernel
    function lines() {
      const sets = ofGroup(several ? +group.value : 0);
      const own = Array.from({length: slots}, (_, i) => sets[i] || null);
      const other = any && given.others[beside.value];
      return [...own, other ? other.sets[value.index] : null];
    }
    const phi = () => given.phi[several ? +group.value : 0];

    const names = Array.from({length: slots + 1}, (_, i) => look(i));
    if (phi()) names.push({colour: ink, named: "--ink", dash: []});
    element("p", given.caption, parent, {className: "note"});
    const series = [{}], bands = [];
    names.forEach((one, i) => {
      const at = series.length, isPhi = i > slots, hidden = {stroke: "transparent", points: {show: false}};
      series.push({stroke: isPhi ? ink : one.colour, dash: one.dash, width: 1.6, points: {show: false}}, hidden, {...hidden});
      bands.push({series: [at + 2, at + 1], fill: isPhi ? "#7f7f7f40" : () => one.colour() + "38"});
    });
    const where = element("p", "", parent, {className: "note where"});
    const middles = given.starts.map((first, i) => (first + given.ends[i]) >> 1);
    let ready = false;
    const kernelPlot = chart(parent, given.title, {
      scales: {x: {time: false, distr: 3, range: () => [1, Math.max(given.contexts[context.index] - 1, 2)]}},
      axes: [{label: given.xlabel, values: short}, {label: given.ylabel, size: 64}],
      series, bands, hooks: {setCursor: [() => read()]},
    }, [middles, ...series.slice(1).map(() => middles.map(() => null))]);
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
    const filled = (values) => middles.map((_, i) => values[i] ?? null); // a line may end before the figure
    function draw() {
      const shown = lines(), size = given.contexts[context.index];
      const all = phi() ? [...shown, phi()] : shown;
      kernelPlot.setData([middles, ...all.flatMap((one) => ["mid", "low", "high"].map((part) => filled(one ? one[part] : [])))]);
      const rows = shown.filter(Boolean).map((one) => [one.label, ...(one.rows[context.index] || ["", "", "", "", ""])]);
      readout.replaceChildren();
      table(readout, [["", "first < 1/2", "first < 0", "lowest", "at", "never turn"], ...rows], [0]);
      if (shown[0] && !shown[0].rows[context.index])
        element("p", "At this length a sample of the lags is summed, and no first lag is given.", readout, {className: "note"});
      if (waves) {
        const index = Array.from({length: Math.max(...shown.filter(Boolean).map((one) => one.wavelengths.length))}, (_, i) => i);
        waves.setData([index, ...shown.map((one) => index.map((i) => (one ? one.wavelengths[i] ?? null : null))), index.map(() => size)]);
      }
      Object.assign(drawn, {context: size, rows, sets: shown.filter(Boolean)});
      read();
    }
    function read() {
      if (!ready) return;
      const i = kernelPlot.cursor.idx, at = (number, part) => (i == null ? null : kernelPlot.data[1 + 3 * number + part][i]);
      lines().forEach((one, number) => {
        const [mid, low, high] = [0, 1, 2].map((part) => at(number, part));
        const range = mid !== null && low !== high ? ` (${low.toFixed(4)} to ${high.toFixed(4)})` : "";
        name(number, one ? one.label + (mid === null ? "" : `: ${mid.toFixed(4)}${range}`) : "");
      });
      if (phi()) {
        const [mid, low] = [at(slots + 1, 0), at(slots + 1, 1)];
        name(slots + 1, "Φ" + (mid === null ? "" : `: ${mid.toFixed(4)} ± ${(mid - low).toFixed(4)}, one standard deviation of independent draws`));
      }
      const [first, end] = i == null ? [] : [given.starts[i], given.ends[i]];
      where.textContent = i == null ? "Point at the figure to read its values."
        : end > first ? `lags ${first} to ${end}: median (smallest to largest)` : `lag ${end}`;
    }
    ready = true;
    draw();
    return drawn;
  }

  // -- lines with bands, of one group at a time -----------------------------------------------------------------------

  function lines(parent, given) {
    const controls = element("div", "", parent, {className: "controls"});
    const group = chooser(controls, "head", given.groups.map((name, i) => [i, name]), given.group, () => draw());
    element("p", given.caption, parent, {className: "note"});
    const where = element("p", "", parent, {className: "note where"});
    const names = given.sets.map((_, i) => look(i)), series = [{}], bands = [];
    names.forEach((one) => {
      const at = series.length, hidden = {stroke: "transparent", points: {show: false}};
      series.push({stroke: one.colour, dash: one.dash, width: 1.6, points: {show: false}}, hidden, {...hidden});
      bands.push({series: [at + 2, at + 1], fill: () => one.colour() + "38"});
    });
    let ready = false;
    const made = chart(parent, given.title, {
      scales: {x: {time: false, distr: given.squeezed ? 4 : 1}},
      axes: [{label: given.xlabel, values: short}, {label: given.ylabel, size: 64}],
      series, bands, hooks: {setCursor: [() => read()]},
    }, [given.x, ...series.slice(1).map(() => given.x.map(() => null))]);
    const name = legend(parent, names, (number, on) => {
      for (let i = 0; i < 3; i++) made.setSeries(1 + 3 * number + i, {show: on});
    });
    const drawn = {};
    function draw() {
      const at = +group.value, shown = given.sets.map((one) => ["mid", "low", "high"].map((part) => one[part][at]));
      made.setData([given.x, ...shown.flat()]);
      Object.assign(drawn, {group: given.groups[at], lines: shown.map((one) => one[0])});
      read();
    }
    function read() {
      if (!ready) return;
      const i = made.cursor.idx, at = (number, part) => (i == null ? null : made.data[1 + 3 * number + part][i]);
      given.sets.forEach((one, number) => {
        const [mid, low, high] = [0, 1, 2].map((part) => at(number, part));
        name(number, one.label + (mid == null ? "" : `: ${digits(mid)} (${digits(low, 3)} to ${digits(high, 3)})`));
      });
      where.textContent = i == null ? "Point at the figure to read its values." : `${given.xlabel} ${given.x[i]}`;
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
    const where = element("p", "", parent, {className: "note where"});
    const series = given.quantities.map((quantity, i) => ({stroke: COLOURS[i % 6], fill: COLOURS[i % 6], width: 0, paths: () => null,
      points: {show: true, size: 6, fill: COLOURS[i % 6]}}));
    const bound = {stroke: ink, dash: [6, 3], width: 1, points: {show: false}};
    const made = chart(parent, given.title, {
      scales: {x: {time: false}},
      axes: [{label: given.xlabel, values: (u, splits) => splits.map(() => "")}, {label: given.ylabel, size: 56}],
      series: [{}, ...series, bound, bound], hooks: {setCursor: [() => read()]},
    }, [[0], ...Array(given.quantities.length + 2).fill([null])]);
    const name = legend(parent, given.quantities.map((_, i) => ({...look(i), dash: []})),
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

  // The first sentence of all is the verdict, which stands above what is shown, and is read out when it changes.
  function words(parent, part) {
    const [verdict, ...others] = part.paragraphs, place = document.getElementById("verdict");
    if (!parent.previousSibling) place.textContent = verdict;
    else others.unshift(verdict);
    others.forEach((text) => element("p", text, parent));
  }

  const kinds = {curves, lines, points, words, table: (parent, one) => table(parent, one.rows, one.left),
    copyable: (parent, one) => copyable(parent, one.text)};
  const body = document.getElementById("body"), drawn = [];
  function show(choice) {
    body.replaceChildren();
    charts.length = drawn.length = 0;
    for (const part of choice.parts) {
      const section = element("section", "", body);
      if (part.title) element("h2", part.title, section);
      if (part.note) element("p", part.note, section, {className: "note"});
      drawn.push(kinds[part.kind](section, part));
    }
  }
  if (report.choices.length > 1) {
    const set = element("fieldset", "", document.getElementById("choices"));
    element("legend", "Look at", set);
    report.choices.forEach((one, i) => {
      const label = element("label", "", set), radio = element("input", "", label, {type: "radio", name: "choice", checked: !i});
      label.append(one.name);
      radio.addEventListener("change", () => show(one));
    });
  }
  show(report.choices[0]);
  window.rfrope = {report, drawn}; // what is drawn, for the console and for tests
})();
