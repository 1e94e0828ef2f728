// The page of a search: the best plan, what the next-best lose, what does not fit, the frontier,
// what would change the answer, and what each knob is worth. A part whose key is absent is left
// out.

const tune = data.tune;

// What ended a search before every plan was decided.
function stopWords() {
  if (tune.stopped_by === 'interrupt') return 'interrupted';
  return tune.stopped_by ? `stopped by the ${tune.stopped_by}` : 'stopped';
}

// A search counts plans; of another framework layouts are ranked, each by the best of a list.
const isRanking = Boolean(tune) && tune.counted === 'layouts';
const counted = isRanking ? 'layouts' : 'plans';

// What became of all that were considered.
function countWords() {
  const parts = [[tune.simulated, isRanking ? 'timed' : 'simulated'],
    [tune.bounded, 'ruled out by bounds'],
    [tune.infeasible, 'do not fit'], [tune.not_looked_at, 'not looked at']];
  return parts.filter(([plans]) => plans > 0)
    .map(([plans, words]) => `${count(plans)} ${words}`).join(', ');
}

function drawTuneFigures() {
  const best = tune.ranked[0];
  if (!best) {
    if (tune.complete === false) {
      figure('plans that fit', 'not decided', stopWords());
    } else {
      figure('plans that fit', 'none', `of ${count(tune.considered)} ${counted} considered`);
    }
    return;
  }
  figure('step time of the best', seconds(best.step_time_s), rate(best.tokens_per_s));
  const objective = tune.objective;
  if (objective && objective.name !== 'step-time' && isNumber(objective.value)) {
    figure(objective.name.replace(/-/g, ' '), plain(objective.value), objective.unit);
  }
  if (prediction && prediction.fits) {
    figure('GPU memory', bytes(best.gpu_bytes), `of ${bytes(prediction.usable_gpu_bytes)}`);
    figure('CPU memory', bytes(best.cpu_bytes), `of ${bytes(prediction.usable_cpu_bytes)}`);
    figure('share of the GPU’s nominal peak (MFU)', share(prediction.mfu_percent),
      digits(prediction.tflops_per_device) + ' TFLOP/s' + ofMeasured(prediction));
  }
  figure(`${counted} considered`, count(tune.considered), `${countWords()}, in ` +
    seconds(tune.seconds));
  if (isRanking) {
    figure('proof', 'none', tune.complete ? 'of each layout, the best of a list' : stopWords());
  } else if (tune.complete) {
    figure('proof', 'optimal', 'no plan of the space is faster');
  } else {
    const known = isNumber(tune.proven_within) && tune.proven_within < 1;
    figure('proof', known ? 'within ' + share(100 * tune.proven_within) : 'none', stopWords());
  }
}

// --- Plans --------------------------------------------------------------------------------------

function drawRanked() {
  if (tune.ranked.length === 0) return;
  const parent = card('ranked', 'The best plans');
  if (data.why) element('p', data.why[0].toUpperCase() + data.why.slice(1) + '.', parent);
  const best = tune.ranked[0].step_time_s;
  table(parent, [{title: '#'}, {title: 'step', unit: 's', format: seconds},
    {title: 'behind', unit: '%', format: percent},
    {title: 'tokens/s', unit: 'tokens/s', format: count},
    {title: 'GPU memory', unit: 'bytes', format: bytes},
    {title: 'CPU memory', unit: 'bytes', format: bytes},
    {title: 'no faster than', unit: 's', format: seconds},
    {title: 'what differs from the best', kind: 'name'}],
  tune.ranked.map((one, i) => [i + 1, one.step_time_s, 100 * (one.step_time_s / best - 1),
    one.tokens_per_s, one.gpu_bytes, one.cpu_bytes, one.bound_s > 0 ? one.bound_s : null,
    i === 0 ? 'the best' : one.differs]));
}

