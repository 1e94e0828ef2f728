// The page of the model's validation: what others published beside what is predicted for it.

const kMetrics = {
  step_time_s: ['#2f78c4', 's', 'step time (s)'],
  tokens_per_s: ['#2a9d7f', 'tokens/s', 'tokens/s'],
  tokens_per_s_per_device: ['#57c3a6', 'tokens/s', 'tokens/s a device'],
  tflops_per_device: ['#dd8a1b', 'TFLOP/s', 'TFLOP/s a device'],
  mfu_percent: ['#b0a13a', '%', 'MFU (%)'], hfu_percent: ['#8a94a3', '%', 'HFU (%)'],
  peak_memory_gb: ['#9b7fb8', 'GB', 'peak memory (GB)'],
  states_gib: ['#d0638f', 'GiB', 'weights and optimizer (GiB)'],
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

function drawScatter() {
  const known = data.validation.cases.filter((one) => isNumber(one.predicted) &&
    isNumber(one.published));
  const all = known.flatMap((one) => [one.published, one.predicted]);
  if (all.length === 0) return;
  const near = known.filter((one) => Math.abs(one.error_percent) <= 100 * kTolerance).length;
  const parent = card('validation', 'Predicted against published',
    `${near} of ${known.length} quantities are predicted within 15 % (between the dashed lines). ` +
    'Point at a mark to see which case it is. Each quantity is in its own unit.');
  const least = Math.min(...all) / 1.5, most = Math.max(...all) * 1.5;
  const drawing = chart(parent, {label: 'Predicted against published', height: 620}, () => {
    const ticks = logarithmic(least, most, (value) => value.toLocaleString('en-US'));
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

function drawErrors() {
  const parent = card('validation-errors', 'How far off',
    'Signed errors of all quantities, sorted: above zero too much was predicted.');
  const known = data.validation.cases.filter((one) => isNumber(one.error_percent))
    .sort((a, b) => a.error_percent - b.error_percent);
  if (known.length === 0) {
    parent.remove();
    return;
  }
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

function drawValidationFigures() {
  const all = data.validation.overall;
  const known = data.validation.cases.filter((one) => isNumber(one.error_percent));
  figure('mean absolute error', share(all.mean_error_percent), `${known.length} quantities`);
  figure('median', share(all.median_error_percent), 'half are nearer');
  figure('worst', share(all.worst_error_percent), all.worst_id);
  figure('what fits', `${all.fits_right} of ${all.fits}`, 'verdicts right');
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
  subtitle('Measurements that others published, and what is predicted for the same runs.');
  drawValidationFigures();
  drawScatter();
  drawErrors();
  drawFiles();
  drawStacks();
  drawCases();
}
