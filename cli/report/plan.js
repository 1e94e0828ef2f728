// The page of one plan: prediction, beside it the measurement where there is one, and training.

const prediction = data.prediction;
const measured = data.measured;  // null where nothing was run

function lastMetric() { return data.metrics[data.metrics.length - 1]; }
// The median step of the training run, as far as its steps are kept here.
function trainingStep() {
  const sorted = data.metrics.map((one) => one.step_time_s).sort((a, b) => a - b);
  const half = sorted.length >> 1;
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}
// Two numbers that a reader would hold for one.
function whyStepsDiffer() {
  const training = `Half of the steps of this training run took no more than ` +
    `${seconds(trainingStep())}.`;
  return measured ? training + ` Another run, of verify, took ${seconds(measured.step_time_s)}: ` +
    `the median of ${data.steps} steps without clipping, which rolls steps back and runs them ` +
    'again, on a machine that may have been busier or quieter then. The error of the prediction ' +
    'refers to that one.' : training;
}

function drawPlanFigures() {
  if (!prediction.fits) {
    figure('this plan', 'does not fit', prediction.reason);
    return;
  }
  const tokens = prediction.tokens_per_s * prediction.step_time_s;
  figure('step time, predicted', seconds(prediction.step_time_s), rate(prediction.tokens_per_s));
  if (measured) {
    figure('step time, measured', seconds(measured.step_time_s),
      `${rate(tokens / measured.step_time_s)}, the median of the ${data.steps} steps of verify`);
    figure('error of the prediction', percent(data.error_percent.step_time_s),
      `over ${data.steps} steps`);
  }
  if (data.metrics.length > 0) {
    figure('step time while training', seconds(trainingStep()),
      `the median of ${count(lastMetric().step + 1 - data.metrics[0].step)} steps of train`);
  }
  figure('share of the GPU’s nominal peak (MFU)', share(prediction.mfu_percent),
    digits(prediction.tflops_per_device) + ' TFLOP/s, predicted' + ofMeasured(prediction));
  const p = prediction.provenance;
  figure('times known by measuring', (100 * p.measured).toFixed(0) + ' %',
    `${(100 * p.interpolated).toFixed(0)} % interpolated, ` +
    `${(100 * p.roofline).toFixed(0)} % computed from rates`);
  const last = lastMetric();
  if (last) figure('loss', last.loss.toFixed(3), `nats a token, after step ${last.step + 1}`);
}

// A pair of bars for each name, from lists of [name, value].
function pairs(parent, label, {predictedList, measuredList, format}) {
  const names = [...new Set([...predictedList, ...measuredList].map(([key]) => key))];
  const of = (list) => names.map((key) => (list.find(([k]) => k === key) || [key, 0])[1]);
  const sides = measuredList.length > 0 ? 2 : 1;
  chart(parent, {label, height: 60 + names.length * (sides === 2 ? 30 : 22)}, () => {
    const sets = [{label: 'predicted', data: of(predictedList),
      backgroundColor: color('predicted'), maxBarThickness: 18}];
    if (sides === 2) {
      sets.push({label: 'measured', data: of(measuredList), backgroundColor: color('measured'),
        maxBarThickness: 18});
    }
    return {
      type: 'bar', data: {labels: names, datasets: sets},
      options: {
        indexAxis: 'y', interaction: {mode: 'index', axis: 'y', intersect: false},
        scales: {x: axis('', format, {beginAtZero: true}), y: nameAxis()},
        plugins: {
          legend: {display: sides === 2},
          tooltip: {callbacks: {label: (item) => item.dataset.label + ' ' + format(item.raw)}},
        },
      },
    };
  });
}

function drawKinds() {
  const of = (view) => view.kinds.map((kind) => [kind.kind, kind.seconds]);
  const longest = Math.max(...of(prediction).map(([, time]) => time));
  const shown = ([, time]) => time > longest / 200;
  const parent = card('kinds', 'Time by kind of operation',
    'Busy time of all lanes in one step; lanes work side by side, so it adds up to more than a ' +
    'step. Kinds below half a percent of the longest are left out here.');
  pairs(parent, 'Time by kind of operation', {predictedList: of(prediction).filter(shown),
    measuredList: measured ? of(measured).filter(shown) : [], format: seconds});
}

// --- What limits it -----------------------------------------------------------------------------