function drawInfeasible() {
  if (!tune.reasons || tune.reasons.length === 0) return;
  const parent = card('infeasible', 'What does not fit',
    `${count(tune.infeasible)} of ${count(tune.considered)} ${counted}, by reason.`);
  table(parent, [{title: counted, format: count}, {title: 'reason', kind: 'name'},
    {title: 'the nearest of them', kind: 'name'}],
  tune.reasons.map((one) => [one.plans, one.reason, one.nearest]));
}

function drawStrategies() {
  if (!tune.strategies || tune.strategies.length === 0) return;
  table(card('strategies', 'Famous strategies here',
    'Whether each strategy that is shipped fits, and if not why.'),
  [{title: 'strategy', kind: 'name key'}, {title: 'fits', kind: 'name'},
    {title: 'step', unit: 's', format: seconds}, {title: 'reason', kind: 'name'}],
  tune.strategies.map((one) => [one.name, {
    text: one.fits === null ? 'not decided' : one.fits ? 'yes' : 'no',
    kind: one.fits === false ? 'bad' : ''}, isNumber(one.step_time_s) ? one.step_time_s : null,
  one.reason || null]));
}

function drawMeasuredPlans() {
  if (!tune.measured || tune.measured.length === 0) return;
  const parent = card('measured', 'Plans that really ran', 'Predicted beside measured, and ' +
    'predicted again after the profile was refitted to what these runs showed.');
  chart(parent, {label: 'Predicted beside measured', height: 90 + 46 * tune.measured.length},
    () => ({
      type: 'bar',
      data: {labels: tune.measured.map((_, i) => `plan ${i + 1}`), datasets: [
        ['predicted', 'predicted_step_time_s', 'predicted'],
        ['refitted', 'refitted_step_time_s', 'recompute'],
        ['measured', 'step_time_s', 'measured']].map(([label, key, shade]) => ({label,
        data: tune.measured.map((one) => one[key]), backgroundColor: color(shade),
        maxBarThickness: 14}))},
      options: {
        indexAxis: 'y', interaction: {mode: 'index', axis: 'y', intersect: false},
        scales: {x: axis('step time', seconds, {beginAtZero: true}), y: nameAxis()},
        plugins: {tooltip: {callbacks: {
          label: (item) => `${item.dataset.label} ${seconds(item.raw)}`}}},
      },
    }));
  const time = {unit: 's', format: seconds}, error = {unit: '%', format: percent};
  table(parent, [{title: '#'}, {title: 'measured', ...time}, {title: 'predicted', ...time},
    {title: 'error', ...error}, {title: 'refitted', ...time}, {title: 'error refitted', ...error},
    {title: 'what differs from the best', kind: 'name'}],
  tune.measured.map((one, i) => [i + 1, one.step_time_s, one.predicted_step_time_s,
    one.error_percent, one.refitted_step_time_s, one.refitted_error_percent,
    one.differs || 'the best']));
}

// --- Frontier -----------------------------------------------------------------------------------

function frontierTable(parent, points) {
  table(parent, [{title: 'devices'}, {title: 'plan', kind: 'name'},
    {title: 'GPU memory', unit: 'bytes', format: bytes},
    {title: 'CPU memory', unit: 'bytes', format: bytes},
    {title: 'step', unit: 's', format: seconds},
    {title: 'tokens/s', unit: 'tokens/s', format: count},
    {title: 'tokens/s a device', unit: 'tokens/s', format: count},
    {title: 'price of 10⁶ tokens', unit: 'price', format: plain},
    {title: 'energy of a token', unit: 'J', format: (value) => digits(value) + ' J'}],
  points.map((one) => [one.devices, one.label || one.differs || '', one.memory_bytes.hbm,
    isNumber(one.memory_bytes.dram) ? one.memory_bytes.dram : null, one.step_time_s,
    one.tokens_per_s, one.tokens_per_s_per_device,
    isNumber(one.cost_per_million_tokens) ? one.cost_per_million_tokens : null,
    isNumber(one.joules_per_token) ? one.joules_per_token : null]));
}

