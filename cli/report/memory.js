// Memory by category, stacked, against what may be used: of one plan or of many.

const kCategoryColors = {
  weights: '#2f78c4', gradients: '#dd8a1b', master: '#2a9d7f', moments: '#7cc9ae',
  activations: '#9b7fb8', workspace: '#8a94a3', staging: '#d0638f', snapshot: '#b0a13a',
  data: '#6c757f', 'reuse gaps': '#c3cad3', all: '#8a94a3',
};

// A mark across each bar where memory ends.
const capacityMarks = {
  id: 'capacityMarks',
  afterDatasetsDraw(chart, _, options) {
    const {ctx, scales: {x, y}} = chart;
    const half = Math.min(14, (y.bottom - y.top) / Math.max(1, options.limits.length) * 0.46);
    ctx.save();
    ctx.strokeStyle = color('text');
    ctx.lineWidth = 2.5;
    options.limits.forEach((limit, index) => {
      if (!isNumber(limit) || limit > x.max) return;
      const at = x.getPixelForValue(limit), middle = y.getPixelForValue(index);
      ctx.beginPath();
      ctx.moveTo(at, middle - half);
      ctx.lineTo(at, middle + half);
      ctx.stroke();
    });
    ctx.restore();
  },
};

// Holders by category, and what reuse of addresses leaves between them.
function heldBy(categories, total) {
  const list = (categories || []).map((one) => [one.category, one.bytes]);
  const gap = total - list.reduce((sum, [, size]) => sum + size, 0);
  return gap > 0 && list.length > 0 ? list.concat([['reuse gaps', gap]]) :
    list.length > 0 ? list : [['all', total]];
}

// rows: [{name, total, limit, held: [[category, bytes]], measured}]; a measured row has no
// categories. Returns the longest bar.
function memoryChart(parent, label, rows) {
  const names = Object.keys(kCategoryColors)
    .filter((name) => rows.some((row) => row.held.some(([key]) => key === name)));
  const most = Math.max(...rows.map((row) => row.total));
  // A limit far away would squeeze the bars to nothing: it is then told in words alone.
  const limits = rows.map((row) => isNumber(row.limit) && row.limit < 8 * most ? row.limit : null);
  const longest = Math.max(most, ...limits.filter(isNumber)) * 1.01;
  const labels = rows.map((row) => wrapped(row.name, isNarrow() ? 20 : 26));
  // Of the text's lines, which are 15 pixels apart.
  const bar = Math.max(30, 8 + 15 * Math.max(...labels.map((lines) => lines.length)));
  chart(parent, {label, height: 74 + bar * Math.max(rows.length, 2) +
    (names.length > 4 ? 24 : 0) + (isNarrow() ? 48 : 0)}, () => {
    const sets = names.map((name) => ({
      label: name, backgroundColor: kCategoryColors[name], maxBarThickness: 22,
      data: rows.map((row) => (row.held.find(([key]) => key === name) || [name, 0])[1]),
    }));
    if (rows.some((row) => row.measured)) {
      sets.push({label: 'measured, all', backgroundColor: color('measured'), maxBarThickness: 22,
        data: rows.map((row) => row.measured ? row.total : 0)});
    }
    const steps = byteSteps(longest);
    return {
      type: 'bar', plugins: [capacityMarks],
      data: {labels, datasets: sets},
      options: {
        indexAxis: 'y',
        scales: {
          x: {...axis('', bytes, {stacked: true, max: steps.max}),
            ticks: {color: color('quiet'), callback: bytes, stepSize: steps.stepSize,
              maxRotation: 0}},
          y: nameAxis({stacked: true}),
        },
        plugins: {
          capacityMarks: {limits},
          tooltip: {callbacks: {
            label: (item) => item.dataset.label + ' ' + bytes(item.raw),
            footer: (items) => {
              const row = rows[items[0].dataIndex];
              return isNumber(row.limit) ? `${bytes(row.total)} in all, of ${bytes(row.limit)}` :
                `${bytes(row.total)} in all`;
            },
          }},
        },
      },
    };
  });
  return limits.some(isNumber);
}
