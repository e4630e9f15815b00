// Requests to the daemon. The session's secret is in this tab's own storage, which no other site,
// port or tab can read.

const KEY = 'tollgate-session';

async function ask(method, path, authorization, body) {
  const answer = await fetch(path, { method, body, headers: { Authorization: authorization }, cache: 'no-store', redirect: 'error' });
  if (answer.ok) return answer;
  const error = new Error(await answer.text());
  error.status = answer.status;
  throw error;
}

const session = () => JSON.parse(sessionStorage.getItem(KEY) ?? 'null');

export const isOperator = () => session()?.operator === true;
export const isSignedIn = () => session() !== null;
export const forget = () => sessionStorage.removeItem(KEY);

// Signs in with a link. The link's secret follows the #, so browsers never send it; it is removed
// from the history.
export async function enter() {
  const secret = location.hash.slice(1);
  if (!/^[0-9a-f]{64}$/.test(secret)) return;
  history.replaceState(null, '', '/');
  forget();
  const answer = await ask('POST', '/api/session', `Invitation ${secret}`);
  sessionStorage.setItem(KEY, JSON.stringify(await answer.json()));
}

export async function leave() {
  await ask('DELETE', '/api/session', `Session ${session()?.session}`);
  forget();
}

export async function state() {
  return (await ask('GET', '/api/state', `Session ${session()?.session}`)).json();
}

export async function act(action) {
  await ask('POST', '/api/act', `Session ${session()?.session}`, JSON.stringify(action));
}
