// The page of the model's validation: what others published beside what is predicted for it.
//
// Two kinds of files: of every published case, each predicted without its source, without its
// framework, and as fitted ("figures"); or of the cases of some files, as fitted ("cases").

const kMetrics = {
  step_time_s: ['#2f78c4', 's', 'step time (s)'],
  tokens_per_s: ['#2a9d7f', 'tokens/s', 'tokens/s'],
  tokens_per_s_per_device: ['#57c3a6', 'tokens/s', 'tokens/s a device'],
  tflops_per_device: ['#dd8a1b', 'TFLOP/s', 'TFLOP/s a device'],
  mfu_percent: ['#b0a13a', '%', 'MFU (%)'], hfu_percent: ['#8a94a3', '%', 'HFU (%)'],
  peak_memory_gb: ['#9b7fb8', 'GB', 'peak memory (GB)'],
  states_gib: ['#d0638f', 'GiB', 'weights, optimizer (GiB)'],
  activations_gib: ['#e58fb4', 'GiB', 'activations (GiB)'],
};
const kTolerance = 0.15;

function metricName(metric) { return (kMetrics[metric] || ['', '', metric])[2]; }
function withUnit(metric, value) {
  const unit = (kMetrics[metric] || ['', ''])[1];
  return digits(value) + (unit ? ' ' + unit : '');
}

function scatterSets(known, least, most) {
  const ray = (label, factor, dash) => ({
    label, type: 'line', borderColor: color('quiet'), backgroundColor: color('quiet'),
    borderWidth: 1, borderDash: dash, pointRadius: 0, pointHitRadius: 0,
    data: [{x: least, y: least * factor}, {x: most, y: most * factor}],
  });
  const sets = Object.entries(kMetrics).map(([metric, [shade]], i) => ({
    label: metricName(metric), backgroundColor: shade, borderColor: shade, pointRadius: 4.5,
    pointHoverRadius: 6, pointStyle: ['circle', 'rect', 'triangle', 'rectRot'][i % 4],
    data: known.filter((one) => one.metric === metric)
      .map((one) => ({x: one.published, y: one.predicted, of: one})),
  })).filter((set) => set.data.length > 0);
  return sets.concat([ray('equal', 1, []), ray('15 % above', 1 + kTolerance, [5, 4]),
    ray('15 % below', 1 - kTolerance, [5, 4])]);
}

// What was known of a case when its prediction was made; the first is what a reader can expect.
const kWays = {
  source: 'without its source', framework: 'without its framework', nothing: 'fitted to it too',
};

// The figures as cases, each as it was predicted in this way.
function casesOf(way) {
  if (data.validation.cases) return data.validation.cases;
  return data.validation.figures.map((one) => {
    const judged = one['without_' + way] || {};
    const isVerdict = one.metric === 'fits';
    return {...one, predicted: judged.predicted, low: judged.low, high: judged.high,
      error_percent: judged.error_percent,
      right: isVerdict && isNumber(judged.predicted) ? judged.predicted === one.published :
        undefined};
  });
}

// A choice of the way, and what `draw` makes of its cases below it.
function byWay(parent, draw) {
  const box = element('div');
  if (data.validation.cases) {
    parent.append(box);
    draw(box, data.validation.cases);
    return;
  }
  const choice = element('label', 'Each case predicted ', parent, 'choice');
  const select = element('select', undefined, choice);
  for (const [way, name] of Object.entries(kWays)) element('option', name, select).value = way;
  parent.append(box);
  const show = () => {
    dropCharts(box);
    box.replaceChildren();
    draw(box, casesOf(select.value));
  };
  select.addEventListener('change', show);
  show();
}

function drawScatterOf(parent, cases) {
  const known = cases.filter((one) => one.metric !== 'fits' && isNumber(one.predicted) &&
    isNumber(one.published));
  const all = known.flatMap((one) => [one.published, one.predicted]);
  if (all.length === 0) return;
  const near = known.filter((one) => Math.abs(one.error_percent) <= 100 * kTolerance).length;
  element('p', `${near} of ${known.length} quantities are predicted within 15 % (between the ` +
    'dashed lines). Point at a mark to see which case it is. Each quantity is in its own unit.',
  parent, 'quiet');
  const least = Math.min(...all) / 1.5, most = Math.max(...all) * 1.5;
  const drawing = chart(parent, {label: 'Predicted against published',
    height: isNarrow() ? 480 : 620}, () => {
    const ticks = logarithmic(least, most, isNarrow() ? compact :
      (value) => value.toLocaleString('en-US'));
    return {
      type: 'scatter', data: {datasets: scatterSets(known, least, most)},
      options: {
        scales: {
          x: axis('published', ticks, {type: 'logarithmic', min: least, max: most}),
          y: axis('predicted', ticks, {type: 'logarithmic', min: least, max: most}),
        },
        plugins: {
          legend: {labels: {usePointStyle: true,
            filter: (item) => !['equal', '15 % above', '15 % below'].includes(item.text)}},
          tooltip: {
            filter: (item) => Boolean(item.raw.of),
            callbacks: {label: ({raw: {of}}) => [of.id, `${withUnit(of.metric, of.predicted)} ` +
              `predicted, ${withUnit(of.metric, of.published)} published: ` +
              percent(of.error_percent)]},
          },
        },
      },
    };
  });
  drawing.box.classList.add('square');
}

