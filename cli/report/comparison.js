// The page of a comparison: a number of every cell by whatever was crossed, memory against the
// capacity, what does not fit, and all cells.

const comparison = data.comparison;
const kMostFacets = 8;
const kMostMemoryRows = 24;

// The keys of a cell that can be drawn, by the name of the metric. Axes say their unit in the
// title, so `format` may leave it out; `say` never does.
const kCellMetrics = {
  tokens_per_s: {key: 'tokens_per_s', title: 'tokens/s', format: count, unit: 'tokens/s',
    say: rate},
  tokens_per_s_per_device: {key: 'tokens_per_s_per_device', title: 'tokens/s a device',
    format: count, unit: 'tokens/s', say: (value) => rate(value) + ' a device'},
  step_time: {key: 'step_time_s', title: 'step time', format: seconds, unit: 's', low: true,
    say: seconds},
  mfu: {key: 'mfu_percent', title: 'share of the nominal peak (MFU)', head: 'MFU',
    format: share, unit: '%', say: share},
  gpu_memory: {key: 'peak_gpu_bytes', title: 'GPU memory', format: bytes, unit: 'bytes',
    low: true, say: bytes},
  cost_per_token: {key: 'cost_per_million_tokens', title: 'price of 10⁶ tokens', format: price,
    unit: 'price', low: true, say: (value) => price(value) + ' for 10⁶ tokens'},
  run_days: {key: 'run_days', title: 'days of the whole run', format: digits, unit: 'days',
    low: true, say: (value) => digits(value) + ' days'},
  run_cost: {key: 'run_cost', title: 'price of the whole run', format: count, unit: 'price',
    low: true, say: (value) => count(value) + ' for the whole run'},
  run_energy: {key: 'run_energy_kwh', title: 'energy of the whole run at most', format: energy,
    unit: 'kWh', low: true, say: (value) => energy(value) + ' at most'},
};

// --- What was crossed ---------------------------------------------------------------------------

function crossed(axes) { return axes.filter((one) => one.values.length > 1); }
function valueName(name, value) {
  return ['model', 'machine', 'strategy', 'offer'].includes(name) ? value :
    name === 'devices' ? `${value} device${value === '1' ? '' : 's'}` : valueWithUnit(name, value);
}
function columnOf(cell) {
  const parts = crossed(comparison.columns).map((one) => valueName(one.name, cell.at[one.name]));
  if (parts.length > 0) return parts.join(', ');
  const strategy = comparison.columns.find((one) => one.name === 'strategy');
  return strategy ? strategy.values[0] : 'the plan';
}

// Which row axis runs along the chart: of sweeps and models the one with the most values, else the
// first; the others divide the cells into charts of their own.
function layoutOfCells() {
  const rows = crossed(comparison.rows);
  const long = rows.filter((one) => one.sweep || one.name === 'model')
    .sort((a, b) => b.values.length - a.values.length || Number(b.sweep) - Number(a.sweep));
  const along = long[0] || rows[0] || null;
  const others = rows.filter((one) => one !== along);
  const facets = new Map();
  for (const cell of comparison.cells) {
    const name = others.map((one) => valueName(one.name, cell.at[one.name])).join(', ');
    if (!facets.has(name)) facets.set(name, []);
    facets.get(name).push(cell);
  }
  return {along, facets, series: [...new Set(comparison.cells.map(columnOf))]};
}

// Numbers along an axis where it has some: a sweep's values, or the parameters of models.
function numbersAlong(along, cells) {
  if (!along) return null;
  if (along.sweep) return {title: nameWithUnit(along.name), format: plain,
    of: (cell) => Number(cell.at[along.name])};
  const sizes = new Set(cells.map((cell) => cell.parameters));
  if (along.name === 'model' && along.values.length >= 4 && sizes.size === along.values.length &&
      [...sizes].every(isNumber)) {
    const names = new Map(cells.map((cell) => [cell.parameters, cell.at.model]));
    return {title: 'model and its parameters', of: (cell) => cell.parameters,
      format: (value) => [shortened(names.get(value), 16), parameters(value)]};
  }
  return null;
}

// Of one that is not decided nobody knows.
function doesNotFit(cell) { return cell.fits === false; }
function reasonOf(cell) { return `${columnOf(cell)}: does not fit. ${cell.reason}`; }
// Tips have no room for a sentence.
function wrappedReasons(cells) { return cells.flatMap((cell) => wrapped(reasonOf(cell), 70)); }

