// Lists of denied calls, of the audit trail, and of what a tenant has and may have.

import { duration, many, percent, perSecond, whole } from './counts.js';
import { el, table } from './build.js';

export function denials({ state, methods, versions }) {
  const byPolicy = state.status.attachments.flatMap((one) => versions.get(one).filter((version) => version.denied || version.refused || version.would_deny).map((version) => [
    `${one.policy}@${version.version}`, one.owner, one.place, whole(version.denied), perSecond(version.denyRate), percent(version.denied, version.calls), whole(version.would_deny), whole(version.refused),
  ]));
  const byStatus = methods.filter((one) => one.side === 'client').flatMap((one) => [...one.statuses].filter(([status, n]) => status !== 'OK' && n).map(([status, n]) => [
    el('code', {}, one.method), one.tenant ?? '(several)', status, whole(n), percent(n, one.count),
  ]));
  const newest = state.denied.map((one) => [
    time(one.began), one.tenant, el('code', {}, one.method), one.denied_by, one.status, one.message, el('code', {}, one.trace),
  ]);
  return [
    table('By policy, since the daemon started', [['Policy', 'short'], ['Owner', 'short'], ['Where'], ['Denied', 'number'], ['Now', 'number'], ['Of its calls', 'number'], ['Would deny', 'number'], ['Out of order', 'number']], byPolicy, 'No policy has denied anything.'),
    table('By status: calls made here that didn’t succeed, since the daemon started', [['Method'], ['Tenant'], ['Status'], ['Calls', 'number'], ['Of all', 'number']], byStatus, 'All calls have succeeded.'),
    table('The newest denied calls that the daemon keeps (telemetry.kept_spans); for details, run tollgate explain TRACE', [['Time (UTC)', 'short'], ['Tenant', 'short'], ['Method'], ['Policy', 'short'], ['Status', 'short'], ['Why'], ['Trace', 'short']], newest, 'No denied call is kept.'),
  ];
}

export function records({ state }) {
  const { records: all, kept } = state.audit;
  const rows = all.map((text) => {
    try {
      const { seq, time: when, actor, event, details } = JSON.parse(text);
      return [String(seq), time(when), actor, event, el('code', {}, brief(details))];
    } catch {
      return ['?', '', '', '', el('code', {}, text)];
    }
  }).reverse();
  return [
    kept ? el('p', { class: 'notice' }, `The daemon has no state directory: it keeps the newest ${whole(kept)} records, in memory only.`) : null,
    table('The newest records', [['No.', 'number'], ['Time (UTC)', 'short'], ['By', 'short'], ['What', 'short'], ['Details']], rows, 'No records yet.'),
  ].filter((one) => one !== null);
}

// The stored versions of a tenant's policies.
export function stored({ state }) {
  const rows = state.status.policies.map((one) => [
    `${one.name}@${one.version}`, one.attachments.map((at) => `${at.role} at ${at.place}`).join('; ') || 'nowhere', whole(one.module_bytes), el('code', {}, one.digest.slice(0, 16)),
  ]);
  return [table('Stored versions', [['Version', 'short'], ['In force'], ['Bytes', 'number'], ['SHA-256', 'short']], rows, 'No policy is stored.')];
}

export function usage({ state }) {
  const { usage: used, policy_cpu_ns: cpu, throttled_calls: throttled } = state.usage;
  const rows = used.map((one) => [one.what, whole(one.used), whole(one.limit), el('span', { class: one.used >= one.limit ? 'bad' : null }, percent(one.used, one.limit))]);
  return [
    table('What the tenant uses, beside the limit', [['What', 'short'], ['Used', 'number'], ['Limit', 'number'], ['Share', 'number']], rows, ''),
    el('p', { class: 'soft' }, `Policies have used ${duration(cpu / 1e9)} of CPU time; ${many(throttled, 'call')} had to be rejected because their account of CPU time was overdrawn.`),
    table('The ceiling that the operator has set', [['Key', 'short'], ['Value']], state.ceiling.map((one) => [one.key, one.value]), ''),
  ];
}

const time = (when) => el('time', { datetime: when }, when.replace('T', ' ').slice(0, 19));

// Details without empty values.
function brief(details) {
  const one = (value) => (value !== null && typeof value === 'object' ? `{${brief(value)}}` : String(value));
  return Object.entries(details).filter(([, value]) => value !== null && value !== '').map(([name, value]) => `${name}: ${one(value)}`).join(', ');
}
