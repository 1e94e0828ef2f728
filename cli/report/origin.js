// Where the numbers of a page come from: commands, program, machine figures with their sources.

function programOf(origin) {
  return `Ballast ${origin.version}${origin.commit ? ' ' + origin.commit : ''}`;
}

function drawShares(list, shares) {
  if (!shares || !Object.values(shares).some((one) => one > 0)) return;
  const names = {measured: 'timed on the machine', interpolated: 'interpolated between timings',
    roofline: 'computed from rates'};
  const text = Object.entries(names).filter(([key]) => shares[key] > 0.0005)
    .map(([key, name]) => `${share(100 * shares[key])} ${name}`).join(', ');
  element('dt', 'Predicted times', list);
  element('dd', (text || 'none') + ' (shares of the busy time)', list);
}

function drawFigures(parent, machine) {
  if (machine.missing) {
    element('p', `${machine.name}: its profile is not at hand (${machine.missing})`, parent,
      'quiet');
    return;
  }
  const known = machine.figures.filter((one) => one.measured).length;
  const box = element('details', undefined, parent);
  // Pages of paper that say the same for every report of a machine.
  box.dataset.screen = '';
  element('summary', `${machine.name}: ${known} of ${machine.figures.length} figures measured, ` +
    'the others nominal or derived', box);
  element('p', machine.description, box, 'quiet');
  table(box, [{title: 'figure', kind: 'name'}, {title: 'value', format: plain},
    {title: 'unit', kind: 'name'}, {title: 'kind', kind: 'name'}, {title: 'source', kind: 'name'}],
  machine.figures.map((one) => [one.key, one.points ? {value: one.value,
    text: `${plain(one.value)} at most, of ${one.points} sizes`} : one.value, unitOf(one.key),
  one.measured ? 'measured' : 'nominal', one.source]));
}

function drawOrigin() {
  const parent = card('origin', 'Where these numbers come from');
  const list = element('dl', undefined, parent);
  const add = (name, value, kind) => {
    element('dt', name, list);
    element(kind || 'span', value, element('dd', undefined, list));
  };
  const made = (data.comparison || data.tune || {}).origin;
  if (made && made.command) {
    add('Computed by', made.command, 'code');
    add('with', programOf(made));
  }
  if (data.page) {
    if (!made || made.command !== data.page.command) add('Page by', data.page.command, 'code');
    add('Drawn by', `${programOf(data.page)}, ${data.page.created_utc}`);
  }
  if (prediction) drawShares(list, prediction.provenance);
  if (measured) add('Measured', `${data.steps} steps that ran; the median step counts`);
  const given = data.validation;
  if (given && given.figures) {
    const sources = new Set(given.figures.map((one) => one.source));
    add('Published figures', `${given.figures.length} figures of ` +
      `${sources.size} publications, each with its source in profiles/published`);
  } else if (given) add('Published figures', 'profiles/published, each with its source there');
  (data.machines || []).forEach((machine) => drawFigures(parent, machine));
}