function drawFrontier() {
  const points = tune.frontier;
  if (!points || points.length === 0) return;
  const parent = card('frontier', 'Throughput against memory',
    'Plans that no other beats in throughput, memory and devices at once. ' +
    'GPU memory is that of one device.');
  const devices = [...new Set(points.map((one) => one.devices))].sort((a, b) => a - b);
  const rates = points.map((one) => one.tokens_per_s);
  const wide = Math.max(...rates) > 8 * Math.min(...rates);
  const sizes = points.map((one) => one.memory_bytes.hbm);
  chart(parent, {label: 'Throughput against memory', height: 400}, () => ({
    type: 'scatter',
    data: {datasets: devices.map((number, i) => ({
      label: number === 1 ? '1 device' : `${number} devices`, showLine: true, borderWidth: 1,
      borderColor: seriesColor(i), backgroundColor: seriesColor(i), pointRadius: 5,
      pointHoverRadius: 7, pointStyle: kMarks[i % 4],
      data: points.filter((one) => one.devices === number)
        .sort((a, b) => a.memory_bytes.hbm - b.memory_bytes.hbm)
        .map((one) => ({x: one.memory_bytes.hbm, y: one.tokens_per_s, of: one})),
    }))},
    options: {
      scales: {
        x: {...axis('GPU memory of a device', bytes,
          {beginAtZero: Math.min(...sizes) < Math.max(...sizes) / 2, grace: '5%'}), ticks: {
          color: color('quiet'), callback: bytes, maxRotation: 0,
          stepSize: byteSteps(Math.max(...sizes)).stepSize}},
        y: wide ? axis('tokens/s', logarithmic(Math.min(...rates), Math.max(...rates), count),
          {type: 'logarithmic'}) : axis('tokens/s', count,
            {beginAtZero: Math.min(...rates) < Math.max(...rates) / 2, grace: '5%'}),
      },
      plugins: {
        legend: {labels: {usePointStyle: true}},
        tooltip: {callbacks: {label: ({raw: {of}}) => [of.label || '',
          `${rate(of.tokens_per_s)} with ${bytes(of.memory_bytes.hbm)}`,
          `${of.devices} device${of.devices === 1 ? '' : 's'}, step ${seconds(of.step_time_s)}`]
          .filter(Boolean)}},
      },
    },
  }));
  frontierTable(parent, points);
}

// --- Sensitivity --------------------------------------------------------------------------------

const kMostCurves = 6;

function nameOf(one) { return one.name || one.key.replace(/^machine\./, ''); }

function sensitivityCurves(parent, list) {
  const shown = list.filter((one) => one.points.length > 1).slice(0, kMostCurves);
  if (shown.length === 0) return;
  const factors = [...new Set(shown.flatMap((one) => one.points.map((point) => point.factor)))]
    .sort((a, b) => a - b);
  chart(parent, {label: 'Step time by a change of each number', height: 380}, () => ({
    type: 'line',
    data: {datasets: joinCoinciding(shown.map((one, i) => ({
      label: nameOf(one), borderColor: seriesColor(i), backgroundColor: seriesColor(i),
      borderWidth: 2, borderDash: kDashes[i], spanGaps: false, pointHoverRadius: 7, clip: false,
      pointRadius: one.points.map((point) => (point.differs || []).length > 0 ? 6 : 3),
      pointStyle: one.points.map((point) => (point.differs || []).length > 0 ? 'rectRot' :
        'circle'),
      data: one.points.map((point) => ({x: point.factor, y: point.step_time_s, of: point})),
      unit: one.unit || '',
    })))},
    options: {
      scales: {
        x: axis('factor', undefined, {type: 'logarithmic', min: factors[0],
          max: factors[factors.length - 1],
          ...ticksAt(factors, (value) => '× ' + Number(value.toPrecision(2)), true)}),
        y: axis('step time of the best plan', seconds),
      },
      plugins: {legend: {labels: {usePointStyle: true, pointStyle: 'line', boxWidth: 30}},
        tooltip: {callbacks: {
        title: (items) => `${items[0].dataset.label} × ${plain(items[0].raw.x)}`,
        label: ({dataset: {unit, names}, raw: {of}}) => {
          if (names.length > 1) return seconds(of.step_time_s);
          const lines = [`${plain(of.value)} ${unit}: ${seconds(of.step_time_s)}`];
          if (isNumber(of.same_plan_step_time_s)) {
            lines.push(`the plan of today: ${seconds(of.same_plan_step_time_s)}`);
          }
          return lines.concat((of.differs || []).map((text) => shortened(text, 70)));
        },
      }}},
    },
  }));
}

