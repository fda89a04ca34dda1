"use strict";
(() => {
  const family = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif';
  const narrow = () => window.innerWidth < 600;
  // A curve has its values on each of these horizontal axes that it knows; the first is drawn.
  const axes = ["x", "sent", "time"];

  // A trace of the report (see charts.py) becomes one or more traces of plotly.
  const lines = (trace) => {
    const many = trace.x.length > (trace.lines ? 1 : 40);
    const main = {
      type: "scatter", mode: many ? "lines" : "lines+markers", name: trace.name,
      x: trace.x, y: trace.y, sent: trace.sent, time: trace.time,
      line: { color: trace.colour, dash: trace.dash, width: 2.2 }, marker: { size: 5 },
      hovertemplate: "%{y:.4~g}",
    };
    if (trace.whiskers) {
      main.error_y = {
        type: "data", thickness: 1.2, width: 3, color: trace.colour,
        array: trace.high.map((high, i) => high - trace.y[i]),
        arrayminus: trace.low.map((low, i) => trace.y[i] - low),
      };
      main.customdata = trace.rows;
      main.hovertemplate = "%{y:.3f}, %{customdata} rows";
      return [main];
    }
    if (!trace.band) return [main];
    const inside = (values) => values && values.filter((_, i) => trace.low[i] !== null);
    const across = Object.fromEntries(axes.map((axis) => [axis, inside(trace[axis])]));
    const edge = { ...main, ...across, mode: "lines", hoverinfo: "skip", hovertemplate: null, line: { width: 0 } };
    const fill = { fill: "tonexty", fillcolor: trace.colour + "26" };
    return [{ ...edge, y: inside(trace.low) }, { ...edge, y: inside(trace.high), ...fill }, main];
  };
  const bars = (trace) => [{
    type: "bar", x: trace.x, y: trace.y, marker: { color: trace.colour },
    hovertemplate: "%{y} answered %{x} times<extra></extra>",
  }];
  const cells = (trace) => {
    const steps = trace.colours.length;
    const scale = trace.colours.flatMap((c, i) => [[i / steps, c], [(i + 1) / steps, c]]);
    return [{
      type: "heatmap", x: trace.x, y: trace.y, z: trace.z,
      text: trace.z.map((row) => row.map((status) => trace.words[status])),
      colorscale: scale, zmin: -0.5, zmax: steps - 0.5, showscale: false, ygap: 2,
      xgap: trace.x.length > 120 ? 0 : 1,
      hovertemplate: "%{y}<br>round %{x}: %{text}<extra></extra>",
    }];
  };
  const kinds = { bar: bars, heatmap: cells };
  const diagonal = {
    type: "scatter", mode: "lines", x: [0, 1], y: [0, 1], hoverinfo: "skip",
    line: { color: "#8a8a8a", width: 1, dash: "dot" },
  };

  const layout = (figure) => {
    // Invisible ticks keep the labels of the two axes apart where they meet.
    const ticks = { ticks: "outside", ticklen: 6, tickcolor: "rgba(0,0,0,0)" };
    const axis = { automargin: true, zeroline: false, gridcolor: "#e3e7ea", ...ticks };
    const title = (text) => ({ text, standoff: 10, font: { size: 13 } });
    const square = figure.diagonal ? { range: [-0.02, 1.02], dtick: 0.2 } : {};
    const table = figure.traces.some((trace) => trace.kind === "heatmap");
    return {
      font: { family, size: 13 }, margin: { l: 48, r: 20, t: 8, b: 44 }, autosize: true,
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false,
      hovermode: table || figure.diagonal ? "closest" : "x unified", dragmode: false,
      hoverlabel: { bgcolor: "#ffffff", bordercolor: "#b9c2c9", font: { family, color: "#1c2833" } },
      xaxis: { ...axis, ...square, showgrid: !table, title: title(figure.x_title) },
      yaxis: {
        ...axis, ...square, title: title(figure.y_title),
        ...(table && { type: "category", autorange: "reversed", dtick: 1, showgrid: false,
          tickfont: { size: narrow() ? 10 : 12 } }),
      },
    };
  };

  const charts = [...document.querySelectorAll(".chart")].map((box) => {
    const figure = JSON.parse(box.nextElementSibling.textContent);
    const traces = figure.traces.flatMap((trace) => (kinds[trace.kind] || lines)(trace));
    const data = traces.map(({ sent, time, ...trace }) => trace);
    if (figure.diagonal) data.unshift(diagonal);
    const options = { responsive: true, displayModeBar: false, displaylogo: false };
    Plotly.newPlot(box, data, layout(figure), options);
    return { box, traces };
  });

  const buttons = [...document.querySelectorAll("[data-axis]")];
  const show = ({ axis, title }) => {
    buttons.forEach((b) => b.setAttribute("aria-pressed", String(b.dataset.axis === axis)));
    charts.filter(({ traces }) => traces.some((trace) => trace.sent)).forEach(({ box, traces }) =>
      Plotly.update(box, { x: traces.map((t) => t[axis]) }, { "xaxis.title.text": title }));
  };
  buttons.forEach((button) => button.addEventListener("click", () => show(button.dataset)));

  // Paper is narrower than most screens.
  window.addEventListener("beforeprint", () =>
    charts.forEach(({ box }) => Plotly.relayout(box, { width: 640 })));
  window.addEventListener("afterprint", () =>
    charts.forEach(({ box }) => Plotly.relayout(box, { width: null, autosize: true })));
})();
