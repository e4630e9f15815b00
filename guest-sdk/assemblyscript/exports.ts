// What the host calls. A policy's file says `export * from "./exports"` and nothing more about it.
import { Answer, Call, Policy, make, refused } from "./tollgate";

let buffer: ArrayBuffer = new ArrayBuffer(8);
let policy: Policy | null = null;
// What the host still has to read: kept from the collector until the next evaluation.
let kept: Answer[] = [];
let lists: ArrayBuffer[] = [];
let saved: Uint8Array = new Uint8Array(0);

export function tollgate_abi_v1(): void {}

export function tollgate_buffer(minLen: i32): usize {
  buffer = new ArrayBuffer(minLen);
  return changetype<usize>(buffer);
}

function copied(len: i32): Uint8Array {
  return Uint8Array.wrap(buffer.slice(0, len));
}

export function tollgate_configure(len: i32): i32 {
  const made = make(copied(len));
  const sentence = refused();
  if (sentence === null) {
    policy = made;
    return 0;
  }
  const text = String.UTF8.encode(sentence.length > 0 ? sentence : "no reason given");
  const length = min(text.byteLength, buffer.byteLength);
  memory.copy(changetype<usize>(buffer), changetype<usize>(text), length);
  return length;
}

function evaluate(count: i32, isRequest: bool): i32 {
  const asked = policy!;
  kept = [];
  lists = [];
  const begin = changetype<usize>(buffer);
  for (let entry = begin; entry < begin + 32 * count; entry += 32) {
    const call = new Call(load<u32>(entry, 8), begin + load<u32>(entry));
    const answer = new Answer();
    if (isRequest) asked.request(call, answer);
    else asked.reply(call, answer);
    write(entry, answer);
  }
  return 0;
}

function write(entry: usize, answer: Answer): void {
  const message = answer.message;
  if (message) {
    kept.push(answer);
    put(entry, 2, answer.status, message);
  } else if (answer.records.length > 0) {
    const list = answer.list();
    kept.push(answer);
    lists.push(list);
    put(entry, 3, 0, list);
  } else {
    store<u32>(entry, 1, 12);
  }
}

function put(entry: usize, verdict: u32, status: u32, bytes: ArrayBuffer): void {
  store<u32>(entry, verdict, 12);
  store<u32>(entry, status, 16);
  store<u32>(entry, <u32>changetype<usize>(bytes), 20);
  store<u32>(entry, bytes.byteLength, 24);
}

export function tollgate_request(count: i32): i32 { return evaluate(count, true); }
export function tollgate_reply(count: i32): i32 { return evaluate(count, false); }

export function tollgate_tick(): i32 {
  policy!.tick();
  return 0;
}

export function tollgate_save(): u64 {
  saved = policy!.save();
  return <u64>saved.dataStart | (<u64>saved.length << 32);
}

export function tollgate_restore(version: i32, len: i32): i32 {
  return policy!.restore(version, copied(len)) ? 0 : 1;
}