function tornado(parent, list) {
  const shown = list.filter((one) => isNumber(one.elasticity));
  if (shown.length === 0) return;
  chart(parent, {label: 'Elasticity of the step time', height: 70 + 26 * shown.length}, () => ({
    type: 'bar',
    data: {labels: shown.map((one) => wrapped(nameOf(one), 30)), datasets: [{
      label: 'elasticity', data: shown.map((one) => one.elasticity), maxBarThickness: 18,
      backgroundColor: shown.map((one) => one.elasticity < 0 ? color('gain') : color('bad')),
    }]},
    options: {
      indexAxis: 'y', interaction: {mode: 'index', axis: 'y', intersect: false},
      scales: {x: axis('change of the step time in percent, for 1 % more', plain), y: nameAxis()},
      plugins: {legend: {display: false}, tooltip: {callbacks: {label: (item) =>
        `1 % more changes the step time by ${percentFine(item.raw)}`}}},
    },
  }));
}
function percentFine(value) {
  return (value > 0 ? '+' : '') + Number(value.toPrecision(2)) + ' %';
}

// The points in order, with the machine as it is among them.
function withToday(one) {
  const points = (one.points || []).filter((point) => isNumber(point.factor));
  if (!points.some((point) => point.factor === 1) && tune.ranked.length > 0) {
    points.push({factor: 1, value: one.value, step_time_s: tune.ranked[0].step_time_s});
  }
  return {...one, points: points.sort((a, b) => a.factor - b.factor)};
}

function drawSensitivities() {
  const list = (tune.sensitivities || []).map(withToday);
  if (list.length === 0) return;
  const parent = card('sensitivities', 'What the answer depends on',
    'Each number of the machine changed alone, and the best plan looked for again. Large ' +
    'diamonds: another plan is best there. ' + (list.length > kMostCurves ?
      `Drawn are the ${kMostCurves} that matter most.` : ''));
  sensitivityCurves(parent, list);
  const turns = card('elasticities', 'What would make it faster',
    'By how many percent a step becomes longer where one number is 1 % larger; below zero it ' +
    'becomes shorter.');
  tornado(turns, list);
  table(turns, [{title: 'number', kind: 'name key'}, {title: 'value', format: plain},
    {title: 'unit', kind: 'name'}, {title: 'elasticity', format: (value) => value.toFixed(3)},
    {title: 'another plan wins from', format: plain}, {title: 'factor', format: plain},
    {title: 'which differs in', kind: 'name'}],
  list.map((one) => {
    const turn = one.switches_at;
    return [one.key, one.value, one.unit || unitOf(one.key), one.elasticity,
      turn ? turn.value : null, turn ? turn.factor : null,
      turn ? (turn.differs || []).map((text) => shortened(text, 60)).join(', ') :
        'no change of plan in this range'];
  }));
}

// --- Ablation -----------------------------------------------------------------------------------

function ablationBars(ablation) {
  const bars = [];
  let at = null;
  if (ablation.start) {
    at = ablation.start.step_time_s;
    bars.push({name: ablation.start.label, from: 0, to: at, kind: 'predicted', total: at});
  }
  for (const step of ablation.steps || []) {
    const next = step.step_time_s;
    const known = isNumber(at) && isNumber(next);
    bars.push({name: `${step.knob}: ${shortened(String(step.from), 22)} → ` +
      shortened(String(step.to), 28), from: known ? at : 0,
      to: isNumber(next) ? next : null, total: next, gain: known ? at - next : null,
      kind: !known ? 'predicted' : next <= at ? 'gain' : 'bad'});
    at = next;
  }
  bars.push({name: 'the best plan', from: 0, to: ablation.best_step_time_s, kind: 'measured',
    total: ablation.best_step_time_s});
  return bars;
}

