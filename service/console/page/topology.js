// The topology of calls through this daemon: tenants with their applications, the methods that they
// call, and the places that serve them.

import { duration, many, perSecond, percent, whole } from './counts.js';
import { el, svg, table } from './build.js';

const [WIDTH, ROW, BOX] = [1080, 62, 44];
const MOST = 12;

const clip = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

function box(x, y, width, first, second) {
  return svg('g', {}, svg('rect', { class: 'node', x, y, width, height: BOX, rx: 7 }), svg('text', { x: x + 10, y: y + 18 }, clip(first, Math.floor(width / 8))),
    svg('text', { class: 'soft', x: x + 10, y: y + 35 }, clip(second, Math.floor(width / 7))));
}

function edge(from, to, rate) {
  const middle = (from.x + to.x) / 2;
  const path = `M${from.x} ${from.y} C${middle} ${from.y} ${middle} ${to.y} ${to.x} ${to.y}`;
  return svg('path', { class: rate ? 'edge' : 'still', d: path, 'stroke-width': rate ? Math.min(7, 1.5 + Math.log10(1 + rate)).toFixed(1) : 1.5 });
}

// Rows of each column, in the middle of the picture's height.
function column(items, height) {
  const top = (height - items.length * ROW) / 2;
  return new Map(items.map((item, k) => [item, top + k * ROW + (ROW - BOX) / 2]));
}

export function topology({ state, methods }) {
  const { status } = state;
  const calls = methods.filter((one) => one.side === 'client').slice(0, MOST);
  const serviceOf = (method) => method.slice(0, method.lastIndexOf('/'));
  const tenants = (status.tenants ?? [status.tenant]).filter((name) => calls.some((one) => one.tenant === name) || status.sessions.some((one) => one.tenant === name)).slice(0, MOST);
  // Possible destinations of calls: this host's servers, and each tenant's links.
  const places = [];
  if (status.services.length) places.push({ first: 'this host', second: many(status.services.length, 'service'), takes: (one) => status.services.some((s) => s.tenant === one.tenant && s.service === serviceOf(one.method)) });
  for (const link of status.links.slice(0, MOST)) {
    const first = `peer ${link.peer || '?'} (${link.tenant ?? '?'})`;
    places.push({ first, second: `${link.transport}, ${link.state}, ${link.unanswered} unanswered`, takes: (one) => link.dialled && link.tenant === one.tenant && !places[0]?.takes(one) });
  }
  const height = Math.max(tenants.length, calls.length, places.length, 1) * ROW + 8;
  const [left, middle, right] = [column(tenants, height), column(calls, height), column(places, height)];
  const picture = svg('svg', { viewBox: `0 0 ${WIDTH} ${height}`, width: WIDTH, height, 'aria-hidden': 'true' });
  const end = (x, y) => ({ x, y: y + BOX / 2 });
  for (const one of calls) {
    if (left.has(one.tenant)) picture.append(edge(end(200, left.get(one.tenant)), end(330, middle.get(one)), one.rate));
    for (const place of places.filter((place) => place.takes(one))) picture.append(edge(end(760, middle.get(one)), end(860, right.get(place)), one.rate));
  }
  for (const [name, y] of left) {
    const apps = status.sessions.filter((one) => one.tenant === name).length;
    picture.append(box(0, y, 200, name, many(apps, 'app session')));
  }
  for (const [one, y] of middle) picture.append(box(330, y, 430, one.method, `${perSecond(one.rate)}, p99 ${duration(one.p99)}, errors ${percent(one.errorRate, one.rate)}`));
  for (const [place, y] of right) picture.append(box(860, y, 220, place.first, place.second));
  const note = 'Applications, the methods that they call, and the places that may serve them. A thicker line means more calls. Durations don’t say which server answered; if this host and a peer both serve a method, the line goes to this host.';
  return [el('div', { class: 'scroll wide', tabindex: 0, role: 'region', 'aria-label': 'Topology; the table below has the same data', 'data-key': 'topology' }, picture), el('p', { class: 'soft' }, note)];
}

export function methodTable({ methods }) {
  const columns = [['Method'], ['Tenant'], ['Side'], ['Calls', 'number'], ['Errors', 'number'], ['p50', 'number'], ['p99', 'number'], ['Since start', 'number']];
  const rows = methods.map((one) => [
    el('code', {}, one.method), one.tenant ?? '(several)', one.side === 'client' ? 'made here' : 'served here', perSecond(one.rate),
    percent(one.errorRate, one.rate), duration(one.p50), duration(one.p99), whole(one.count),
  ]);
  return table('Methods, in the last interval', columns, rows, 'No calls yet.');
}