// The axis of a metric: from zero, or logarithmic where the largest would hide the smallest; and
// the value at its foot.
function metricAxis(cells, metric) {
  const all = cells.filter((cell) => cell.fits && isNumber(cell[metric.key]))
    .map((cell) => cell[metric.key]);
  const least = Math.min(...all), most = Math.max(...all);
  if (!(least > 0) || most < 40 * least) {
    return {foot: 0, scale: axis(metric.title, metric.format, {beginAtZero: true})};
  }
  const foot = 10 ** Math.floor(Math.log10(least * 0.9));
  return {foot, scale: axis(metric.title + ', logarithmic', logarithmic(foot, most, metric.format),
    {type: 'logarithmic', min: foot})};
}

// --- A metric by a number: lines ----------------------------------------------------------------

function lineChart(parent, {cells, numbers, series, metric, label}) {
  const all = [...new Set(cells.map(numbers.of))].sort((a, b) => a - b);
  const log = all[0] > 0 && all[all.length - 1] >= 8 * all[0];
  chart(parent, {label, height: 340}, () => {
    const {foot, scale: y} = metricAxis(cells, metric);
    const sets = joinCoinciding(series.map((name, i) => ({
      label: name, borderColor: seriesColor(i), backgroundColor: seriesColor(i), borderWidth: 2,
      borderDash: kDashes[i % kSeries], pointStyle: kMarks[i % 4], pointRadius: 4, clip: false,
      pointHoverRadius: 6, spanGaps: false,
      data: cells.filter((cell) => columnOf(cell) === name)
        .map((cell) => ({x: numbers.of(cell), y: cell.fits ? cell[metric.key] : null, of: cell}))
        .sort((a, b) => a.x - b.x),
    })));
    const misfits = cells.filter(doesNotFit);
    if (misfits.length > 0) {
      sets.push({label: 'does not fit', type: 'scatter', pointStyle: 'crossRot', pointRadius: 6,
        pointHoverRadius: 8, pointBorderWidth: 2, clip: false, borderColor: color('bad'),
        backgroundColor: color('bad'),
        data: misfits.map((cell) => ({x: numbers.of(cell), y: foot, of: cell}))});
    }
    return {
      type: 'line', data: {datasets: sets},
      options: {
        interaction: {mode: 'x', intersect: false},
        scales: {
          x: axis(numbers.title, undefined, {type: log ? 'logarithmic' : 'linear', min: all[0],
            max: all[all.length - 1], ...ticksAt(all, numbers.format, log)}),
          y,
        },
        plugins: {
          legend: {labels: {usePointStyle: true}},
          tooltip: {callbacks: {
            title: (items) => comparison.rows.filter((one) => one.values.length > 1)
              .map((one) => valueName(one.name, items[0].raw.of.at[one.name])).join(', '),
            label: ({raw: {of}, dataset}) => of.fits ?
              `${dataset.label} ${metric.say(of[metric.key])}${of.best ? ', the best' : ''}` :
              wrapped(reasonOf(of), 70),
          }},
        },
      },
    };
  });
}

// --- A metric by names: bars --------------------------------------------------------------------

// Where a bar is missing, upright: why.
const misfitMarks = {
  id: 'misfitMarks',
  afterDatasetsDraw(chart, _, options) {
    const {ctx, scales: {y}} = chart;
    ctx.save();
    ctx.fillStyle = color('bad');
    ctx.font = `12px ${Chart.defaults.font.family}`;
    ctx.textBaseline = 'middle';
    options.obstacles.forEach((list, set) => list.forEach((text, index) => {
      const bar = chart.getDatasetMeta(set).data[index];
      if (!text || !bar || chart.getDatasetMeta(set).hidden) return;
      ctx.save();
      ctx.translate(bar.x, y.bottom - 6);
      ctx.rotate(-Math.PI / 2);
      ctx.fillText('✕ ' + text, 0, 0);
      ctx.restore();
    }));
    ctx.restore();
  },
};

