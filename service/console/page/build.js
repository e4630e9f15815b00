// Elements from what others named: text is put in as text, and never as markup.

const SVG = 'http://www.w3.org/2000/svg';

function make(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name === 'onclick') node.addEventListener('click', value);
    else if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

export const el = (name, attributes = {}, ...children) => make(document.createElement(name), attributes, children);
export const svg = (name, attributes = {}, ...children) => make(document.createElementNS(SVG, name), attributes, children);
export const at = (id) => document.getElementById(id);

// Puts children where others are, unless they are the same. What is focused, open or scrolled stays so, by its `data-key`.
export function fill(place, ...children) {
  const next = el('div', {}, ...children);
  const keyed = (root, tag) => [...root.querySelectorAll(`${tag}[data-key]`)];
  const open = new Set(keyed(place, 'details').filter((one) => one.open).map((one) => one.dataset.key));
  for (const one of keyed(next, 'details')) one.open = open.has(one.dataset.key);
  if (place.innerHTML === next.innerHTML) return;
  const focused = place.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  const scrolled = new Map(keyed(place, '.scroll').map((one) => [one.dataset.key, one.scrollLeft]));
  place.replaceChildren(...next.childNodes);
  for (const one of keyed(place, '.scroll')) one.scrollLeft = scrolled.get(one.dataset.key) ?? 0;
  if (focused !== undefined) keyed(place, '').find((one) => one.dataset.key === focused)?.focus({ preventScroll: true });
}

// Columns are [title, class]; a cell is text or a node.
export function table(caption, columns, rows, none) {
  if (!rows.length) return el('p', { class: 'soft' }, none);
  const head = columns.map(([title, kind]) => el('th', { scope: 'col', class: kind }, title));
  const line = (cells) => el('tr', {}, ...cells.map((cell, k) => el(k ? 'td' : 'th', { class: columns[k][1], scope: k ? null : 'row' }, cell)));
  return el('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': caption, 'data-key': caption },
    el('table', {}, el('caption', {}, caption), el('thead', {}, el('tr', {}, ...head)), el('tbody', {}, ...rows.map(line))));
}
