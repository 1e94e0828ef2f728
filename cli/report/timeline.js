// One step, lane by lane: GPU, copies and CPU on one clock, with what each waits marked as idle.

const kGroups = {
  forward: 'forward', recompute: 'forward again', backward: 'backward', adam: 'Adam',
  copy: 'copy', other: 'cast, pack, check',
};
// In units of the drawing, which is as wide as the page.
const kTimeline = {row: 20, left: 128, right: 78, width: 1120, top: 26, digit: 7};

// Spans too short to see are drawn together with their neighbours of the same group: thousands of
// boxes would make the page slow and say no more.
function visibleSpans(spans, shortest) {
  const boxes = [];
  for (const [, begin, end, group, name, operation] of spans) {
    const last = boxes[boxes.length - 1];
    const joins = last && last.group === group && begin - last.end < shortest / 4 &&
      end - begin < shortest && last.longest < shortest && end - last.begin < 20 * shortest;
    if (joins) {
      last.end = end;
      last.busy += end - begin;
      last.longest = Math.max(last.longest, end - begin);
      ++last.count;
    } else {
      boxes.push({begin, end, group, name, operation, busy: end - begin, longest: end - begin,
        count: 1});
    }
  }
  return boxes;
}

// What lies between the spans of a lane, as [begin, end].
function idleOf(spans, length) {
  const gaps = [];
  let at = 0;
  for (const [, begin, end] of spans) {
    if (begin > at) gaps.push([at, begin]);
    at = Math.max(at, end);
  }
  if (length > at) gaps.push([at, length]);
  return gaps;
}

function lanesOf(timeline) {
  return timeline.lanes.map((lane) => {
    const spans = timeline.spans.filter(([id]) => id === lane.id).sort((a, b) => a[1] - b[1]);
    const gaps = idleOf(spans, timeline.length_us);
    const idle = gaps.reduce((sum, [begin, end]) => sum + end - begin, 0);
    return {name: lane.name, spans, gaps, idle, share: idle / timeline.length_us};
  });
}

function hatch(svg, id) {
  const made = shape('pattern', {id, width: 6, height: 6, patternUnits: 'userSpaceOnUse',
    patternTransform: 'rotate(45)'}, shape('defs', {}, svg));
  shape('rect', {width: 6, height: 6, class: 'track'}, made);
  shape('line', {x1: 0, y1: 0, x2: 0, y2: 6, class: 'hatch'}, made);
}

function drawLane(svg, lane, {x, y, pattern, unit}) {
  const {row, left, width, digit} = kTimeline;
  const box = (begin, end, attributes, text) => {
    const made = shape('rect', {x: x(begin), y, height: row - 4,
      width: Math.max(x(end) - x(begin), 0.5), ...attributes}, svg);
    made.addEventListener('pointermove', (event) => showTip(event, text));
    made.addEventListener('pointerleave', hideTip);
  };
  shape('text', {x: 0, y: y + 13, class: 'lane'}, svg, lane.name);
  for (const [begin, end] of lane.gaps) {
    if (end - begin < unit / 3) continue;
    box(begin, end, {fill: `url(#${pattern})`, class: 'idle'},
      `idle, ${seconds((end - begin) * 1e-6)} from ${seconds(begin * 1e-6)} on`);
  }
  for (const one of visibleSpans(lane.spans, unit)) {
    // Files that an older version wrote have no numbers.
    const numbered = one.operation === undefined ? one.name : `${one.operation} ${one.name}`;
    const what = one.count === 1 ? numbered : `${one.count} operations from ${numbered} on`;
    box(one.begin, one.end, {style: `fill: var(--${one.group})`, class: 'span'},
      `${what}, ${seconds(one.busy * 1e-6)} from ${seconds(one.begin * 1e-6)} on`);
    const number = one.count === 1 && one.operation !== undefined ? String(one.operation) : '';
    if (number && x(one.end) - x(one.begin) >= digit * number.length + 4) {
      shape('text', {x: (x(one.begin) + x(one.end)) / 2, y: y + 12, 'text-anchor': 'middle',
        class: 'number'}, svg, number);
    }
  }
  shape('text', {x: width, y: y + 13, 'text-anchor': 'end'}, svg,
    `${(100 * lane.share).toFixed(0)} % idle`);
  shape('line', {x1: left, x2: left, y1: y, y2: y + row - 4, class: 'axis'}, svg);
}

