// Tables: every one can be sorted by a click or a key on its heads, and copied for a spreadsheet.
//
// columns: [{title, unit, format, kind}]. `unit` and `format` are of numbers: shown by `format`,
// copied as plain numbers with the unit in the head. kind 'name': text, to the left.
// A column in which all is empty is left out. On a narrow screen rows become cards (style.css), in
// which every cell has its column's title in front of it.
// rows: lists of cells; a cell is a number, a text, null, or {value, text, kind}, where `text` is
// shown for `value` and kind is a class.

function cellOf(cell, column) {
  const of = cell !== null && typeof cell === 'object' ? cell : {value: cell};
  const known = of.value === undefined ? of.text : of.value;
  const value = known === undefined ? null : known;
  const shown = of.text !== undefined ? of.text : value === null ? '' :
    isNumber(value) && column.format ? column.format(value) : String(value);
  return {value, shown, kind: [column.kind, of.kind,
    shown.length > 60 ? 'long' : shown.length <= 28 ? 'key' : ''].filter(Boolean).join(' ')};
}

// Numbers by size, then text by its letters and the numbers in it, then what is empty.
function compareValues(a, b) {
  const rank = (value) => isNumber(value) ? 0 : value === null || value === '' ? 2 : 1;
  if (rank(a) !== rank(b)) return rank(a) - rank(b);
  if (isNumber(a)) return a - b;
  return rank(a) === 2 ? 0 : String(a).localeCompare(String(b), 'en', {numeric: true});
}

function sortRows(body, column, direction) {
  const lines = [...body.rows];
  const isEmpty = (value) => value === null || value === '';
  const value = (line) => line.cells[column].ballastValue;
  lines.sort((a, b) => {
    // What is empty stays at the end in both directions.
    if (isEmpty(value(a)) !== isEmpty(value(b))) return isEmpty(value(a)) ? 1 : -1;
    return direction * compareValues(value(a), value(b));
  });
  body.append(...lines);
}

function headOf(column, table, index) {
  const cell = element('th', undefined, table.tHead.rows[0], column.kind);
  cell.scope = 'col';
  const button = element('button', undefined, cell, 'sort');
  breakable(button, column.title || '\u00a0');
  button.type = 'button';
  button.title = 'Sort by this column';
  button.addEventListener('click', () => {
    const direction = cell.getAttribute('aria-sort') === 'ascending' ? -1 : 1;
    for (const other of table.tHead.rows[0].cells) other.removeAttribute('aria-sort');
    cell.setAttribute('aria-sort', direction > 0 ? 'ascending' : 'descending');
    sortRows(table.tBodies[0], index, direction);
  });
}

// Tabs between cells, one line a row; numbers in full where their column has a unit, else as they
// are shown.
function tabSeparated(table, columnList) {
  const clean = (value) => value === null || value === undefined ? '' :
    String(value).replace(/[\t\r\n]+/g, ' ');
  const head = columnList.map((column) =>
    column.unit && column.unit !== column.title ? `${column.title} (${column.unit})` :
      column.title);
  const lines = [...table.tBodies[0].rows].map((line) =>
    [...line.cells].map((cell, index) => clean(columnList[index].unit ? cell.ballastValue :
      cell.textContent)).join('\t'));
  return [head.map(clean).join('\t'), ...lines].join('\n') + '\n';
}

// Where the browser keeps the clipboard closed, the table is left selected.
function selectAndCopy(table) {
  const range = document.createRange();
  range.selectNode(table);
  const selection = getSelection();
  selection.removeAllRanges();
  selection.addRange(range);
  try {
    return document.execCommand('copy');
  } catch (error) {
    return false;
  }
}

async function copyTable(table, columnList, said) {
  try {
    await navigator.clipboard.writeText(tabSeparated(table, columnList));
    said.textContent = 'copied';
  } catch (error) {
    said.textContent = selectAndCopy(table) ? 'copied' : 'selected: press Ctrl+C';
  }
  setTimeout(() => { said.textContent = ''; }, 4000);
}

function table(parent, allColumns, allRows) {
  const isShown = allColumns.map((_, index) => allRows.length === 0 || allRows.some((row) =>
    row[index] !== null && row[index] !== undefined && row[index] !== ''));
  const columnList = allColumns.filter((_, index) => isShown[index]);
  const rows = allRows.map((row) => row.filter((_, index) => isShown[index]));
  const bar = element('div', undefined, parent, 'bar');
  const said = element('span', undefined, bar, 'quiet');
  said.setAttribute('role', 'status');
  const copy = element('button', 'Copy table', bar, 'copy');
  copy.type = 'button';
  const box = element('div', undefined, parent, 'scrolls');
  // A name and a number are narrow enough for any screen.
  const folds = columnList.length > 2 || columnList.slice(1).some((one) => one.kind);
  const made = element('table', undefined, box, folds ? 'folds' : '');
  made.createTHead().insertRow();
  const body = made.createTBody();
  columnList.forEach((column, index) => headOf(column, made, index));
  for (const row of rows) {
    const line = body.insertRow();
    row.forEach((cell, index) => {
      const {value, shown, kind} = cellOf(cell, columnList[index]);
      // One long word, as a strategy with its knobs, breaks at its marks; numbers never do.
      const isWord = shown.length > 28 && !shown.includes(' ');
      const made = element('td', isWord ? undefined : shown, line, kind);
      if (isWord) breakable(made, shown);
      made.ballastValue = value === undefined ? null : value;
      made.dataset.title = columnList[index].title || '';
    });
  }
  copy.addEventListener('click', () => copyTable(made, columnList, said));
  return made;
}
