// Draws the figures whose data are in the page, in the page's colours; sorts tables; search, theme, copying, ages.
(() => {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  // a fixed list of buttons: plotly.js adds one by default that uploads the figure to a third party
  const BUTTONS = [["toImage"], ["zoom2d", "pan2d"], ["zoomIn2d", "zoomOut2d", "resetScale2d"]];
  // figures over the commits: a click opens a run, and a range that is chosen in one is shown in all
  const LINKED = ["history", "trend", "memory", "launches"];
  const CONFIG = { responsive: true, displaylogo: false, plotlyServerURL: "", modeBarButtons: BUTTONS };

  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);

  function colours() {
    const style = getComputedStyle(root);
    return (name) => style.getPropertyValue(`--${name}`).trim();
  }

  function painted(trace, colour) {
    const slot = trace.meta && trace.meta.slot;
    if (!slot) return trace;
    const own = colour(`c-${slot}`) || colour("muted");
    const lined = trace.type === "box" || (trace.mode || "").includes("lines") || trace.line;
    const marker = { ...trace.marker, color: own };
    if (marker.line) marker.line = { ...marker.line, color: own };
    if (marker.pattern) marker.pattern = { ...marker.pattern, fgcolor: colour("panel") };
    const found = { ...trace, marker };
    if (lined) found.line = { ...trace.line, color: own };
    for (const error of ["error_x", "error_y"]) if (trace[error]) found[error] = { ...trace[error], color: own };
    return found;
  }

  function axis(given, colour) {
    return { ...given, gridcolor: colour("grid"), zerolinecolor: colour("grid"), linecolor: colour("line"), automargin: true };
  }

  function labelled(given, colour, own) {
    const hover = { bgcolor: colour("panel"), bordercolor: own, font: { color: colour("text"), size: 12 } };
    return { ...given, font: { color: colour("text"), size: 11 }, bgcolor: colour("panel"), bordercolor: own, borderpad: 2, opacity: 0.92, hoverlabel: hover };
  }

  function laidOut(layout, colour, narrow) {
    const font = { color: colour("text"), family: "system-ui, sans-serif", size: 12 };
    const found = {
      ...layout,
      // what was zoomed stays so when the theme changes
      uirevision: "kept",
      font,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      margin: { l: narrow ? 44 : 60, r: 12, t: 30, b: 44 },
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, font: { ...font, size: 11 } },
      hoverlabel: { font: { ...font }, bgcolor: colour("panel"), bordercolor: colour("line"), align: "left" },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("muted"), activecolor: colour("text") },
      xaxis: axis(layout.xaxis, colour),
      yaxis: axis(layout.yaxis, colour),
    };
    // on a phone many names would cover each other: the table below has them
    const names = found.xaxis.ticktext;
    if (narrow && names && names.length > 6) found.xaxis = { ...found.xaxis, showticklabels: false };
    const own = (one) => colour(`c-${one.name}`) || colour("muted");
    if (layout.shapes) found.shapes = layout.shapes.map((one) => ({ ...one, line: { ...one.line, color: own(one) } }));
    if (layout.annotations) found.annotations = layout.annotations.map((one) => labelled(one, colour, own(one)));
    const slider = found.xaxis.rangeslider;
    if (slider) found.xaxis.rangeslider = { ...slider, bgcolor: colour("page"), bordercolor: colour("line"), borderwidth: 1 };
    return found;
  }

  function draw() {
    const colour = colours();
    for (const holder of document.querySelectorAll("figure[data-chart]")) {
      const source = holder.querySelector("script[type='application/json']");
      const plot = holder.querySelector(".plot");
      if (!source || !plot || !window.Plotly) continue;
      const given = JSON.parse(source.textContent);
      const data = given.data.map((trace) => painted(trace, colour));
      const layout = laidOut(given.layout, colour, holder.clientWidth < 520);
      Plotly.react(plot, data, layout, { ...CONFIG, displayModeBar: holder.clientWidth >= 520 ? "hover" : false }).then(() => {
        holder.dataset.drawn = "yes";
        if (LINKED.includes(holder.dataset.chart) && !holder.dataset.linked) link(holder, plot);
      });
    }
  }

  function link(holder, plot) {
    holder.dataset.linked = "yes";
    plot.on("plotly_click", (event) => {
      const run = event.points[0] && event.points[0].customdata;
      if (typeof run !== "string") return;
      const address = new URL(location.href);
      address.searchParams.set("run", run);
      address.searchParams.delete("number");
      location.assign(address);
    });
    plot.on("plotly_relayout", (event) => {
      const range = event["xaxis.range"] || [event["xaxis.range[0]"], event["xaxis.range[1]"]];
      const change = event["xaxis.autorange"] ? { "xaxis.autorange": true } : range[0] && range[1] && { "xaxis.range": [...range] };
      if (!change || plot.dataset.follows) return;
      for (const other of document.querySelectorAll("figure[data-linked] .plot")) {
        if (other === plot) continue;
        other.dataset.follows = "yes";
        Plotly.relayout(other, change).then(() => { delete other.dataset.follows; });
      }
    });
  }

  function ages() {
    const words = new Intl.RelativeTimeFormat("en", { numeric: "auto" });
    for (const holder of document.querySelectorAll("[data-age]")) {
      const time = holder.querySelector("time");
      if (!time || holder.dataset.age) continue;
      const seconds = (new Date(time.dateTime) - Date.now()) / 1000;
      const [size, unit] = [[86400, "day"], [3600, "hour"], [60, "minute"]].find(([one]) => Math.abs(seconds) >= one) || [1, "second"];
      holder.dataset.age = words.format(Math.round(seconds / size), unit);
      const age = document.createElement("span");
      age.className = "quiet";
      age.textContent = ` (${holder.dataset.age})`;
      holder.append(age);
    }
  }

  // Tables that are whole on the page are sorted here; of tables with several pages the server sorts.
  const UNITS = { ns: 1, "µs": 1e3, ms: 1e6, s: 1e9, B: 1, KiB: 1024, MiB: 1048576, GiB: 1073741824, "%": 1, "×": 1 };

  function valueOf(row, place) {
    const cell = row.cells[place];
    const text = (cell ? cell.textContent : "").trim();
    const found = /^([+−-]?[\d\u202f]*\.?\d+(?:e[+-]?\d+)?)\s*(ns|µs|ms|s|B|KiB|MiB|GiB|%|×)?(?![\w-])/.exec(text);
    if (found) return Number(found[1].replace("−", "-").replaceAll("\u202f", "")) * (UNITS[found[2]] || 1);
    return text === "–" ? "" : text.toLowerCase();
  }

  function compareValues(one, other) {
    if (one === "" || other === "") return (one === "") - (other === "");
    if (typeof one === "number" && typeof other === "number") return one - other;
    return String(one).localeCompare(String(other), "en", { numeric: true });
  }

  function sort(table, head) {
    const way = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    for (const one of table.tHead.rows[0].cells) one.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", way === 1 ? "ascending" : "descending");
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row) => [valueOf(row, head.cellIndex), row]);
    // rows without a value stay last in both directions
    rows.sort(([one], [other]) => (one === "" || other === "" ? 1 : way) * compareValues(one, other));
    body.append(...rows.map(([, row]) => row));
  }

  function sortable() {
    for (const table of document.querySelectorAll("main table.data")) {
      const holder = table.closest(".scroll");
      const pager = holder && holder.nextElementSibling;
      const isPaged = pager && pager.classList.contains("pager");
      const isWhole = table.tHead && table.tBodies.length === 1 && !table.querySelector("tbody [colspan], .sort");
      if (isPaged || !isWhole || table.tBodies[0].rows.length < 2 || table.dataset.sortable) continue;
      table.dataset.sortable = "yes";
      for (const head of table.tHead.rows[0].cells) {
        if (head.querySelector(".hidden, button")) continue;
        const button = document.createElement("button");
        button.type = "button";
        button.className = "sort";
        button.append(...head.childNodes);
        head.append(button);
      }
    }
  }

  function fresh() { ages(); sortable(); draw(); }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.classList.contains("sort")) {
      sort(button.closest("table"), button.closest("th"));
    } else if (button.id === "theme") {
      root.dataset.theme = isDark() ? "light" : "dark";
      try { localStorage.setItem("theme", root.dataset.theme); } catch { /* only for this page then */ }
      draw();
    } else if (button.dataset.copy) {
      const text = document.getElementById(button.dataset.copy).textContent;
      navigator.clipboard.writeText(text).then(() => { button.textContent = "Copied"; }, () => { button.textContent = "Select and copy it"; });
    }
  });
  // Search box: "/" focuses it, arrows move over the hits, Enter follows one, Escape leaves.
  function isTyping(target) {
    return target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName);
  }

  document.addEventListener("keydown", (event) => {
    // looked up each time: going back replaces the body
    const find = document.getElementById("find");
    if (!find || event.ctrlKey || event.metaKey || event.altKey) return;
    const box = find.closest("form");
    if (event.key === "/" && !isTyping(event.target)) {
      event.preventDefault();
      find.focus();
      find.select();
    } else if (box.contains(event.target)) {
      const stops = [find, ...box.querySelectorAll("#hits a")];
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (event.key === "Escape") {
        if (event.target === find) find.blur();
        else find.focus();
      } else if (step) {
        event.preventDefault();
        const place = stops.indexOf(event.target) + step;
        stops[(place + stops.length) % stops.length].focus();
      }
    }
  });

  dark.addEventListener("change", draw);
  document.addEventListener("htmx:after:swap", fresh);
  document.addEventListener("htmx:after:settle", fresh);
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", fresh);
  else fresh();
})();