function gainOf(value) { return (100 * value).toFixed(1) + ' %'; }

function tieWords(tie, what) {
  const names = tie.names.slice(0, -1).join(', ') + ' and ' + tie.names[tie.names.length - 1];
  return `No single ${what} limits: ${names} tie, together ${gainOf(tie.gain)}.`;
}

function drawBottlenecks(parent) {
  const found = prediction.bottlenecks;
  if (!found) return;
  const box = card('bottlenecks', 'What limits the step',
    `How much shorter the step is where one rate of the machine is ${found.faster_percent} % ` +
    'faster: the same plan, simulated again.', parent);
  if (found.rate_tie) element('p', tieWords(found.rate_tie, 'rate'), box);
  if (found.lane_tie) element('p', tieWords(found.lane_tie, 'lane'), box);
  const gains = found.rates.map((one) => [one.name, one.gain])
    .concat([['all rates together', found.all_rates_gain]])
    .filter(([, gain]) => Math.abs(gain) >= 0.0005);
  if (gains.length > 0) {
    pairs(box, 'Gain by each rate that is faster',
      {predictedList: gains, measuredList: [], format: gainOf});
  } else {
    element('p', 'No rate does: fixed latencies and times that were measured make it up.', box);
  }
  table(box, [{title: 'lane', kind: 'name key'}, {title: 'idle', format: gainOf},
    {title: `gain, lane ${found.faster_percent} % faster`, format: gainOf}],
  found.lanes.map((one) => [one.lane, one.idle_share, one.gain])
    .concat([['all lanes together', null, found.all_lanes_gain]]));
}

// Where lanes tie there are several as long, and this one says nothing.
function drawPath(parent) {
  const path = prediction.longest_path, found = prediction.bottlenecks;
  if (!path || path.kinds.length === 0 || !found || found.rate_tie || found.lane_tie) return;
  const box = card('path', 'The longest path',
    'One chain of operations, each waiting for the one before, as long as the step: where its ' +
    'time goes.', parent);
  const parts = path.kinds.filter((kind) => kind.seconds > 0.002 * prediction.step_time_s)
    .map((kind) => [kind.kind, kind.seconds]);
  if (path.waiting_s > 0.002 * prediction.step_time_s) parts.push(['waiting', path.waiting_s]);
  pairs(box, 'Time on the longest path by kind',
    {predictedList: parts, measuredList: [], format: seconds});
}

function drawPlanMemory(parent) {
  const known = {hbm: ['peak_gpu_bytes', 'usable_gpu_bytes'],
    dram: ['peak_cpu_bytes', 'usable_cpu_bytes'], nvme: ['peak_nvme_bytes', 'usable_nvme_bytes']};
  const places = Object.keys(known).filter((place) => prediction[known[place][0]] > 0);
  if (places.length === 0) return;
  const box = card('memory', 'Memory at the peak', 'Each place on an axis of its own.', parent);
  for (const place of places) {
    const [total, limit] = known[place].map((key) => prediction[key]);
    const rows = [{name: measured ? 'predicted' : 'needed', total, limit,
      held: heldBy((prediction.holders[place] || {}).categories, total)}];
    const found = measured && measured.memory_bytes[place];
    if (found) rows.push({name: 'measured', total: found, limit, held: [], measured: true});
    element('h3', `${kPlaces[place]}: ${bytes(total)} needed` +
      (isNumber(limit) ? `, ${bytes(limit)} may be used` : ''), box);
    const marked = memoryChart(box, `${kPlaces[place]} by category against the capacity`, rows);
    if (marked) element('p', 'The upright mark is where memory ends.', box, 'quiet');
  }
}

function line(parent, {label, sets, format, title}) {
  chart(parent, {label, height: 240}, () => ({
    type: 'line', data: {datasets: sets()},
    options: {
      parsing: false, normalized: true, interaction: {mode: 'nearest', axis: 'x', intersect: false},
      scales: {x: axis('step', (value) => Number.isInteger(value) ? count(value) : '',
        {type: 'linear'}), y: axis(title, format)},
      plugins: {
        legend: {display: sets().length > 1},
        tooltip: {callbacks: {title: (items) => 'step ' + items[0].parsed.x,
          label: (item) => `${item.dataset.label} ${format(item.parsed.y)}`}},
      },
    },
  }));
}
function curve(label, key, name) {
  return {
    label, borderColor: color(name), backgroundColor: color(name), borderWidth: 1.5, pointRadius: 0,
    data: data.metrics.map((entry) => ({x: entry.step + 1, y: entry[key]})),
  };
}