function drawErrorsOf(parent, cases) {
  const known = cases.filter((one) => isNumber(one.error_percent))
    .sort((a, b) => a.error_percent - b.error_percent);
  if (known.length === 0) return;
  chart(parent, {label: 'Errors of all quantities', height: 220}, () => ({
    type: 'bar',
    data: {labels: known.map((one) => one.id), datasets: [{label: 'error',
      data: known.map((one) => one.error_percent), backgroundColor: known.map((one) =>
        Math.abs(one.error_percent) > 100 * kTolerance ? color('bad') : color('measured'))}]},
    options: {
      interaction: {mode: 'index', intersect: false},
      scales: {x: {ticks: {display: false}, grid: {display: false}},
        y: axis('error', (value) => value + ' %')},
      plugins: {legend: {display: false}, tooltip: {callbacks: {label: (item) =>
        `${metricName(known[item.dataIndex].metric)}: ${percent(item.raw)}`}}},
    },
  }));
}

function drawCharts() {
  if (!casesOf('source').some((one) => isNumber(one.error_percent))) return;
  byWay(card('validation', 'Predicted against published'), drawScatterOf);
  byWay(card('validation-errors', 'How far off', 'Signed errors of all quantities, sorted: above ' +
    'zero too much was predicted' + (data.validation.cases ? '.' : ': too fast, or too much ' +
    'memory.')), drawErrorsOf);
}

// --- Without source and framework ---------------------------------------------------------------

function summaryOf(quantity, way) {
  return data.validation.summary.find((one) => one.quantity === quantity &&
    one.left_out === way) || {figures: 0};
}

function drawLeftOutFigures() {
  const add = (title, one, note) => {
    if (one.figures === 0) return;
    figure(title, share(one.mean_error_percent), note(one));
  };
  const within = (one) => `of ${one.figures} figures, mean; half within ` +
    share(one.median_error_percent);
  add('error of speed, source left out', summaryOf('speed', 'source'), within);
  add('error of speed, framework left out', summaryOf('speed', 'framework'), within);
  add('error of memory, source left out', summaryOf('memory', 'source'), within);
  const verdicts = summaryOf('verdicts', 'source');
  if (verdicts.figures > 0) {
    figure('verdicts right, source left out', share(verdicts.right_percent),
      `of ${verdicts.figures}: does it fit?`);
  }
  add('error of speed, fitted to it too', summaryOf('speed', 'nothing'),
    () => 'of the fit itself: promises nothing');
}

function drawSummary() {
  const error = {unit: '%', format: share}, signed = {unit: '%', format: percent};
  table(card('validation-summary', 'By what was known', 'Each case is predicted three times: by ' +
    'constants fitted without the publication that it stands in, as the typical framework fitted ' +
    'without its own, and by the constants that ship, which were fitted to it too. The first is ' +
    'what to expect of a known framework, the second of one that is not here. Errors are ' +
    'absolute; the bias is their mean with its sign.'),
  [{title: 'each case predicted', kind: 'name'}, {title: 'quantity', kind: 'name key'},
    {title: 'figures'}, {title: 'failed'}, {title: 'mean', ...error}, {title: 'bias', ...signed},
    {title: 'median', ...error}, {title: 'worst', ...signed},
    {title: 'in its interval', ...error}, {title: 'each source as one', ...error},
    {title: 'right', ...error}, {title: 'worst case', kind: 'name'}],
  data.validation.summary.filter((one) => one.figures + one.failed > 0).map((one) => [
    kWays[one.left_out], one.quantity, one.figures, one.failed || null, one.mean_error_percent,
    one.bias_percent, one.median_error_percent, one.worst_error_percent,
    one.quantity === 'memory of layers' ? null : one.in_interval_percent,
    one.quantity === 'memory of layers' ? null : one.in_interval_by_source_percent,
    one.right_percent,
    one.worst_id]));
}

