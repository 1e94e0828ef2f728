// Draws the page from the JSON in #data. Text only ever enters the page through textContent.
'use strict';
const data = JSON.parse(document.getElementById('data').textContent);
const prediction = data.prediction;
const measured = data.measured;  // null where nothing was run
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue('--' + name);

const kGroups = {
  forward: 'forward', recompute: 'forward again', backward: 'backward', adam: 'Adam',
  copy: 'copy', other: 'cast, pack, check',
};
const kPlaces = {hbm: 'GPU memory', dram: 'CPU memory', nvme: 'NVMe'};
const kSvg = 'http://www.w3.org/2000/svg';

function digits(value) {
  if (value === 0) return '0';
  const size = Math.abs(value);
  return value.toFixed(size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2);
}
function seconds(value) {
  const size = Math.abs(value);
  if (size >= 0.9995) return digits(value) + ' s';
  return size >= 0.9995e-3 ? digits(value * 1e3) + ' ms' : digits(value * 1e6) + ' us';
}
function bytes(value) {
  for (const [unit, scale] of [['GiB', 2 ** 30], ['MiB', 2 ** 20], ['KiB', 2 ** 10]]) {
    if (value >= scale) return digits(value / scale) + ' ' + unit;
  }
  return value + ' bytes';
}
function percent(value) {
  return value === null || value === undefined ? '' :
    Math.abs(value) < 0.05 ? '0.0 %' : (value > 0 ? '+' : '') + value.toFixed(1) + ' %';
}
function count(value) { return Math.round(value).toLocaleString('en-US'); }