function barChart(parent, {cells, along, series, metric, label}) {
  const values = along ? along.values : [''];
  const sorted = along && along.name === 'model' ? [...values].sort((a, b) => {
    const size = (value) => (cells.find((cell) => cell.at.model === value) || {}).parameters || 0;
    return size(a) - size(b);
  }) : values;
  const at = (value, name) => cells.find((cell) =>
    (!along || cell.at[along.name] === value) && columnOf(cell) === name);
  const names = sorted.map((value) => {
    const cell = cells.find((one) => along && one.at[along.name] === value);
    const size = along && along.name === 'model' && cell && cell.parameters;
    return along ? wrapped(valueName(along.name, value), 22)
      .concat(size ? [parameters(size)] : []) : '';
  });
  const grid = series.map((name) => sorted.map((value) => at(value, name)));
  chart(parent, {label, height: 340}, () => ({
    type: 'bar', plugins: [misfitMarks],
    data: {labels: names, datasets: series.map((name, i) => ({
      label: name, backgroundColor: seriesColor(i), maxBarThickness: 56,
      data: grid[i].map((cell) => cell && cell.fits ? cell[metric.key] : null)}))},
    options: {
      interaction: {mode: 'index', intersect: false},
      scales: {x: {...nameAxis(), title: {display: Boolean(along), color: color('quiet'),
        text: !along ? '' : along.name === 'model' ? 'model and its parameters' : along.name}},
      y: metricAxis(cells, metric).scale},
      plugins: {
        misfitMarks: {obstacles: grid.map((list) =>
          list.map((cell) => cell && !cell.fits ? cell.obstacle : ''))},
        tooltip: {
          filter: (item) => isNumber(item.raw),
          callbacks: {
            label: (item) => `${item.dataset.label} ${metric.say(item.raw)}` +
              (grid[item.datasetIndex][item.dataIndex].best ? ', the best' : ''),
            afterBody: (items) => items.length === 0 ? [] : wrappedReasons(
              grid.map((list) => list[items[0].dataIndex])
                .filter((cell) => cell && doesNotFit(cell))),
          },
        },
      },
    },
  }));
}

function drawMetric(parent, {along, facets, series}, metric) {
  const shown = [...facets].slice(0, kMostFacets);
  const box = shown.length > 1 ? element('div', undefined, parent, 'columns') : parent;
  for (const [name, cells] of shown) {
    const part = shown.length > 1 ? element('div', undefined, box, 'facet') : box;
    if (name) element('h3', name, part);
    const numbers = numbersAlong(along, cells);
    const label = `${metric.title} ${name}`;
    if (numbers) lineChart(part, {cells, numbers, series, metric, label});
    else barChart(part, {cells, along, series, metric, label});
  }
  if (facets.size > shown.length) {
    element('p', `Drawn are ${shown.length} of ${facets.size} combinations; the table below has ` +
      'all of them.', parent, 'quiet');
  }
}

function drawMetrics(layout) {
  const parent = card('metric', '');
  const head = element('h2', undefined, parent);
  const available = Object.entries(kCellMetrics).filter(([, metric]) =>
    comparison.cells.some((cell) => isNumber(cell[metric.key])));
  const known = available.some(([name]) => name === comparison.metric);
  if (available.length === 0) {
    parent.remove();
    return;
  }
  const choice = element('label', 'Show ', parent, 'choice');
  const select = element('select', undefined, choice);
  for (const [name, metric] of available) element('option', metric.title, select).value = name;
  select.value = known ? comparison.metric : available[0][0];
  const misfits = comparison.cells.filter(doesNotFit).length;
  if (misfits > 0) {
    element('p', `A cross marks what does not fit (${misfits} of ${comparison.cells.length} ` +
      'cells). Point at it to see why.', parent, 'quiet');
  }
  const box = element('div', undefined, parent);
  const show = () => {
    const metric = kCellMetrics[select.value];
    const axes = [layout.along && layout.along.name, ...crossed(comparison.columns)
      .map((one) => one.name)].filter(Boolean);
    const title = metric.title[0].toUpperCase() + metric.title.slice(1);
    head.textContent = title + (axes.length > 0 ? ' by ' + axes.join(' and ') : '');
    dropCharts(box);
    box.replaceChildren();
    drawMetric(box, layout, metric);
  };
  select.addEventListener('change', show);
  show();
}

// --- Memory -------------------------------------------------------------------------------------