function drawTimeline(parent, {title, timeline, scale, pattern}) {
  const {row, left, right, width, top} = kTimeline;
  const lanes = lanesOf(timeline);
  const bottom = top + lanes.length * row;
  const svg = shape('svg', {viewBox: `0 0 ${width} ${bottom + 22}`, role: 'img',
    'aria-label': `Timeline of one step, ${title}`}, element('div', undefined, parent, 'scrolls'));
  hatch(svg, pattern);
  shape('text', {x: 0, y: 15, class: 'name'}, svg,
    `${title}: ${seconds(timeline.length_us * 1e-6)}`);
  const x = (us) => left + (width - left - right) * us / scale;
  const unit = scale / (width - left - right);
  lanes.forEach((lane, i) => drawLane(svg, lane, {x, y: top + i * row, pattern, unit}));
  for (let i = 0; i <= 5; ++i) {
    const at = scale * i / 5;
    shape('line', {x1: x(at), x2: x(at), y1: bottom, y2: bottom + 4, class: 'axis'}, svg);
    shape('text', {x: x(at), y: bottom + 17,
      'text-anchor': i === 0 ? 'start' : i === 5 ? 'end' : 'middle'}, svg, seconds(at * 1e-6));
  }
  return lanes;
}

function drawLaneTable(parent, sides) {
  const names = [...new Set(sides.flatMap(({lanes}) => lanes.map((lane) => lane.name)))];
  const heads = [{title: 'lane', kind: 'name'}];
  for (const {title} of sides) {
    const of = sides.length > 1 ? `, ${title}` : '';
    heads.push({title: 'busy' + of, unit: 's', format: seconds},
      {title: 'idle' + of, unit: 's', format: seconds},
      {title: 'share idle' + of, unit: '%', format: share});
  }
  table(parent, heads, names.map((name) => [name, ...sides.flatMap(({lanes, timeline}) => {
    const lane = lanes.find((one) => one.name === name);
    return lane ? [(timeline.length_us - lane.idle) * 1e-6, lane.idle * 1e-6, 100 * lane.share] :
      [null, null, null];
  })]));
}

function drawTimelines() {
  const list = [['predicted', data.timelines.predicted], ['measured', data.timelines.measured]]
    .filter(([, timeline]) => timeline).map(([title, timeline]) => ({title, timeline}));
  if (list.length === 0) return;
  const parent = card('timeline', 'One step, lane by lane', list.length === 2 ?
    'The same operations on both clocks, to one scale. Point at a box to see what it is.' :
    'As the simulator ran it. Point at a box to see what it is.');
  const repetition = data.prediction && data.prediction.repetition;
  if (repetition) {
    const {simulated_micro_batches: drawn, micro_batches: all} = repetition;
    element('p', `Drawn is a step of ${drawn} micro-batches; the plan's has ${all}, and every ` +
      `${repetition.period_micro_batches} more take ${seconds(repetition.period_s)}.`,
      parent, 'quiet');
  }
  if (isNarrow()) element('p', 'It goes on to the right.', parent, 'quiet');
  const scale = Math.max(...list.map(({timeline}) => timeline.length_us));
  for (const side of list) {
    side.lanes = drawTimeline(parent, {...side, scale, pattern: 'idle-' + side.title});
  }
  const present = new Set(list.flatMap(({timeline}) => timeline.spans.map((span) => span[3])));
  legend(parent, [...Object.entries(kGroups).filter(([group]) => present.has(group))
    .map(([group, name]) => [name, `var(--${group})`]), ['idle', 'idle']]);
  drawLaneTable(parent, list);
}