function element(name, text, parent, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  if (parent) parent.append(made);
  return made;
}
function shape(name, attributes, parent, text) {
  const made = document.createElementNS(kSvg, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}

function drawFigures() {
  const parent = document.getElementById('figures');
  const figure = (title, value, note) => {
    const box = element('div', undefined, parent, 'figure');
    element('span', title, box, 'quiet');
    element('b', value, box);
    element('span', note, box, 'quiet');
  };
  if (!prediction.fits) {
    figure('this plan', 'does not fit', prediction.reason);
    return;
  }
  const tokens = prediction.tokens_per_s * prediction.step_time_s;
  figure('step time, predicted', seconds(prediction.step_time_s),
    count(prediction.tokens_per_s) + ' tokens/s');
  if (measured) {
    figure('step time, measured', seconds(measured.step_time_s),
      count(tokens / measured.step_time_s) + ' tokens/s');
    figure('error of the prediction', percent(data.error_percent.step_time_s),
      'over ' + data.steps + ' steps');
  }
  figure('share of the GPU’s best rate', prediction.mfu_percent.toFixed(1) + ' %',
    digits(prediction.tflops_per_device) + ' TFLOP/s, predicted');
  const p = prediction.provenance;
  figure('times known by measuring', (100 * p.measured).toFixed(0) + ' %',
    (100 * p.interpolated).toFixed(0) + ' % interpolated, ' +
    (100 * p.roofline).toFixed(0) + ' % computed');
  const last = data.metrics[data.metrics.length - 1];
  if (last) figure('loss', last.loss.toFixed(3), 'nats a token, after step ' + (last.step + 1));
}

function drawTimeline(parent, title, timeline, scale_us) {
  const row = 18, left = 84, width = 1120, top = 24;
  const height = top + timeline.lanes.length * row + 22;
  const svg = shape('svg', {viewBox: `0 0 ${width} ${height}`, role: 'img'}, parent);
  shape('text', {x: 0, y: 14, class: 'name'}, svg,
    title + ': ' + seconds(timeline.length_us * 1e-6));
  const x = (us) => left + (width - left - 4) * us / scale_us;
  const rows = new Map();
  timeline.lanes.forEach((lane, i) => {
    const y = top + i * row;
    rows.set(lane.id, y);
    shape('text', {x: 0, y: y + 12}, svg, lane.name);
    shape('rect', {x: left, y, width: x(timeline.length_us) - left, height: row - 3,
      class: 'track'}, svg);
  });
  for (const [lane, begin, end, group, label] of timeline.spans) {
    const box = shape('rect', {x: x(begin), y: rows.get(lane), height: row - 3,
      width: Math.max(x(end) - x(begin), 0.4), style: `fill: var(--${group})`}, svg);
    shape('title', {}, box, label + ', ' + seconds((end - begin) * 1e-6));
  }
  const bottom = top + timeline.lanes.length * row;
  for (let i = 0; i <= 5; ++i) {
    const at = scale_us * i / 5;
    shape('line', {x1: x(at), x2: x(at), y1: top, y2: bottom, class: 'axis'}, svg);
    shape('text', {x: x(at), y: bottom + 15,
      'text-anchor': i === 0 ? 'start' : i === 5 ? 'end' : 'middle'}, svg, seconds(at * 1e-6));
  }
}

function drawTimelines() {
  const parent = document.getElementById('timelines');
  const list = [['predicted', data.timelines.predicted], ['measured', data.timelines.measured]]
    .filter(([, timeline]) => timeline);
  if (list.length === 0) parent.closest('section').remove();
  const scale = Math.max(...list.map(([, timeline]) => timeline.length_us));
  for (const [title, timeline] of list) drawTimeline(parent, title, timeline, scale);
  document.getElementById('timeline-note').textContent = list.length === 2 ?
    'The same operations on both clocks, to one scale. Point at a box to see what it is.' :
    'As the simulator ran it. Point at a box to see what it is.';
  const legend = document.getElementById('timeline-legend');
  const present = new Set(list.flatMap(([, timeline]) => timeline.spans.map((span) => span[3])));
  for (const [group, name] of Object.entries(kGroups)) {
    if (!present.has(group)) continue;
    const entry = element('span', undefined, legend);
    element('i', undefined, entry).style.background = `var(--${group})`;
    entry.append(name);
  }
}

// --- Charts, redrawn when the colours change --------------------------------------------------

let charts = [];
function chart(name, configuration) {
  const box = document.querySelector(`[data-chart="${name}"]`);
  box.replaceChildren();
  const canvas = element('canvas', undefined, box);
  configuration.options = {
    responsive: true, maintainAspectRatio: false, animation: false, ...configuration.options,
  };
  charts.push(new Chart(canvas, configuration));
}
function axis(title, format, extra) {
  return {
    title: {display: Boolean(title), text: title, color: color('quiet')},
    ticks: {color: color('quiet'), callback: format},
    grid: {color: color('line')}, ...extra,
  };
}
function remove(name) { document.getElementById(name + '-section').remove(); }

// A pair of bars for each name, from lists of [name, value].
function pairs(name, predictedList, measuredList, format) {
  const names = [...new Set([...predictedList, ...measuredList].map(([key]) => key))];
  const of = (list) => names.map((key) => (list.find(([k]) => k === key) || [key, 0])[1]);
  const sets = [{label: 'predicted', data: of(predictedList), backgroundColor: color('predicted')}];
  if (measured) {
    sets.push({label: 'measured', data: of(measuredList), backgroundColor: color('measured')});
  }
  chart(name, {
    type: 'bar', data: {labels: names, datasets: sets},
    options: {
      indexAxis: 'y',
      scales: {
        x: axis('', format, {beginAtZero: true}),
        y: {ticks: {color: color('text'), autoSkip: false}, grid: {display: false}},
      },
      plugins: {
        legend: {labels: {color: color('text'), boxWidth: 12}},
        tooltip: {callbacks: {label: (item) => item.dataset.label + ' ' + format(item.raw)}},
      },
    },
  });
}

function drawKinds() {
  const of = (view) => view.kinds.map((kind) => [kind.kind, kind.seconds]);
  const longest = Math.max(...of(prediction).map(([, time]) => time));
  const shown = ([, time]) => time > longest / 200;
  pairs('kinds', of(prediction).filter(shown), measured ? of(measured).filter(shown) : [], seconds);
}

function drawLanes() {
  const of = (view) => view.lanes.map((lane) => [lane.lane, 100 * lane.share]);
  pairs('lanes', of(prediction), measured ? of(measured) : [],
    (value) => Number(value.toPrecision(3)) + ' %');
}

const kCategoryColors = {
  weights: '#2f78c4', gradients: '#dd8a1b', master: '#2a9d7f', moments: '#57c3a6',
  activations: '#9b7fb8', workspace: '#8a94a3', staging: '#d0638f', snapshot: '#b0a13a',
  data: '#6c757f', 'reuse gaps': '#b9c1cb',
};

function drawMemory() {
  const limits = {hbm: prediction.usable_gpu_bytes, dram: prediction.usable_cpu_bytes};
  const peaks = {hbm: prediction.peak_gpu_bytes, dram: prediction.peak_cpu_bytes};
  const places = ['hbm', 'dram'].filter((place) => peaks[place] > 0);
  const rows = places.flatMap((place) => [[place, 'predicted']]
    .concat(measured && measured.memory_bytes[place] ? [[place, 'measured']] : []));
  const labels = rows.map(([place, side]) => kPlaces[place].slice(0, 3) + ' ' + side);
  const held = (place) => {
    const list = (prediction.holders[place].categories || []).map((c) => [c.category, c.bytes]);
    const gap = peaks[place] - list.reduce((sum, [, size]) => sum + size, 0);
    return gap > 0 ? list.concat([['reuse gaps', gap]]) : list;
  };
  const names = Object.keys(kCategoryColors)
    .filter((name) => places.some((place) => held(place).some(([key]) => key === name)));
  const sets = names.map((name) => ({
    label: name, backgroundColor: kCategoryColors[name],
    data: rows.map(([place, side]) => side === 'predicted' ?
      (held(place).find(([key]) => key === name) || [name, 0])[1] : 0),
  }));
  if (measured) {
    sets.push({label: 'measured, all', backgroundColor: color('measured'),
      data: rows.map(([place, side]) => side === 'measured' ? measured.memory_bytes[place] : 0)});
  }
  // A limit far away would squeeze the bars to nothing: it is then told in words below.
  const near = places.some((place) => peaks[place] > limits[place] / 10);
  if (near) {
    sets.push({label: 'free', backgroundColor: color('page'), borderColor: color('line'),
      borderWidth: 1, data: rows.map(([place, side]) => Math.max(0, limits[place] -
        (side === 'predicted' ? peaks[place] : measured.memory_bytes[place])))});
  }
  // Ticks at round numbers of a binary unit.
  const roundSteps = () => {
    const longest = Math.max(...places.map((place) => near ? Math.max(limits[place], peaks[place]) :
      Math.max(peaks[place], measured ? measured.memory_bytes[place] || 0 : 0)));
    const step = 2 ** Math.ceil(Math.log2(longest / 5));
    return {max: Math.ceil(longest / step) * step,
      ticks: {color: color('quiet'), callback: bytes, stepSize: step}};
  };
  chart('memory', {
    type: 'bar', data: {labels, datasets: sets},
    options: {
      indexAxis: 'y',
      scales: {
        x: axis('', bytes, {stacked: true, ...roundSteps()}),
        y: {stacked: true, ticks: {color: color('text')}, grid: {display: false}},
      },
      plugins: {
        legend: {position: 'bottom', labels: {color: color('text'), boxWidth: 12}},
        tooltip: {callbacks: {label: (item) => item.dataset.label + ' ' + bytes(item.raw)}},
      },
    },
  });
  document.getElementById('memory-note').textContent = places.map((place) =>
    `${kPlaces[place]}: ${bytes(peaks[place])} of ${bytes(limits[place])} that may be used`)
    .join('; ') + '.';
}

function line(name, sets, format, title) {
  chart(name, {
    type: 'line', data: {datasets: sets},
    options: {
      parsing: false, normalized: true,
      scales: {x: axis('step', (value) => value, {type: 'linear'}), y: axis(title, format)},
      plugins: {legend: {display: sets.length > 1, labels: {color: color('text'), boxWidth: 12}}},
    },
  });
}
function curve(label, key, name) {
  return {
    label, borderColor: color(name), backgroundColor: color(name), borderWidth: 1.5, pointRadius: 0,
    data: data.metrics.map((entry) => ({x: entry.step + 1, y: entry[key]})),
  };
}

function drawTraining() {
  line('loss', [curve('loss', 'loss', 'measured')], (value) => digits(value), 'nats a token');
  const first = data.metrics[0], last = data.metrics[data.metrics.length - 1];
  document.getElementById('loss-note').textContent =
    `From ${first.loss.toFixed(3)} at step ${first.step + 1} to ${last.loss.toFixed(3)} ` +
    `at step ${last.step + 1}.`;
  const predicted = curve('predicted', 'step', 'predicted');
  predicted.data = [first, last].map((entry) =>
    ({x: entry.step + 1, y: prediction.step_time_s}));
  predicted.borderDash = [6, 4];
  line('steps', [curve('measured', 'step_time_s', 'measured'), predicted], seconds, '');
}

function drawTable() {
  const parent = document.getElementById('table');
  const table = element('table', undefined, parent);
  const row = (cells, cell) => {
    const line = element('tr', undefined, table);
    for (const text of cells) element(cell, text, line);
  };
  row(['', 'predicted', 'measured', 'error'].slice(0, measured ? 4 : 2), 'th');
  const add = (name, predicted, actual, error, format) => {
    const show = (value) => value === undefined || value === null ? '' : format(value);
    row([name, show(predicted), show(actual), percent(error)].slice(0, measured ? 4 : 2), 'td');
  };
  const errors = data.error_percent || {kinds: {}, memory_bytes: {}};
  add('step time', prediction.step_time_s, measured && measured.step_time_s, errors.step_time_s,
    seconds);
  for (const kind of prediction.kinds) {
    const other = measured && measured.kinds.find((entry) => entry.kind === kind.kind);
    add(`${kind.kind} (${kind.operations} operations)`, kind.seconds, other && other.seconds,
      errors.kinds[kind.kind], seconds);
  }
  for (const [place, key] of [['hbm', 'peak_gpu_bytes'], ['dram', 'peak_cpu_bytes']]) {
    add(kPlaces[place], prediction[key], measured && measured.memory_bytes[place],
      errors.memory_bytes[place], bytes);
  }
}

function drawCharts() {
  for (const old of charts) old.destroy();
  charts = [];
  drawMemory();
  if (prediction.fits) {
    drawLanes();
    drawKinds();
  }
  if (data.metrics.length > 0) drawTraining();
}

document.getElementById('plan').textContent = data.plan_text;
document.getElementById('plan-json').textContent = JSON.stringify(prediction.plan, null, 2);
drawFigures();
drawTimelines();
if (!prediction.fits) ['lanes', 'kinds'].forEach(remove);
if (data.metrics.length === 0) ['loss', 'steps'].forEach(remove);
drawCharts();
if (prediction.fits) drawTable();
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', drawCharts);
