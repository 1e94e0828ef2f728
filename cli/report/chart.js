// Charts by Chart.js, drawn again when the colours change and before the page is printed.

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue('--' + name).trim();
}
// Told apart by people with any colour vision; by dash and mark as well in lines.
const kSeries = 8;
const kMarks = ['circle', 'rect', 'triangle', 'rectRot'];
const kDashes = [[], [6, 3], [2, 3], [8, 3, 2, 3], [12, 4], [4, 2], [1, 2], [10, 2, 2, 2, 2, 2]];
function seriesColor(index) { return color('series-' + index % kSeries); }

// Every chart that the page has: its box, and what makes its configuration.
const drawings = [];

function draw(drawing) {
  if (drawing.chart) drawing.chart.destroy();
  const configuration = drawing.make();
  const options = configuration.options;
  const asked = (options.plugins || {}).legend || {};
  const marks = (asked.labels || {}).usePointStyle;
  drawing.box.replaceChildren();
  const canvas = element('canvas', undefined, drawing.box);
  canvas.setAttribute('role', 'img');
  canvas.setAttribute('aria-label', drawing.label);
  configuration.options = {
    responsive: true, maintainAspectRatio: false, animation: false, ...options,
    plugins: {
      ...options.plugins,
      legend: {
        position: 'bottom', ...asked,
        labels: {color: color('text'), boxWidth: marks ? 7 : 12,
          boxHeight: marks ? 7 : 12, ...asked.labels},
      },
    },
  };
  drawing.chart = new Chart(canvas, configuration);
}
function redraw() { drawings.forEach(draw); }

// A chart of this height in pixels below `parent`. `make` returns type, data and options; it is
// called again whenever colours change. `label` is what a screen reader says.
function chart(parent, {label, height}, make) {
  const box = element('div', undefined, parent, 'chart');
  box.style.height = height + 'px';
  const drawing = {box, make, label, chart: null};
  drawings.push(drawing);
  draw(drawing);
  return drawing;
}

// Forgets the charts in a box that is about to be emptied.
function dropCharts(box) {
  for (let i = drawings.length - 1; i >= 0; --i) {
    if (!box.contains(drawings[i].box)) continue;
    drawings[i].chart.destroy();
    drawings.splice(i, 1);
  }
}

function axis(title, format, extra) {
  return {
    // Of a title that is longer than its axis the letters would be squeezed.
    title: {display: Boolean(title), text: isNarrow() ? wrapped(title, 28) : title,
      color: color('quiet')},
    ticks: {color: color('quiet'), callback: format, maxRotation: 0},
    grid: {color: color('line')}, ...extra,
  };
}
// An axis of names, all of them shown; long ones in several lines.
function nameAxis(extra) {
  return {ticks: {color: color('text'), autoSkip: false, maxRotation: 0}, grid: {display: false},
    ...extra};
}
// Names in lines of about this many letters, broken at blanks and commas.
function wrapped(text, width) {
  const lines = [''];
  for (const word of text.split(/(?<=[ ,:/_])/)) {
    const last = lines[lines.length - 1];
    if (last && (last + word).trimEnd().length > width) lines.push(word);
    else lines[lines.length - 1] = last + word;
  }
  return lines.map((line) => line.trimEnd());
}

// A logarithmic axis shows 1, 2 and 5 of every decade, or powers of ten where there are many.
function logarithmic(least, most, format) {
  const decades = Math.log10(most / least);
  const allowed = decades > 3 ? [1] : [1, 2, 5];
  return (value) => {
    const lead = Number((value / 10 ** Math.floor(Math.log10(value) + 1e-9)).toFixed(6));
    return allowed.includes(lead) ? format(value) : '';
  };
}
// Ticks at exactly these ascending values; a label that would run into the one before is left out.
function ticksAt(values, format, log) {
  const place = (value) => log ? Math.log(value) : value;
  const room = (isNarrow() ? 0.2 : 0.09) *
    (place(values[values.length - 1]) - place(values[0]));
  const shown = new Set();
  let last = -Infinity;
  for (const value of values) {
    if (place(value) - last < room) continue;
    last = place(value);
    shown.add(value);
  }
  return {
    afterBuildTicks: (scale) => { scale.ticks = values.map((value) => ({value})); },
    ticks: {color: color('quiet'), maxRotation: 0, autoSkip: false,
      callback: (value) => shown.has(value) ? format(value) : ''},
  };
}
function isNarrow() { return innerWidth < 600; }
// Ticks of a linear axis of bytes at round numbers of a binary unit.
function byteSteps(most) {
  const step = 2 ** Math.ceil(Math.log2(most / (isNarrow() ? 2 : 5)));
  return {max: Math.ceil(most / step) * step, stepSize: step};
}

// Lines that lie on each other as one, whose name says all of theirs: the others would be hidden
// below the last. They do where no point is further apart than the width of a line, of some 300
// pixels of a chart. A point is {x, y}; y is null where there is none.
function joinCoinciding(sets) {
  const most = Math.max(...sets.flatMap(({data: list}) => list.map(({y}) => Math.abs(y || 0))));
  const near = (a, b) => a === b || (isNumber(a) && isNumber(b) && Math.abs(a - b) <= most / 200);
  const same = (one, other) => one.data.length === other.data.length &&
    one.data.every(({x, y}, i) => x === other.data[i].x && near(y, other.data[i].y));
  const joined = [];
  for (const set of sets) {
    const like = joined.find((one) => same(one, set));
    if (like) like.names.push(set.label); else joined.push({...set, names: [set.label]});
  }
  for (const set of joined) set.label = set.names.join(' = ');
  return joined;
}

// --- Printing -----------------------------------------------------------------------------------

// Paper is light, and narrower than most windows: lay the page out so, then draw for that.
function setPrinting(on) {
  document.documentElement.toggleAttribute('data-printing', on);
  for (const box of document.querySelectorAll('details')) {
    if (on) {
      box.dataset.wasOpen = box.open ? 'yes' : '';
      box.open = box.open || !('screen' in box.dataset);
    } else {
      box.open = Boolean(box.dataset.wasOpen);
    }
  }
  redraw();
}
addEventListener('beforeprint', () => setPrinting(true));
addEventListener('afterprint', () => setPrinting(false));
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', redraw);
