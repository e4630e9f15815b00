// Requests to the daemon. The session's secret is in this tab's own storage, which no other site,
// port or tab can read.

const KEY = 'tollgate-session';

async function ask(method, path, headers, body) {
  const answer = await fetch(path, { method, body, headers, cache: 'no-store', redirect: 'error' });
  if (answer.ok) return answer;
  const error = new Error(await answer.text());
  error.status = answer.status;
  throw error;
}

const session = () => JSON.parse(sessionStorage.getItem(KEY) ?? 'null');
const proof = () => ({ Authorization: `Session ${session()?.session}` });

export const mayAct = () => session()?.acts === true;
// The tenant that is shown; null: the whole daemon.
export const tenant = () => session()?.tenant ?? null;
export const role = () => session()?.role ?? 'viewer';
export const isSignedIn = () => session() !== null;
export const forget = () => sessionStorage.removeItem(KEY);

// Signs in with a link. The link's secret follows the #, so browsers never send it; it is removed
// from the history.
export async function enter() {
  const secret = location.hash.slice(1);
  if (!/^[0-9a-f]{64}$/.test(secret)) return;
  history.replaceState(null, '', '/');
  forget();
  const answer = await ask('POST', '/api/session', { Authorization: `Invitation ${secret}` });
  sessionStorage.setItem(KEY, JSON.stringify(await answer.json()));
}

// Signs in with a tenant's token. It isn't kept here.
export async function signIn(token) {
  const answer = await ask('POST', '/api/session', { 'Content-Type': 'application/json' }, JSON.stringify({ token }));
  sessionStorage.setItem(KEY, JSON.stringify(await answer.json()));
}

export async function leave() {
  await ask('DELETE', '/api/session', proof());
  forget();
}

export async function state() {
  return (await ask('GET', '/api/state', proof())).json();
}

export async function act(action) {
  await ask('POST', '/api/act', proof(), JSON.stringify(action));
}
