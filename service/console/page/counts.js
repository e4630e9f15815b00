// Rates and percentiles of the interval between two states. Counters and histograms only grow, and
// restart at zero with a new process.

const families = (state) => state.metrics.metrics;

// One series of calls per side, tenant and method, over all statuses.
function callsOf(state) {
  const series = new Map();
  for (const [name, side] of [['rpc.client.call.duration', 'client'], ['rpc.server.call.duration', 'server']]) {
    for (const point of families(state).find((family) => family.name === name)?.points ?? []) {
      const method = point.labels['rpc.method'] ?? '(all others)';
      const key = JSON.stringify([side, point.tenant, method]);
      const one = series.get(key) ?? { key, side, tenant: point.tenant, method, count: 0, errors: 0, denied: 0, buckets: new Map(), statuses: new Map() };
      const { count, zero, scale, first, buckets } = point.value;
      const status = point.labels['rpc.response.status_code'] ?? '?';
      one.count += count;
      if (point.labels['error.type'] !== undefined) one.errors += count;
      if (status === 'PERMISSION_DENIED') one.denied += count;
      one.statuses.set(status, (one.statuses.get(status) ?? 0) + count);
      // By the binary logarithm of the upper bound in seconds: bucket k ends at 2^((first + k + 1) / 2^scale).
      if (zero) one.buckets.set(-Infinity, (one.buckets.get(-Infinity) ?? 0) + zero);
      buckets.forEach((n, k) => {
        if (!n) return;
        const octave = (first + k + 1) / 2 ** scale;
        one.buckets.set(octave, (one.buckets.get(octave) ?? 0) + n);
      });
      series.set(key, one);
    }
  }
  return series;
}

const less = (now, before) => (now >= before ? now - before : now);

// Octaves of durations and their counts in the interval, shortest first. A duration of zero is
// 2 to the power of -Infinity.
function between(now, before) {
  const found = [];
  for (const [octave, n] of now) {
    const more = less(n, before?.get(octave) ?? 0);
    if (more > 0) found.push([octave, more]);
  }
  return found.sort(([a], [b]) => a - b);
}

// A quantile in seconds: the geometric middle of the bucket that contains it.
export function quantile(buckets, q) {
  const all = buckets.reduce((sum, [, n]) => sum + n, 0);
  if (!all) return null;
  let rank = Math.max(1, Math.ceil(q * all));
  for (const [octave, n] of buckets) {
    rank -= n;
    if (rank <= 0) return octave === -Infinity ? 0 : 2 ** (octave - 1 / 16);
  }
  return null;
}

// The difference between two states. Rates are null if there is no earlier state.
export function view(state, before) {
  const { pid, began_ns, now_ns } = state.metrics;
  const isSame = before?.metrics.pid === pid && before?.metrics.began_ns === began_ns && before.metrics.now_ns < now_ns;
  const seconds = isSame ? (now_ns - before.metrics.now_ns) / 1e9 : null;
  const earlier = isSame ? callsOf(before) : new Map();
  const rate = (n) => (seconds ? n / seconds : null);
  const methods = [...callsOf(state).values()].map((one) => {
    const was = earlier.get(one.key);
    const buckets = seconds ? between(one.buckets, was?.buckets) : [];
    return {
      ...one, spread: buckets, rate: rate(less(one.count, was?.count ?? 0)), errorRate: rate(less(one.errors, was?.errors ?? 0)),
      p50: quantile(buckets, 0.5), p99: quantile(buckets, 0.99),
    };
  });
  methods.sort((a, b) => (b.rate ?? 0) - (a.rate ?? 0) || a.key.localeCompare(b.key));
  return { state, seconds, methods, versions: versions(state, isSame ? before : null, seconds) };
}

// The decisions of each version of a policy, per attachment and place.
function versions(state, before, seconds) {
  const key = (attachment, version) => JSON.stringify([attachment.owner, attachment.policy, attachment.place, version.version, version.place]);
  const earlier = new Map();
  for (const attachment of before?.status.attachments ?? []) {
    for (const version of attachment.versions) earlier.set(key(attachment, version), version);
  }
  const found = new Map();
  for (const attachment of state.status.attachments) {
    found.set(attachment, attachment.versions.map((version) => {
      const was = earlier.get(key(attachment, version));
      const calls = (one) => (one ? one.allowed + one.denied + one.changed + one.refused : 0);
      const rate = (name) => (seconds ? less(version[name], was?.[name] ?? 0) / seconds : null);
      return {
        ...version, calls: calls(version), callRate: seconds ? less(calls(version), calls(was)) / seconds : null,
        denyRate: rate('denied'), cpu: seconds ? less(version.cpu_ns, was?.cpu_ns ?? 0) / 1e9 / seconds : null,
      };
    }));
  }
  return found;
}

export const duration = (seconds) => {
  if (seconds === null) return '–';
  if (seconds === 0) return '0';
  const [unit, factor] = seconds < 1e-3 ? ['µs', 1e6] : seconds < 1 ? ['ms', 1e3] : ['s', 1];
  return `${Number((seconds * factor).toPrecision(3))} ${unit}`;
};
export const perSecond = (rate) => (rate === null ? '…' : `${Number(rate < 100 ? rate.toPrecision(3) : rate.toFixed(0))}/s`);
export const percent = (part, all) => (all ? `${Number(((100 * part) / all).toPrecision(3))} %` : '–');
export const whole = (n) => n.toLocaleString('en');
export const many = (n, noun) => `${whole(n)} ${noun}${n === 1 ? '' : 's'}`;
