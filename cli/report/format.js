// What every page uses: the data, numbers with units, and elements.
// Text only ever enters the page through textContent.
'use strict';
const data = JSON.parse(document.getElementById('data').textContent);
const kSvg = 'http://www.w3.org/2000/svg';
const kPlaces = {hbm: 'GPU memory', dram: 'CPU memory', nvme: 'NVMe'};

// --- Numbers ------------------------------------------------------------------------------------

function isNumber(value) { return typeof value === 'number' && Number.isFinite(value); }
function grouped(value, places) {
  return value.toLocaleString('en-US', {minimumFractionDigits: places,
    maximumFractionDigits: places});
}
// Three digits, and whole numbers in full.
function digits(value) {
  if (value === 0) return '0';
  const size = Math.abs(value);
  if (size < 0.0995) return String(Number(value.toPrecision(3)));
  return grouped(value, size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2);
}
// As it was written: at most six digits, no zeros behind.
function plain(value) {
  return isNumber(value) ? Number(value.toPrecision(6)).toLocaleString('en-US') : String(value);
}
function seconds(value) {
  if (value === 0) return '0 s';
  const size = Math.abs(value);
  if (size >= 0.9995) return digits(value) + ' s';
  return size >= 0.9995e-3 ? digits(value * 1e3) + ' ms' : digits(value * 1e6) + ' µs';
}
function bytes(value) {
  for (const [unit, scale] of [['GiB', 2 ** 30], ['MiB', 2 ** 20], ['KiB', 2 ** 10]]) {
    if (Math.abs(value) >= scale) return digits(value / scale) + ' ' + unit;
  }
  return value + ' bytes';
}
function energy(kwh) {
  for (const [unit, scale] of [['GWh', 1e6], ['MWh', 1e3], ['kWh', 1]]) {
    if (kwh >= scale) return digits(kwh / scale) + ' ' + unit;
  }
  return digits(kwh * 1e3) + ' Wh';
}
// A change or an error, with its sign.
function percent(value) {
  if (!isNumber(value)) return '';
  return Math.abs(value) < 0.05 ? '0.0 %' : (value > 0 ? '+' : '') + value.toFixed(1) + ' %';
}
// Beside the share of the nominal peak, where a rate was measured too.
function ofMeasured(prediction) {
  if (!isNumber(prediction.mfu_of_measured_percent)) return '';
  return `; ${share(prediction.mfu_of_measured_percent)} of the rate that was measured`;
}

function share(value) {
  const tiny = value !== 0 && Math.abs(value) < 0.05;
  return (tiny ? Number(value.toPrecision(2)) : value.toFixed(1)) + ' %';
}
// "100K": where there is no room.
function compact(value) { return value.toLocaleString('en-US', {notation: 'compact'}); }
// Three digits below a thousand, where the cents count.
function price(value) {
  return Math.abs(value) >= 1000 ? count(value) : String(Number(value.toPrecision(3)));
}
function count(value) { return grouped(Math.round(value), 0); }
function parameters(value) {
  return value >= 1e9 ? digits(value / 1e9) + ' B' : digits(value / 1e6) + ' M';
}
function rate(value) { return count(value) + ' tokens/s'; }

// No longer than this many letters.
function shortened(text, most) {
  return text.length <= most ? text : text.slice(0, most - 1).trimEnd() + '…';
}

// The unit that a key ends in, as everywhere in our files.
const kUnits = [
  ['_gb_per_s', 'GB/s'], ['_tflops', 'TFLOP/s'], ['_us', 'µs'], ['_gb', 'GB'], ['_bytes', 'bytes'],
  ['parameters_per_s', 'parameters/s'], ['_percent', '%'], ['_share', 'of 1'], ['_s', 's'],
  ['_efficiency', 'of 1'], ['multiprocessors', 'multiprocessors'], ['batch', 'sequences'],
  ['sequence_length', 'tokens'],
];
function unitOf(key) {
  const name = '_' + key.split('.').pop();
  const found = kUnits.find(([end]) => name.endsWith(end));
  if (found) return found[1];
  return /_tflops\./.test(key) ? 'TFLOP/s' : '';
}
// "link.gb_per_s" as "link (GB/s)", "plan.micro_batch" as "micro_batch (sequences)".
function nameWithUnit(key) {
  const unit = unitOf(key);
  return unit ? `${key} (${unit})` : key;
}
// "machine.link.gb_per_s" and 64 as "link 64 GB/s", "plan.micro_batch" and 2 as "micro_batch 2
// sequences".
function valueWithUnit(key, value) {
  const bare = key.replace(/^(machine|model|plan)\./, '');
  const unit = unitOf(key);
  if (!unit || unit === 'of 1' || bare.endsWith(unit)) return `${bare} ${value}`;
  const [end] = kUnits.find(([one]) => ('_' + bare.split('.').pop()).endsWith(one)) || [''];
  const name = end.startsWith('_') ? bare.slice(0, Math.max(0, bare.length - end.length)) : bare;
  return `${name || bare} ${value} ${unit}`;
}

// --- Elements -----------------------------------------------------------------------------------

function element(name, text, parent, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  if (parent) parent.append(made);
  return made;
}
// Text that may go on in the next line after a mark within a name, without a letter more.
function breakable(parent, text) {
  String(text).split(/(?<=[,:_=.])/).forEach((part, i) => {
    if (i > 0) element('wbr', undefined, parent);
    parent.append(part);
  });
}
function shape(name, attributes, parent, text) {
  const made = document.createElementNS(kSvg, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}
function card(id, title, note, parent) {
  const made = element('section', undefined, parent || document.getElementById('main'));
  made.id = id + '-section';
  if (title) element('h2', title, made);
  if (note) element('p', note, made, 'quiet');
  return made;
}
function columns() { return element('div', undefined, document.getElementById('main'), 'columns'); }
function subtitle(text) { document.getElementById('subtitle').textContent = text; }

let figures = null;
function figure(title, value, note) {
  if (!figures) {
    figures = element('section', undefined, document.getElementById('main'), 'figures');
    figures.id = 'figures';
  }
  const box = element('div', undefined, figures, 'figure');
  element('span', title, box, 'quiet');
  if (value.length > 20) breakable(element('b', undefined, box, 'words'), value);
  else element('b', value, box);
  if (note) element('span', note, box, 'quiet');
}

// Entries of [name, colour or class of the mark].
function legend(parent, entries) {
  const box = element('div', undefined, parent, 'legend');
  for (const [name, shade] of entries) {
    const entry = element('span', undefined, box);
    const mark = element('i', undefined, entry);
    if (shade === 'idle') mark.className = 'idle'; else mark.style.background = shade;
    entry.append(name);
  }
}

// --- The tip that follows the pointer, for what is drawn without Chart.js ------------------------

const tip = document.getElementById('tip');
function showTip(event, text) {
  tip.textContent = text;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const x = Math.min(event.clientX + 14, document.documentElement.clientWidth - box.width - 8);
  const below = event.clientY + 18;
  const y = below + box.height > innerHeight ? event.clientY - box.height - 12 : below;
  tip.style.left = Math.max(x, 4) + 'px';
  tip.style.top = y + 'px';
}
function hideTip() { tip.hidden = true; }
addEventListener('scroll', hideTip, {passive: true});
