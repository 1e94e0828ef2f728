// Draws the page from the JSON in #data: a plan's prediction, or the validation of the model.
// Text only ever enters the page through textContent.
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

// --- Validation: a page of its own ------------------------------------------------------------

const kMetricColors = {
  step_time_s: '#2f78c4', tokens_per_s: '#2a9d7f', tokens_per_s_per_device: '#57c3a6',
  tflops_per_device: '#dd8a1b', mfu_percent: '#b0a13a', hfu_percent: '#8a94a3',
  peak_memory_gb: '#9b7fb8', states_gib: '#d0638f', activations_gib: '#e58fb4',
};
const kTolerance = 0.15;

function drawScatter() {
  const known = data.validation.cases.filter((one) => typeof one.predicted === 'number');
  const all = known.flatMap((one) => [one.published, one.predicted]);
  if (all.length === 0) {
    document.getElementById('validation-section').remove();
    return;
  }
  const least = Math.min(...all) / 1.5, most = Math.max(...all) * 1.5;
  const ray = (label, factor, dash) => ({
    label, type: 'line', borderColor: color('quiet'), backgroundColor: color('quiet'),
    borderWidth: 1, borderDash: dash, pointRadius: 0,
    data: [{x: least, y: least * factor}, {x: most, y: most * factor}],
  });
  const sets = Object.entries(kMetricColors)
    .map(([metric, shade]) => ({
      label: metric, backgroundColor: shade, borderColor: shade, pointRadius: 4,
      data: known.filter((one) => one.metric === metric)
        .map((one) => ({x: one.published, y: one.predicted, of: one})),
    })).filter((set) => set.data.length > 0);
  const rays = [ray('equal', 1, []), ray('15 % above', 1 + kTolerance, [5, 4]),
    ray('15 % below', 1 - kTolerance, [5, 4])];
  const powers = (value) => Number.isInteger(Number(Math.log10(value).toFixed(6))) ?
    value.toLocaleString('en-US') : '';
  chart('validation', {
    type: 'scatter', data: {datasets: sets.concat(rays)},
    options: {
      scales: {
        x: axis('published', powers, {type: 'logarithmic', min: least, max: most}),
        y: axis('predicted', powers, {type: 'logarithmic', min: least, max: most}),
      },
      plugins: {
        legend: {position: 'bottom', labels: {color: color('text'), boxWidth: 12}},
        tooltip: {
          filter: (item) => Boolean(item.raw.of),
          callbacks: {label: (item) => `${item.raw.of.id}: ${digits(item.raw.y)} for ` +
            `${digits(item.raw.x)}, ${percent(item.raw.of.error_percent)}`},
        },
      },
    },
  });
  const near = known.filter((one) => Math.abs(one.error_percent) <= 100 * kTolerance).length;
  document.getElementById('validation-note').textContent =
    `${near} of ${known.length} quantities are predicted within 15 % (between the dashed lines). ` +
    'Point at a dot to see which case it is.';
}

function tableOf(id, head, rows) {
  const box = element('div', undefined, document.getElementById(id), 'scrolls');
  const table = element('table', undefined, box);
  const add = (cells, name) => {
    const line = element('tr', undefined, table);
    for (const cell of cells) {
      const of = typeof cell === 'object' ? cell : {text: cell};
      element(name, of.text, line, of.kind);
    }
  };
  add(head, 'th');
  for (const row of rows) add(row, 'td');
}

function share(value) { return value.toFixed(1) + ' %'; }

function drawValidationTables() {
  const v = data.validation;
  const parent = document.getElementById('figures');
  const figure = (title, value, note) => {
    const box = element('div', undefined, parent, 'figure');
    element('span', title, box, 'quiet');
    element('b', value, box);
    element('span', note, box, 'quiet');
  };
  const all = v.overall;
  figure('mean absolute error', share(all.mean_error_percent), `${all.cases} quantities`);
  figure('median', share(all.median_error_percent), 'half are nearer');
  figure('worst', share(all.worst_error_percent), all.worst_id);
  figure('what fits', `${all.fits_right} of ${all.fits}`, 'verdicts right');
  if (all.failed > 0) figure('not predicted', String(all.failed), 'see the cases below');
  tableOf('validation-files', ['file', 'quantities', 'not predicted', 'mean', 'median', 'worst',
    'fits right', {text: 'worst case', kind: 'name'}],
  v.summary.map((one) => {
    const errors = one.cases > one.fits;
    const shown = (value) => errors ? share(value) : '';
    return [one.file, one.cases, one.failed || '', shown(one.mean_error_percent),
      shown(one.median_error_percent), shown(one.worst_error_percent),
      one.fits > 0 ? `${one.fits_right} of ${one.fits}` : '', {text: one.worst_id, kind: 'name'}];
  }));
  const value = (one, number) => number === null ? '' :
    one.metric === 'fits' ? (number ? 'fits' : 'does not') : Number(number.toPrecision(4));
  tableOf('validation-cases', ['case', {text: 'framework', kind: 'name'},
    {text: 'quantity', kind: 'name'}, 'published', 'predicted', 'error'],
  v.cases.map((one) => {
    const wrong = one.right === false || Math.abs(one.error_percent) > 100 * kTolerance;
    const verdict = one.error ? one.error : one.metric === 'fits' ?
      (one.right ? 'right' : 'wrong') : percent(one.error_percent);
    return [one.id, {text: one.stack, kind: 'name'}, {text: one.metric || '', kind: 'name'},
      value(one, one.published), value(one, one.predicted),
      {text: verdict, kind: wrong || one.error ? 'bad' : ''}];
  }));
  drawStacks(v.stacks);
}

function drawStacks(stacks) {
  if (stacks.length === 0) {
    remove('validation-stacks');
    return;
  }
  const names = Object.keys(stacks[0].constants);
  tableOf('validation-stacks', ['framework', ...names, {text: 'fitted on', kind: 'name'}],
    stacks.map((one) => [one.name,
      ...names.map((name) => ({text: Number(one.constants[name].toPrecision(3)),
        kind: one.fitted.includes(name) ? 'fitted' : 'quiet'})),
      {text: one.fitted_on.join(', '), kind: 'name'}]));
}

// --- Which page ---------------------------------------------------------------------------------

function drawCharts() {
  for (const old of charts) old.destroy();
  charts = [];
  if (data.validation) {
    drawScatter();
    return;
  }
  drawMemory();
  if (prediction.fits) {
    drawLanes();
    drawKinds();
  }
  if (data.metrics.length > 0) drawTraining();
}

function drawPlanPage() {
  ['validation', 'validation-files', 'validation-stacks', 'validation-cases'].forEach(remove);
  document.getElementById('plan').textContent = data.plan_text;
  document.getElementById('plan-json').textContent = JSON.stringify(prediction.plan, null, 2);
  drawFigures();
  drawTimelines();
  if (!prediction.fits) ['lanes', 'kinds'].forEach(remove);
  if (data.metrics.length === 0) ['loss', 'steps'].forEach(remove);
  drawCharts();
  if (prediction.fits) drawTable();
}

function drawValidationPage() {
  ['timeline', 'charts', 'table'].forEach(remove);
  document.getElementById('plan').textContent =
    'Measurements that others published, and what is predicted for the same runs.';
  drawValidationTables();
  drawCharts();
}

if (data.validation) {
  drawValidationPage();
} else {
  drawPlanPage();
}
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', drawCharts);