function drawTraining() {
  const first = data.metrics[0], last = data.metrics[data.metrics.length - 1];
  const row = columns();
  const loss = card('loss', 'Loss',
    `From ${first.loss.toFixed(3)} at step ${first.step + 1} to ${last.loss.toFixed(3)} ` +
    `at step ${last.step + 1}.`, row);
  line(loss, {label: 'Loss by step', sets: () => [curve('loss', 'loss', 'measured')],
    format: digits, title: 'nats a token'});
  const times = card('steps', 'Step time while training', whyStepsDiffer(), row);
  line(times, {label: 'Step time by step', format: seconds, title: '', sets: () => {
    const predicted = curve('predicted', 'step', 'predicted');
    predicted.data = [first, last].map((entry) =>
      ({x: entry.step + 1, y: prediction.step_time_s}));
    predicted.borderDash = [6, 4];
    return [curve('training', 'step_time_s', 'measured'), predicted];
  }});
}

function drawPlanTable() {
  const parent = card('table', 'All figures');
  const heads = [{title: 'quantity', kind: 'name'}, {title: 'predicted'}, {title: 'measured'},
    {title: 'error', unit: '%', format: percent}];
  const rows = [];
  const errors = data.error_percent || {kinds: {}, memory_bytes: {}};
  const add = (name, {predicted, actual, error, format}) => {
    const shown = (value) => isNumber(value) ? {value, text: format(value)} : null;
    rows.push([name, shown(predicted), shown(actual), isNumber(error) ? error : null]);
  };
  add('step time', {predicted: prediction.step_time_s,
    actual: measured && measured.step_time_s, error: errors.step_time_s, format: seconds});
  for (const kind of prediction.kinds || []) {
    const other = measured && measured.kinds.find((entry) => entry.kind === kind.kind);
    const operations = kind.operations === 1 ? '1 operation' : `${kind.operations} operations`;
    add(`${kind.kind} (${operations})`, {predicted: kind.seconds,
      actual: other && other.seconds, error: errors.kinds[kind.kind], format: seconds});
  }
  for (const [place, key] of [['hbm', 'peak_gpu_bytes'], ['dram', 'peak_cpu_bytes']]) {
    add(kPlaces[place], {predicted: prediction[key],
      actual: measured && measured.memory_bytes[place], error: errors.memory_bytes[place],
      format: bytes});
  }
  for (const [name, key, unit] of [['throughput', 'tokens_per_s', 'tokens/s'],
    ['throughput of a device', 'tokens_per_s_per_device', 'tokens/s'],
    ['model rate of a device', 'tflops_per_device', 'TFLOP/s'],
    ['rate with recompute', 'hardware_tflops_per_device', 'TFLOP/s'],
    ['share of the nominal peak (MFU)', 'mfu_percent', '%'],
    ['share of the best rate measured', 'mfu_of_measured_percent', '%'],
    ['rolled-back step takes more', 'rollback_time_s', 's']]) {
    if (!isNumber(prediction[key])) continue;
    add(name, {predicted: prediction[key],
      format: unit === 's' ? seconds : (value) => `${digits(value)} ${unit}`});
  }
  table(parent, heads, rows);
  const box = element('details', undefined, parent);
  element('summary', 'The plan', box);
  element('pre', JSON.stringify(prediction.plan, null, 2), box);
}

// What a plan's page and the page of a search's best have in common.
function drawPlanSections() {
  if (prediction.fits) drawTimelines();
  const row = columns();
  drawPlanMemory(row);
  if (!prediction.fits) return;
  drawBottlenecks(row);
  drawPath();
  drawKinds();
  if (data.metrics.length > 0) drawTraining();
  drawPlanTable();
}

// Where the prediction departs from what the model's configuration says.
function drawNotes(notes) {
  if (!notes || notes.length === 0) return;
  const parent = card('notes', 'To be noted');
  for (const note of notes) element('p', note[0].toUpperCase() + note.slice(1) + '.', parent);
}

function drawPlanPage() {
  subtitle(data.plan_text);
  drawPlanFigures();
  drawNotes(prediction.notes);
  drawPlanSections();
}