function drawAblation() {
  if (!tune.ablation) return;
  const bars = ablationBars(tune.ablation);
  const parent = card('ablation', 'What each knob is worth',
    `From ${bars[0].name} to the best plan, one knob after another; each bar is what the step ` +
    'time loses or gains by that knob, with those above it set already.');
  const say = (bar) => bar.total === null || bar.total === undefined ? 'does not fit' :
    isNumber(bar.gain) ? `${bar.gain >= 0 ? '−' : '+'}${seconds(Math.abs(bar.gain))}, to ` +
      seconds(bar.total) : seconds(bar.total);
  // Behind the bars where there is room, else below the names.
  const labels = bars.map((bar) => isNarrow() ? [...wrapped(bar.name, 20), say(bar)] :
    wrapped(bar.name, 38));
  const row = Math.max(30, 12 + 15 * Math.max(...labels.map((lines) => lines.length)));
  chart(parent, {label: 'Step time, one knob after another', height: 60 + row * bars.length},
    () => ({
      type: 'bar', plugins: isNarrow() ? [] : [barLabels],
      data: {labels, datasets: [{
        data: bars.map((bar) => isNumber(bar.to) ? [bar.from, bar.to] : [0, 0]),
        backgroundColor: bars.map((bar) => color(bar.kind)), maxBarThickness: 20,
        minBarLength: 2}]},
      options: {
        indexAxis: 'y', interaction: {mode: 'index', axis: 'y', intersect: false},
        layout: {padding: {right: 8}},
        scales: {x: axis('step time', seconds, {beginAtZero: true,
          grace: isNarrow() ? '5%' : '28%'}), y: nameAxis()},
        plugins: {legend: {display: false}, barLabels: {texts: bars.map(say)},
          tooltip: {callbacks: {label: (item) => say(bars[item.dataIndex])}}},
      },
    }));
  table(parent, [{title: 'knob', kind: 'name key'}, {title: 'from', kind: 'name'},
    {title: 'to', kind: 'name'}, {title: 'step', unit: 's', format: seconds},
    {title: 'gain', unit: 's', format: seconds}],
  (tune.ablation.steps || []).map((step) => [step.knob, String(step.from), String(step.to),
    isNumber(step.step_time_s) ? step.step_time_s : 'does not fit',
    isNumber(step.gain_s) ? step.gain_s : null]));
}

// A text behind each bar of a horizontal chart.
const barLabels = {
  id: 'barLabels',
  afterDatasetsDraw(chart, _, options) {
    const {ctx, chartArea} = chart;
    ctx.save();
    ctx.fillStyle = color('text');
    ctx.font = `12px ${Chart.defaults.font.family}`;
    ctx.textBaseline = 'middle';
    chart.getDatasetMeta(0).data.forEach((bar, i) => {
      const end = Math.max(bar.x, bar.base) + 6, width = ctx.measureText(options.texts[i]).width;
      ctx.fillText(options.texts[i], Math.min(end, chartArea.right - width), bar.y);
    });
    ctx.restore();
  },
};

function drawTunePage() {
  subtitle(data.plan_text || (isRanking ? 'None of the layouts that were ranked fits.' :
    'No plan of the space that was searched fits.'));
  drawTuneFigures();
  drawNotes(tune.notes);
  drawRanked();
  drawMeasuredPlans();
  drawFrontier();
  drawSensitivities();
  drawAblation();
  drawStrategies();
  drawInfeasible();
  if (data.missing) {
    element('p', `The best plan is not drawn here: ${data.missing}`,
      card('missing', 'The best plan'), 'quiet');
  }
  if (prediction && tune.ranked.length > 0) drawPlanSections();
}
