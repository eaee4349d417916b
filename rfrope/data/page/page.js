"use strict";
// Draws a page of `rfrope ... --html`. Python has computed all numbers and texts, which are in the element "report";
// this draws those that the choices on the page select.
(() => {
  const report = JSON.parse(document.getElementById("report").textContent);
  const DASHES = [[], [8, 4], [8, 3, 2, 3], [2, 3]];
  const style = getComputedStyle(document.documentElement);
  const held = (name) => () => style.getPropertyValue(name).trim(); // as the page is by then, light or dark
  const digits = (value, n = 4) => (value == null ? "" : String(+value.toPrecision(n)));
  const short = (u, splits) => splits.map((v) => (v == null ? "" : v >= 1e6 ? digits(v / 1e6) + "M" : digits(v)));
  const SCALES = {log: 3};
  let charts = []; // what is drawn

  function element(tag, text, parent, properties = {}) {
    const made = Object.assign(document.createElement(tag), properties);
    if (text) made.textContent = text;
    if (parent) parent.append(made);
    return made;
  }

  // A list or a slider over some values; what is chosen is their number.
  function control(parent, given, chosen, changed) {
    const label = element("label", given.name, parent), last = given.values.length - 1;
    const made = given.slider ? element("input", "", label, {type: "range", min: 0, step: 1, max: last})
      : element("select", "", label);
    made.name = given.name;
    made.setAttribute("aria-label", given.name);
    if (!given.slider) given.values.forEach((text, value) => element("option", text, made, {value}));
    made.value = chosen[given.name] = given.start;
    const shown = given.slider && element("output", given.values[given.start], label);
    made.addEventListener("input", () => {
      const text = given.values[chosen[given.name] = +made.value];
      if (shown) shown.textContent = text;
      made.setAttribute("aria-valuetext", text); // and not its number
      changed();
    });
    return label;
  }

  function table(parent, part, holds) {
    const rows = part.rows.filter((_, i) => !part.when_rows || holds(part.when_rows[i]));
    const scroll = element("div", "", parent, {className: "scroll", tabIndex: 0}), made = element("table", "", scroll);
    scroll.setAttribute("role", "region"); // which the keyboard can scroll
    scroll.setAttribute("aria-label", "table: " + rows[0].filter(Boolean).join(", "));
    rows.forEach((row, number) => {
      const line = element("tr", "", made), isHead = part.head !== false && !number;
      row.forEach((cell, i) => {
        const one = element(isHead || (part.head === false && !i) ? "th" : "td", cell, line);
        if (part.head === false || !part.left || part.left.includes(i)) one.className = "left";
        if (isHead) one.scope = "col";
      });
    });
  }

  // A line of a figure for uPlot, with its band: its series, the values of each, and how it looks.
  function curve(one, x) {
    const ink = one.colour < 0, named = ink ? "--ink" : `--line-${one.colour % 6}`, colour = held(named);
    const dash = "level" in one ? [6, 3] : ink ? [] : DASHES[Math.floor(one.colour / 6) % 4];
    const filled = (values) => x.map((_, i) => values[i] ?? null); // a line may end before the figure
    const values = ["mid", "low", "high"].filter((name) => one[name]).map((name) => filled(one[name]));
    const drawn = one.points ? {stroke: colour, fill: colour, width: 0, paths: () => null, points: {show: true, size: 6, fill: colour}}
      : {stroke: colour, dash, width: 1.6, points: {show: false}};
    const hidden = {stroke: "transparent", points: {show: false}};
    const series = [drawn, {...hidden}, {...hidden}].slice(0, values.length || 1);
    return {one, named, dash, colour, series, values: values.length ? values : [x.map(() => one.level)]};
  }

  // Names of lines with the values under the pointer; a click hides a line.
  function legend(parent, curves, toggled) {
    const list = element("ul", "", parent, {className: "legend"});
    return curves.map((curve) => {
      const button = element("button", "", element("li", "", list), {type: "button"});
      button.innerHTML = `<svg width="28" height="8" aria-hidden="true"><line x1="0" y1="4" x2="28" y2="4"
        style="stroke: var(${curve.named})" stroke-width="3" stroke-dasharray="${curve.dash.join(" ")}"/></svg><span></span>`;
      button.setAttribute("aria-pressed", "true");
      button.addEventListener("click", () => {
        const on = button.getAttribute("aria-pressed") !== "true";
        button.setAttribute("aria-pressed", on);
        toggled(curve, on);
      });
      return button.querySelector("span");
    });
  }

  function chart(parent, part, holds, chosen) {
    const where = element("p", "", parent, {className: "note where"});
    const box = element("div", "", parent, {className: "chart", tabIndex: 0});
    box.setAttribute("role", "slider"); // arrows move along the axis, and what the lines have there is read out
    box.setAttribute("aria-label", part.label + ", figure");
    box.setAttribute("aria-valuenow", 0);
    box.setAttribute("aria-valuetext", "use the arrow keys to read the figure");
    const curves = part.lines.filter((one) => holds(one.when)).map((one) => curve(one, part.x));
    const series = [{}], bands = [], data = [part.x];
    for (const one of curves) {
      one.first = series.length;
      if (one.values.length > 1) bands.push({series: [one.first + 2, one.first + 1], fill: () => one.colour() + "38"});
      series.push(...one.series);
      data.push(...one.values);
    }
    let names = [];
    const reach = part.reach && part.reach.values[chosen[part.reach.by]];
    const axis = {stroke: held("--ink"), grid: {stroke: held("--line"), width: 0.5}, ticks: {stroke: held("--line"), width: 0.5}};
    const size = () => ({width: Math.max(box.clientWidth, 200), height: 380});
    const made = new uPlot({
      ...size(), legend: {show: false}, cursor: {drag: {x: false, y: false}}, series, bands, hooks: {setCursor: [read]},
      scales: {x: {time: false, distr: SCALES[part.x_scale] || 1, ...(reach && {range: () => [1, reach]})},
        y: {distr: SCALES[part.y_scale] || 1}},
      axes: [{...axis, label: part.xlabel, values: short}, {...axis, label: part.ylabel, size: 72, values: short}],
    }, data, box);
    names = legend(parent, curves, (one, on) => one.series.forEach((_, i) => made.setSeries(one.first + i, {show: on})));
    function read() {
      if (!names.length) return;
      const i = made.cursor.idx;
      where.textContent = i == null ? "Point at the figure to read its values." : part.names[i] ?? `${part.xlabel} ${part.x[i]}`;
      curves.forEach(({one, values}, number) => {
        const [mid, low, high] = values.map((some) => (i == null ? null : some[i]));
        const range = low == null || low === high ? "" : ` (${digits(low)} to ${digits(high)})`;
        names[number].textContent = one.label + (mid == null || "level" in one ? "" : `: ${digits(mid)}${range}`);
      });
    }
    box.addEventListener("keydown", (event) => {
      const x = made.data[0], {min, max} = made.scales.x;
      const seen = x.flatMap((value, i) => (value >= min && value <= max ? [i] : [])), at = seen.indexOf(made.cursor.idx);
      const step = {ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 20, PageDown: -20}[event.key];
      const next = event.key === "Home" ? 0 : event.key === "End" ? seen.length - 1 : step && (at < 0 ? 0 : at + step);
      if (next === undefined || !seen.length) return;
      event.preventDefault();
      const i = seen[Math.min(Math.max(next, 0), seen.length - 1)];
      made.setCursor({left: made.valToPos(x[i], "x"), top: 10});
      box.setAttribute("aria-valuenow", x[i]);
      box.setAttribute("aria-valuetext", [where, ...names].map((one) => one.textContent).join("; "));
    });
    charts.push({box, made, label: part.label, lines: curves.map(({one, values}) => ({label: one.label, values: values[0]})), size});
    read();
  }

  function copyable(parent, part) {
    const box = element("div", "", parent, {className: "copyable"}), pre = element("pre", part.text, box);
    const button = element("button", "copy", box, {type: "button"});
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(part.text);
      } catch {
        getSelection().selectAllChildren(pre); // a browser that does not let the page copy
        document.execCommand("copy");
      }
      button.textContent = "copied";
      setTimeout(() => { button.textContent = "copy"; }, 1500);
    });
  }

  // Parts that depend on what is chosen above them, here or around.
  function panel(parent, part, _, around) {
    const chosen = Object.create(around), controls = part.controls || [];
    const holds = (when) => Object.entries(when || {}).every(([name, value]) => chosen[name] === value);
    const bar = controls.length && element("div", "", parent, {className: "controls"}), body = element("div", "", parent);
    const labels = controls.map((one) => control(bar, one, chosen, draw));
    function draw() {
      controls.forEach((one, i) => { labels[i].hidden = !holds(one.when); });
      body.style.minHeight = `${body.offsetHeight}px`; // the page stays where it is
      body.replaceChildren();
      charts = charts.filter((one) => one.box.isConnected || one.made.destroy());
      for (const one of part.parts.filter((some) => holds(some.when))) {
        const section = element("section", "", body);
        if (one.title) element("h2", one.title, section);
        if (one.note) element("p", one.note, section, {className: "note"});
        kinds[one.kind](section, one, holds, chosen);
      }
      body.style.minHeight = "";
    }
    draw();
  }

  const kinds = {table, chart, copyable, panel,
    words: (parent, part) => part.sentences.forEach((text) => element("p", text, parent)),
    verdict: (parent, part) => { document.getElementById("verdict").textContent = part.text; }};
  addEventListener("resize", () => charts.forEach((one) => one.made.setSize(one.size())));
  panel(document.getElementById("body"), report, null, {});
  window.rfrope = {report, charts: () => charts}; // what is drawn, for the console and for tests
})();
