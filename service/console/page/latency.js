// Durations of calls as a heat map: time runs to the right, durations run upwards, and a darker cell
// has more calls.

import { duration, whole } from './counts.js';
import { at, el, svg, table } from './build.js';

const COLUMNS = 90;
const [LOW, HIGH] = [-20, 2];
const [CELL_W, CELL_H, LEFT] = [11, 12, 62];

// Per series: the calls of each interval by octave of duration, newest interval last.
const kept = new Map();

export function remember({ methods, seconds }) {
  if (!seconds) {
    kept.clear();
    return;
  }
  for (const one of methods) {
    const columns = kept.get(one.key) ?? kept.set(one.key, []).get(one.key);
    const octaves = new Map();
    for (const [octave, n] of one.spread) {
      const row = Math.min(HIGH, Math.max(LOW, Math.ceil(octave)));
      octaves.set(row, (octaves.get(row) ?? 0) + n);
    }
    columns.push(octaves);
    if (columns.length > COLUMNS) columns.shift();
  }
  const still = new Set(methods.map((one) => one.key));
  for (const key of kept.keys()) if (!still.has(key)) kept.delete(key);
}

// Updates the choices and keeps the selected one.
export function choose({ methods }) {
  const select = at('series');
  const keys = methods.map((one) => one.key).sort();
  if (keys.join() !== [...select.options].map((one) => one.value).join()) {
    const chosen = select.value;
    const name = (one) => `${one.method}, ${one.tenant ?? 'several tenants'}, ${one.side === 'client' ? 'made here' : 'served here'}`;
    const byKey = new Map(methods.map((one) => [one.key, one]));
    select.replaceChildren(...keys.map((key) => el('option', { value: key }, name(byKey.get(key)))));
    select.value = keys.includes(chosen) ? chosen : (methods[0]?.key ?? '');
  }
  return select.value;
}

const span = (row) => (row === LOW ? `up to ${duration(2 ** LOW)}` : row === HIGH ? `over ${duration(2 ** (HIGH - 1))}` : `${duration(2 ** (row - 1))} to ${duration(2 ** row)}`);

export function heat(key) {
  const columns = kept.get(key) ?? [];
  const rows = Array.from({ length: HIGH - LOW + 1 }, (_, k) => HIGH - k);
  const sums = new Map(rows.map((row) => [row, columns.reduce((sum, one) => sum + (one.get(row) ?? 0), 0)]));
  const most = Math.max(1, ...columns.flatMap((one) => [...one.values()]));
  const used = rows.filter((row) => sums.get(row));
  if (!used.length) return [el('p', { class: 'soft' }, 'No calls since this page was opened.')];
  // Rows with calls, and one more on either side.
  const shown = rows.filter((row) => row <= used[0] + 1 && row >= used[used.length - 1] - 1);
  const [width, height] = [LEFT + COLUMNS * CELL_W, shown.length * CELL_H + 20];
  const picture = svg('svg', { viewBox: `0 0 ${width} ${height}`, width, height, 'aria-hidden': 'true' });
  shown.forEach((row, y) => {
    picture.append(svg('text', { class: 'soft', x: LEFT - 6, y: y * CELL_H + 11, 'text-anchor': 'end' }, y % 2 ? '' : duration(2 ** row)));
    columns.forEach((one, k) => {
      const n = one.get(row);
      if (!n) return;
      const opacity = (0.2 + 0.8 * (Math.log1p(n) / Math.log1p(most))).toFixed(2);
      const x = LEFT + (COLUMNS - columns.length + k) * CELL_W;
      picture.append(svg('rect', { class: 'cell', x, y: y * CELL_H, width: CELL_W - 1, height: CELL_H - 1, 'fill-opacity': opacity }, svg('title', {}, `${whole(n)} calls, ${span(row)}`)));
    });
  });
  picture.append(svg('rect', { class: 'frame', x: LEFT, y: 0, width: COLUMNS * CELL_W, height: shown.length * CELL_H }));
  picture.append(svg('text', { class: 'soft', x: LEFT, y: height - 4 }, `${COLUMNS} intervals ago`), svg('text', { class: 'soft', x: width, y: height - 4, 'text-anchor': 'end' }, 'now'));
  const all = [...sums.values()].reduce((sum, n) => sum + n, 0);
  const lines = used.map((row) => [span(row), whole(sums.get(row)), `${((100 * sums.get(row)) / all).toFixed(1)} %`]);
  const words = table('Calls by duration, in the intervals shown', [['Duration', 'short'], ['Calls', 'number'], ['Share', 'number']], lines, '');
  return [
    el('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'Heat map of durations; the table below has the same data', 'data-key': 'heat' }, picture),
    el('p', { class: 'soft' }, `The strongest colour stands for ${whole(most)} calls in one interval.`),
    el('details', { 'data-key': 'heat-table' }, el('summary', { 'data-key': 'heat-summary' }, 'As a table'), words),
  ];
}