// Neighbours along the chart's axis that hold the same are one bar.
function memoryGroups({along, facets, series}) {
  const groups = [];
  for (const [facet, cells] of facets) {
    for (const name of series) {
      let last = null;
      for (const cell of cells.filter((one) => columnOf(one) === name)) {
        const same = along && along.sweep && last && last.cell.fits === cell.fits &&
          JSON.stringify(last.cell.memory) === JSON.stringify(cell.memory);
        if (same) {
          last.to = cell.at[along.name];
          continue;
        }
        last = {name, facet, cell, from: along ? cell.at[along.name] : '', to: null};
        groups.push(last);
      }
    }
  }
  return groups;
}

function drawComparedMemory(layout) {
  const {along} = layout;
  const groups = memoryGroups(layout).filter((one) => one.cell.memory);
  const row = columns();
  for (const place of ['hbm', 'dram']) {
    const here = groups.filter((one) => one.cell.memory[place]);
    if (here.length === 0) continue;
    const parent = card('memory-' + place, `${kPlaces[place]} at the peak, by category`,
      undefined, row);
    const rows = here.slice(0, kMostMemoryRows).map(({name, facet, cell, from, to}) => {
      const at = along ? valueName(along.name, to ? `${from} to ${to}` : from) : '';
      const {bytes: total, usable_bytes: limit, categories} = cell.memory[place];
      return {name: (cell.fits ? '' : '✕ ') + [at, facet, name].filter(Boolean).join(', '), total,
        limit, held: heldBy(categories, total)};
    });
    const marked = memoryChart(parent, `${kPlaces[place]} by category against the capacity`, rows);
    element('p', (marked ? 'The upright mark is what may be used. ' : 'The capacity is ' +
      'beyond this scale: ' + bytes(Math.max(...rows.map((one) => one.limit || 0))) + '. ') +
      (here.some((one) => !one.cell.fits) ? '✕: does not fit. ' : '') +
      (here.length > rows.length ? `Drawn are ${rows.length} of ${here.length} bars.` : ''),
    parent, 'quiet');
  }
  if (!row.firstChild) row.remove();
}

// --- Words and the table ------------------------------------------------------------------------

function drawComparisonFigures() {
  const fitting = comparison.cells.filter((cell) => cell.fits);
  const metric = kCellMetrics[comparison.metric] || kCellMetrics.tokens_per_s;
  const open = comparison.cells.filter((cell) => cell.fits === null).length;
  figure('cells', String(comparison.cells.length),
    `${fitting.length} fit` + (open > 0 ? `, ${open} not decided` : ''));
  const known = fitting.filter((cell) => isNumber(cell[metric.key]));
  if (known.length > 0) {
    const sign = metric.low ? -1 : 1;
    const best = known.reduce((a, b) => sign * (b[metric.key] - a[metric.key]) > 0 ? b : a);
    const rows = crossed(comparison.rows).map((one) => valueName(one.name, best.at[one.name]));
    figure('best of all', metric.say(best[metric.key]),
      [columnOf(best), ...rows].join(', '));
  }
  const wins = new Map();
  for (const name of comparison.cells.filter((cell) => cell.best).map(columnOf)) {
    wins.set(name, (wins.get(name) || 0) + 1);
  }
  const most = [...wins].sort((a, b) => b[1] - a[1])[0];
  if (most && comparison.best.length > 1) {
    figure('most often the best', most[0], `in ${most[1]} of ${comparison.best.length} rows`);
  }
}

function drawCrossings() {
  if (comparison.crossings.length === 0) return;
  const parent = card('crossings', 'Where the best changes');
  const list = element('ul', undefined, parent);
  for (const one of comparison.crossings) {
    const varying = crossed(comparison.rows).map((axis) => axis.name);
    const others = Object.entries(one.at).filter(([name]) => varying.includes(name))
      .map(([name, value]) => valueName(name, value)).join(', ');
    element('li', `${others ? others + ': ' : ''}between ${one.axis} ${plain(one.from)} and ` +
      `${plain(one.to)} ${unitOf(one.axis)} the best changes from ` +
      `${one.before || 'nothing that fits'} to ${one.after || 'nothing that fits'}.`, list);
  }
}

// The axes of cells as columns of a table: those that were crossed, for what is the same everywhere
// stands in the title.
function axisColumns() {
  const all = [...comparison.rows, ...comparison.columns];
  const axes = crossed(all).length > 0 ? crossed(all) : all;
  const numeric = (value) => value !== '' && isNumber(Number(value)) ? Number(value) : value;
  return {heads: axes.map((one) => ({title: nameWithUnit(one.name), format: plain,
    kind: one.sweep ? undefined : 'name key'})),
  of: (cell) => axes.map((one) => numeric(cell.at[one.name]))};
}