function drawFigureTable() {
  const error = {unit: '%', format: percent};
  const shown = (one, value) => !isNumber(value) ? null : one.metric === 'fits' ?
    (value > 0 ? 'fits' : 'does not fit') : {value, text: digits(value)};
  const verdict = (one, way) => {
    const judged = one['without_' + way];
    if (!judged) return null;
    const isFits = one.metric === 'fits', right = judged.predicted === one.published;
    const wrong = isFits ? !right : Math.abs(judged.error_percent) > 100 * kTolerance;
    return isFits ? {text: right ? 'right' : 'wrong', kind: wrong ? 'bad' : ''} :
      {value: judged.error_percent, kind: wrong ? 'bad' : ''};
  };
  const interval = (one, {low, high}) => one.metric === 'fits' || !(high > 0) ? null :
    `${digits(low)} to ${digits(high)}`;
  const parent = card('validation-cases', 'Every figure', 'The prediction and its interval are ' +
    'those without its source.');
  parent.classList.add('dense');
  table(parent, [{title: 'case', kind: 'name'},
    {title: 'framework', kind: 'name key'}, {title: 'quantity', kind: 'name'},
    {title: 'published'}, {title: 'predicted'}, {title: '80 % interval'},
    {title: 'source left out', ...error}, {title: 'framework left out', ...error},
    {title: 'fitted', ...error}, {title: 'why not', kind: 'name'}],
  data.validation.figures.map((one) => [one.id, one.stack, metricName(one.metric),
    shown(one, one.published), shown(one, (one.without_source || {}).predicted),
    interval(one, one.without_source || {}), verdict(one, 'source'), verdict(one, 'framework'),
    verdict(one, 'nothing'), one.error ? {text: one.error, kind: 'bad'} : null])
    .concat((data.validation.refused || []).map((one) => [one.id, null, null, null, null, null,
      null, null, null, {text: one.why, kind: 'bad'}])));
}

// --- As fitted ----------------------------------------------------------------------------------

function drawFittedFigures() {
  const all = data.validation.overall;
  const known = data.validation.cases.filter((one) => isNumber(one.error_percent));
  figure('mean absolute error, fitted', share(all.mean_error_percent),
    `${known.length} quantities`);
  figure('median', share(all.median_error_percent), 'half are nearer');
  figure('worst', share(all.worst_error_percent), all.worst_id);
  if (all.fits > 0) figure('what fits', `${all.fits_right} of ${all.fits}`, 'verdicts right');
  if (all.failed > 0) figure('not predicted', String(all.failed), 'see the cases below');
}

function drawFiles() {
  const error = {unit: '%', format: share};
  table(card('validation-files', 'By file'), [{title: 'file', kind: 'name key'},
    {title: 'quantities'},
    {title: 'not predicted'}, {title: 'mean error', ...error}, {title: 'median error', ...error},
    {title: 'worst error', ...error}, {title: 'fits right'}, {title: 'worst case', kind: 'name'}],
  data.validation.summary.map((one) => {
    const shown = (value) => one.cases > one.fits ? value : null;
    return [one.file, one.cases, one.failed || null, shown(one.mean_error_percent),
      shown(one.median_error_percent), shown(one.worst_error_percent),
      one.fits > 0 ? `${one.fits_right} of ${one.fits}` : null, one.worst_id];
  }));
}

function drawCases() {
  const shown = (one, number) => !isNumber(number) ? typeof number === 'boolean' ?
    (number ? 'fits' : 'does not fit') : null :
    one.metric === 'fits' ? (number ? 'fits' : 'does not fit') :
      {value: number, text: withUnit(one.metric, number)};
  table(card('validation-cases', 'Every case'), [{title: 'case', kind: 'name'},
    {title: 'machine', kind: 'name key'}, {title: 'framework', kind: 'name key'},
    {title: 'quantity', kind: 'name'}, {title: 'published'}, {title: 'predicted'},
    {title: 'error', unit: '%', format: percent}],
  data.validation.cases.map((one) => {
    const wrong = one.right === false || Math.abs(one.error_percent) > 100 * kTolerance;
    const kind = wrong || one.error ? 'bad' : '';
    const verdict = one.error ? {text: one.error, kind} : one.metric === 'fits' ?
      {text: one.right ? 'right' : 'wrong', kind} : {value: one.error_percent, kind};
    return [one.id, one.machine || null, one.stack, one.metric ? metricName(one.metric) : null,
      shown(one, one.published), shown(one, one.predicted), verdict];
  }));
}

function drawStacks() {
  const stacks = data.validation.stacks;
  if (stacks.length === 0) return;
  const names = Object.keys(stacks[0].constants);
  table(card('validation-stacks', 'Constants of the frameworks',
    'Bold ones were fitted, on the cases named; the others are assumed. Shares are of 1.'),
  [{title: 'framework', kind: 'name key'}, ...names.map((name) =>
    ({title: name, unit: unitOf(name), format: (value) => String(Number(value.toPrecision(3)))})),
  {title: 'fitted on', kind: 'name'}],
  stacks.map((one) => [one.name, ...names.map((name) => ({value: one.constants[name],
    kind: one.fitted.includes(name) ? 'fitted' : 'quiet'})), one.fitted_on.join(', ')]));
}

function drawValidationPage() {
  if (data.validation.figures) {
    subtitle('Measurements that others published, and what is predicted for the same runs by ' +
      'somebody who did not know them.');
    drawLeftOutFigures();
    drawSummary();
    drawCharts();
    drawFigureTable();
    return;
  }
  subtitle('Measurements that others published, and what is predicted for the same runs by the ' +
    'constants that ship. Some of those were fitted to these very cases (below): what to expect ' +
    'elsewhere says the page of “ballast validate --left-out”.');
  drawFittedFigures();
  drawCharts();
  drawFiles();
  drawStacks();
  drawCases();
}
