// The page: signs in, polls the state while the page is visible, and shows it.

import * as daemon from './daemon.js';
import { many, view } from './counts.js';
import { at, fill, plain } from './build.js';
import { methodTable, topology } from './topology.js';
import { choose, heat, remember } from './latency.js';
import { attachments, canaries } from './policies.js';
import { denials, records, stored, usage } from './lists.js';

const EVERY_MS = 1000;

let before = null;
let shown = null;
let timer = null;
// Whether the daemon answered the last request.
let answers = true;

function news(said) {
  const text = plain(said);
  if (at('news').textContent !== text) at('news').textContent = text;
}

// Shows that nobody is signed in, and why.
function close(text) {
  daemon.forget();
  [before, shown] = [null, null];
  at('rooms').hidden = at('leave').hidden = true;
  at('door').hidden = false;
  at('role').textContent = '';
  at('facts').textContent = '';
  at('name').textContent = '';
  news(text);
}

function show(current) {
  const { status, metrics } = current.state;
  const tenant = daemon.tenant();
  document.title = `${status.name}: Tollgate console`;
  at('name').textContent = status.name;
  const facts = [status.version, many(metrics.sessions, 'session'), many(metrics.services, 'service'), `links ${metrics.links.ready}/${metrics.links.all} ready`];
  if (tenant === null) facts.push(`process ${status.pid}`, `${many(status.live_calls, 'call')} in flight`);
  at('facts').textContent = facts.join(', ');
  const role = { operator: 'Operator', owner: 'Owner', viewer: 'Read-only' }[daemon.role()];
  at('role').textContent = tenant === null ? role : `${role}, tenant ${tenant}`;
  at('leave').hidden = at('rooms').hidden = false;
  at('door').hidden = true;
  at('usage').hidden = at('to-usage').hidden = tenant === null;
  fill(at('topology'), ...topology(current));
  fill(at('methods'), methodTable(current));
  fill(at('heat'), ...heat(choose(current)));
  show.actions(current, daemon.mayAct());
  fill(at('canaries'), ...canaries(current));
  fill(at('denied'), ...denials(current));
  fill(at('stored'), ...(tenant === null ? [] : stored(current)));
  fill(at('used'), ...(tenant === null ? [] : usage(current)));
  fill(at('records'), ...records(current));
}

show.actions = (current, acts) => fill(at('attachments'), attachments(current, acts ? confirm : null));

async function look() {
  clearTimeout(timer);
  if (!daemon.isSignedIn() || document.hidden) return;
  try {
    const state = await daemon.state();
    shown = view(state, before);
    before = state;
    remember(shown);
    show(shown);
    if (!answers) news('The daemon answers again.');
    answers = true;
  } catch (error) {
    if (error.status === 401) return close(error.message);
    answers = false;
    news(`The values shown are out of date: ${error.status ? error.message : 'the daemon doesn’t answer'}. Retrying.`);
  }
  timer = setTimeout(look, EVERY_MS);
}

// Asks the user for confirmation, then sends the action to the daemon.
function confirm(title, text, yes, action) {
  const dialog = at('ask');
  at('ask-title').textContent = plain(title);
  at('ask-text').textContent = `${plain(text)} The audit trail records this action under your name.`;
  at('ask-yes').textContent = yes;
  at('ask-yes').onclick = async () => {
    dialog.close();
    try {
      await daemon.act(action);
      news(`Done: ${yes} ${action.policy}.`);
    } catch (error) {
      if (error.status === 401) return close(error.message);
      news(`Not done: ${error.message}`);
    }
    look();
  };
  dialog.showModal();
}

at('ask-no').onclick = () => at('ask').close();
at('leave').onclick = async () => {
  try {
    await daemon.leave();
    close('You have signed out.');
  } catch (error) {
    close(`You have signed out here, but the daemon was not told: ${error.message}`);
  }
};
at('sign-in').onsubmit = async (event) => {
  event.preventDefault();
  const token = at('token').value;
  at('token').value = '';
  news('');
  try {
    await daemon.signIn(token);
  } catch (error) {
    return close(error.message);
  }
  look();
};
at('series').onchange = () => shown && fill(at('heat'), ...heat(at('series').value));
document.addEventListener('visibilitychange', look);
async function begin() {
  try {
    await daemon.enter();
  } catch (error) {
    close(error.message);
  }
  look();
}
addEventListener('hashchange', begin);
begin();