function drawMisfits() {
  const misfits = comparison.cells.filter(doesNotFit);
  if (misfits.length === 0) return;
  const {heads, of} = axisColumns();
  table(card('misfits', 'What does not fit'), [...heads, {title: 'why', kind: 'name'}],
    misfits.map((cell) => [...of(cell), {text: cell.reason, kind: 'bad'}]));
}

function drawCells() {
  const {heads, of} = axisColumns();
  const metrics = Object.values(kCellMetrics).concat([
    {key: 'peak_cpu_bytes', title: 'CPU memory', format: bytes, unit: 'bytes'}])
    .filter((metric) => comparison.cells.some((cell) => isNumber(cell[metric.key])) &&
      !(buyersCells().length > 0 && kOfBuyers.includes(metric.key)));
  const parent = card('cells', 'Every cell');
  table(parent, [...heads,
    ...metrics.map(({head, title, unit, format}) => ({title: head || title, unit, format})),
    {title: 'of its row', kind: 'name'}],
  comparison.cells.map((cell) => [...of(cell),
    ...metrics.map(({key}) => isNumber(cell[key]) ?
      {value: cell[key], kind: cell.best ? 'fitted' : ''} : null),
    cell.best ? 'the best' : cell.fits ? null :
      {text: doesNotFit(cell) ? `does not fit: ${cell.obstacle}` : cell.obstacle, kind: 'bad'}]));
  for (const note of comparison.notes || []) element('p', `Note: ${note}.`, parent, 'quiet');
}

// --- Offers -------------------------------------------------------------------------------------

// What the table of offers says already.
const kOfBuyers = ['cost_per_million_tokens', 'run_days', 'run_cost', 'run_energy_kwh'];
function buyersCells() {
  return comparison.cells.filter((cell) => 'level_price_per_device_hour' in cell);
}

function standingOf(cell) {
  if (!isNumber(cell.level_price_per_device_hour)) return null;
  const level = price(cell.level_price_per_device_hour);
  const near = cell.told_apart === false ? '; too near to tell apart' : '';
  return (cell.cheapest ? `cheapest up to ${level}, then ${cell.level_with}` :
    `level with ${cell.level_with} at ${level}`) + near;
}

// What a buyer asks: of every offer the price, the days and the energy, and which price would
// change the order.
function drawOffers() {
  const cells = buyersCells();
  if (cells.length === 0) return;
  const {heads, of} = axisColumns();
  const powers = cells.some((cell) => isNumber(cell.power_watts));
  table(card('offers', 'What a buyer asks', 'Prices are those of the offers, for a GPU and an ' +
    'hour; what would change the ranking is such a price too.' + (powers ? ' Energy is what it ' +
    'is at most: every GPU at the power of its machine throughout, without what that leaves out.' :
    '')),
  [...heads, {title: 'fits', kind: 'name'}, {title: 'step', unit: 's', format: seconds},
    {title: 'price of 10⁶ tokens', unit: 'price', format: price},
    {title: 'days', unit: 'days', format: digits},
    {title: 'price of the run', unit: 'price', format: count},
    {title: 'energy at most', unit: 'kWh', format: energy},
    {title: 'what would change the ranking', kind: 'name'}],
  cells.map((cell) => [...of(cell), cell.fits ? 'yes' : {text: cell.fits === null ?
    cell.obstacle : `no: ${cell.obstacle}`, kind: 'bad'}, cell.step_time_s,
  cell.cost_per_million_tokens, isNumber(cell.run_days) ? cell.run_days : null,
  isNumber(cell.run_cost) ? cell.run_cost : null,
  !cell.fits ? null : isNumber(cell.run_energy_kwh) ? cell.run_energy_kwh :
    isNumber(cell.power_watts) ? null : 'not known', standingOf(cell)]));
}

function drawComparisonPage() {
  const words = [...comparison.rows, ...comparison.columns]
    .filter((one) => one.values.length > 1).map((one) => `${one.values.length} × ${one.name}`);
  subtitle(words.length > 0 ? 'Compared: ' + words.join(', ') : '');
  const layout = layoutOfCells();
  drawComparisonFigures();
  drawOffers();
  drawMetrics(layout);
  drawCrossings();
  drawComparedMemory(layout);
  drawMisfits();
  drawCells();
}
