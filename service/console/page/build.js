// Builds elements from names that strangers chose. Text is inserted as text, never as markup.
// Invisible and bidirectional characters are escaped.

const SVG = 'http://www.w3.org/2000/svg';

// The same characters as in shm-abi's text.rs: control, line-ending, bidirectional, without width.
const UNSEEN = /[\p{Cc}\u00ad\u034f\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\u{1d173}-\u{1d17a}\u{e0000}-\u{e007f}]/gu;
const NAMED = { '\n': '\\n', '\r': '\\r', '\t': '\\t' };
export const plain = (text) => text.replace(UNSEEN, (c) => NAMED[c] ?? `\\u{${c.codePointAt(0).toString(16)}}`);
const shown = (value) => (typeof value === 'string' ? plain(value) : value);

function make(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name === 'onclick') node.onclick = value;
    else if (value !== null && value !== undefined) node.setAttribute(name, shown(value));
  }
  node.append(...children.filter((child) => child !== null).map(shown));
  return node;
}

export const el = (name, attributes = {}, ...children) => make(document.createElement(name), attributes, children);
export const svg = (name, attributes = {}, ...children) => make(document.createElementNS(SVG, name), attributes, children);
export const at = (id) => document.getElementById(id);

// Updates an element's children in place. Unchanged nodes stay, and with them a button that is being
// clicked, the focus, the selection, scroll positions and open details.
export function fill(place, ...children) {
  become(place, el('div', {}, ...children));
}

function become(place, wanted) {
  const all = [...wanted.childNodes];
  all.forEach((want, k) => {
    const have = place.childNodes[k];
    if (!have) place.append(want);
    else if (have.nodeName !== want.nodeName || have.dataset?.key !== want.dataset?.key) have.replaceWith(want);
    else if (have.nodeType === Node.TEXT_NODE) {
      if (have.data !== want.data) have.data = want.data;
    } else {
      // The user decides whether details are open.
      for (const { name } of [...have.attributes]) if (name !== 'open' && !want.hasAttribute(name)) have.removeAttribute(name);
      for (const { name, value } of want.attributes) if (have.getAttribute(name) !== value) have.setAttribute(name, value);
      have.onclick = want.onclick;
      become(have, want);
    }
  });
  while (place.childNodes.length > all.length) place.lastChild.remove();
}

// Columns are [title, class]; a cell is text or a node.
export function table(caption, columns, rows, none) {
  if (!rows.length) return el('p', { class: 'soft' }, none);
  const head = columns.map(([title, kind]) => el('th', { scope: 'col', class: kind }, title));
  const line = (cells) => el('tr', {}, ...cells.map((cell, k) => el(k ? 'td' : 'th', { class: columns[k][1], scope: k ? null : 'row' }, cell)));
  return el('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': caption, 'data-key': caption },
    el('table', {}, el('caption', {}, caption), el('thead', {}, el('tr', {}, ...head)), el('tbody', {}, ...rows.map(line))));
}
