// Attached policies, the two versions of a trial side by side, and the actions of an operator or an owner.

import { duration, percent, perSecond, whole } from './counts.js';
import { el, table } from './build.js';

const STEPS = {
  promote: ['Promote', (a) => `${a.policy}@${a.candidate.version} decides from now on, instead of @${a.stable ?? '-'}.`],
  rollback: ['Roll back', (a) => (a.candidate ? `The trial of ${a.policy}@${a.candidate.version} ends, and @${a.stable ?? '-'} decides alone.` : `${a.policy}@${a.previous} decides again, instead of @${a.stable}.`)],
  release: ['Release', (a) => `${a.policy}@${a.stable ?? '-'} leaves its quarantine.`],
  detach: ['Detach', (a) => `${a.policy} no longer evaluates calls at ${a.place}.`],
};

function steps(attachment) {
  const found = [];
  if (attachment.candidate) found.push('promote');
  if (attachment.candidate || attachment.previous) found.push('rollback');
  if (attachment.quarantine) found.push('release');
  return [...found, 'detach'];
}

function mode(attachment) {
  const { candidate, stable, previous, quarantine, fallback } = attachment;
  const words = [stable ? `@${stable} enforces` : 'nothing enforces'];
  if (candidate) words.push(`@${candidate.version} on trial: ${candidate.mode}`);
  if (previous) words.push(`previous: @${previous}`);
  if (quarantine) words.push('QUARANTINED');
  if (fallback) words.push('FALLEN BACK');
  return words.join('; ');
}

export function attachments({ state, versions }, ask) {
  const columns = [['Policy', 'short'], ['Owner', 'short'], ['Where'], ['Versions'], ['Calls', 'number'], ['Denied', 'number'], ['Faults', 'number'], ['CPU', 'number']];
  if (ask) columns.push(['Actions']);
  const rows = state.status.attachments.map((one) => {
    const all = versions.get(one);
    const sum = (name) => all.reduce((total, version) => total + (version[name] ?? 0), 0);
    const faults = sum('faults');
    const isWrong = one.quarantine || one.fallback;
    const cells = [
      one.policy, one.owner, one.place, el('span', { class: isWrong ? 'bad' : null }, mode(one)), perSecond(all.some((v) => v.callRate === null) ? null : sum('callRate')),
      whole(sum('denied')), el('span', { class: faults ? 'bad' : null }, whole(faults)), percent(sum('cpu'), 1),
    ];
    if (ask) {
      const buttons = steps(one).map((step) => {
        const [title, words] = STEPS[step];
        const { policy, party, tenant, service, method, side } = one;
        const action = { step, policy, party, tenant, service, method, side };
        return el('button', {
          type: 'button', 'data-key': `${step} ${policy} ${one.place} ${one.owner}`, 'aria-label': `${title} ${policy} at ${one.place}`,
          onclick: () => ask(`${title} ${policy}?`, words(one), title, action),
        }, title);
      });
      cells.push(el('span', { class: 'actions' }, ...buttons));
    }
    return cells;
  });
  return table('Attached policies; calls and CPU in the last interval, other columns since the daemon started', columns, rows, 'No policy is attached.');
}

// For each trial, the decisions of both versions.
export function canaries({ state, versions }) {
  const trials = state.status.attachments.filter((one) => one.candidate);
  return trials.flatMap((one) => {
    const of = (number, place) => versions.get(one).find((version) => version.version === number && version.place === place) ?? versions.get(one).find((version) => version.version === number);
    const [stable, candidate] = [of(one.stable, 'stable'), of(one.candidate.version, 'candidate')];
    const line = (title, show) => [title, stable ? show(stable) : '–', candidate ? show(candidate) : '–'];
    const per = (version) => duration(version.calls ? version.cpu_ns / 1e9 / version.calls : null);
    const rows = [
      line('Calls', (v) => `${whole(v.calls)} (${perSecond(v.callRate)})`), line('Denied', (v) => `${whole(v.denied)} (${percent(v.denied, v.calls)})`),
      line('Would deny', (v) => whole(v.would_deny)), line('Differs from the stable', (v) => whole(v.differs)), line('Changed', (v) => whole(v.changed)),
      line('Faults', (v) => whole(v.faults)), line('CPU per call', per), line('Last fault', (v) => v.last_fault ?? 'none'),
    ];
    const title = `Trial of ${one.policy} at ${one.place}`;
    const columns = [[''], [`Stable @${one.stable ?? '-'}`, 'number'], [`Candidate @${one.candidate.version}, ${one.candidate.mode}`, 'number']];
    return [el('h3', {}, title), table(`${title}: both versions, since the daemon started`, columns, rows, '')];
  });
}
