// Write a policy in AssemblyScript: extend `Policy`, register it, and export what the host calls.
//
//     import { Answer, Call, Policy, Status, register } from "./tollgate";
//     export * from "./exports";
//
//     class Rooms extends Policy {
//       request(call: Call, answer: Answer): void {
//         if (call.uint(0) > 9) answer.deny(Status.PermissionDenied, "too many rooms");
//       }
//     }
//     register((config: Uint8Array) => new Rooms());
//
// A call that isn't denied passes. Fields are numbered as the manifest lists them, from 0. `has` says whether a field is there; a
// getter of one that is absent, or withheld by the operator, ends the instance, which denies the call: ask first where a
// field may be missing. The garbage collector runs between allocations, within the call's budget. `guest-sdk/ABI.md` has
// the bytes.

/** gRPC status codes: any from 1 to 16. */
export enum Status {
  InvalidArgument = 3, NotFound = 5, PermissionDenied = 7, ResourceExhausted = 8, FailedPrecondition = 9, Internal = 13,
  Unavailable = 14, Unauthenticated = 16,
}

export enum Replaced { Done = 0, Full = 1, Changed = 2 }

export enum Level { Error = 1, Warning = 2, Info = 3, Debug = 4 }

// Host functions: a module imports those that it calls, and the manifest has to declare their capability.
// @ts-ignore: decorator
@external("tollgate", "log") declare function hostLog(level: u32, address: usize, len: u32): void;
// @ts-ignore: decorator
@external("tollgate", "counter") export declare function counter(id: u32, delta: i64): void;
// @ts-ignore: decorator
@external("tollgate", "gauge") export declare function gauge(id: u32, value: i64): void;
// @ts-ignore: decorator
@external("tollgate", "histogram") export declare function histogram(id: u32, value: i64): void;
/** Unix time in milliseconds. */
// @ts-ignore: decorator
@external("tollgate", "now_ms") export declare function nowMs(): i64;
/** Microseconds since an arbitrary time; never goes back. */
// @ts-ignore: decorator
@external("tollgate", "monotonic_us") export declare function monotonicUs(): i64;
// @ts-ignore: decorator
@external("tollgate", "state_get") declare function hostStateGet(key: usize, keyLen: u32, room: usize, roomLen: u32): i32;
// @ts-ignore: decorator
@external("tollgate", "state_set") declare function hostStateSet(key: usize, keyLen: u32, value: usize, valueLen: u32): i32;
// @ts-ignore: decorator
@external("tollgate", "state_replace") declare function hostStateReplace(key: usize, keyLen: u32, old: usize, oldLen: u32, value: usize, valueLen: u32): i32;
// @ts-ignore: decorator
@external("tollgate", "state_delete") declare function hostStateDelete(key: usize, keyLen: u32): i32;
// @ts-ignore: decorator
@external("tollgate", "state_add") declare function hostStateAdd(key: usize, keyLen: u32, delta: i64): i64;
// @ts-ignore: decorator
@external("tollgate", "random") declare function hostRandom(address: usize, len: u32): void;

/** Writes a line to the policy's log. */
export function log(level: Level, line: string): void {
  const bytes = String.UTF8.encode(line);
  hostLog(level, changetype<usize>(bytes), bytes.byteLength);
}

/** At most 256 random bytes. */
export function random(len: i32): Uint8Array {
  const bytes = new Uint8Array(len);
  hostRandom(bytes.dataStart, len);
  return bytes;
}

/** What all instances of the policy share. */
export namespace state {
  export function get(key: Uint8Array): Uint8Array | null {
    let room = new Uint8Array(256);
    let len = hostStateGet(key.dataStart, key.length, room.dataStart, room.length);
    if (len < 0) return null;
    if (len > room.length) {
      room = new Uint8Array(len);
      len = hostStateGet(key.dataStart, key.length, room.dataStart, room.length);
    }
    return room.subarray(0, len);
  }
  /** False if there is no room. */
  export function set(key: Uint8Array, value: Uint8Array): bool {
    return hostStateSet(key.dataStart, key.length, value.dataStart, value.length) == 0;
  }
  /** Compare and swap: replaces the value if it still is `old` (null: there is none). */
  export function replace(key: Uint8Array, old: Uint8Array | null, value: Uint8Array): Replaced {
    const oldStart = old == null ? 0 : old.dataStart;
    const oldLen: u32 = old == null ? u32.MAX_VALUE : old.length;
    return hostStateReplace(key.dataStart, key.length, oldStart, oldLen, value.dataStart, value.length);
  }
  export function remove(key: Uint8Array): bool {
    return hostStateDelete(key.dataStart, key.length) == 1;
  }
  export function add(key: Uint8Array, delta: i64): i64 {
    return hostStateAdd(key.dataStart, key.length, delta);
  }
}

/** What failures of AssemblyScript's own come to: a line in the log, and a trap. */
export function abort(message: string | null, file: string | null, line: u32, column: u32): void {
  const what = message ? message : "abort";
  const where = file ? file : "?";
  log(Level.Error, `${what} (${where}:${line}:${column})`);
  unreachable();
}

/**
 * Types of a field that the configuration names: an entry { "config": "NAME" } of the manifest's `fields` stands for the
 * paths in the list NAME of the configuration, so the schema decides what they are.
 */
export enum FieldType { Absent = 0, Bool = 2, Int = 3, Uint = 4, Float = 5, Double = 6, Text = 7, Bytes = 8, Enum = 9 }

/** A call, reduced to the fields and metadata keys that the manifest declares. */
export class Call {
  constructor(
    /** A position in the manifest's `methods`. */
    public method: u32,
    private view: usize,
  ) {}

  get fieldCount(): u32 { return load<u32>(this.view, 4); }

  /** The field is there. */
  has(field: u32): bool {
    if (field >= this.fieldCount) throw new Error(`the manifest declares no field ${field}`);
    return load<u32>(this.entry(field)) != 0;
  }

  /**
   * The type of a field that the configuration names, which tells its getter; `Absent` if it is absent or withheld. Of a
   * field that the manifest itself names it is 1: its author knows the type.
   */
  type(field: u32): FieldType { return this.has(field) ? load<u32>(this.entry(field)) : FieldType.Absent; }

  uint(field: u32): u64 { return load<u64>(this.present(field), 8); }
  /** A signed integer or enum. */
  int(field: u32): i64 { return load<i64>(this.present(field), 8); }
  bool(field: u32): bool { return load<u64>(this.present(field), 8) != 0; }
  float(field: u32): f32 { return load<f32>(this.present(field), 8); }
  double(field: u32): f64 { return load<f64>(this.present(field), 8); }
  text(field: u32): string {
    const entry = this.present(field);
    return String.UTF8.decodeUnsafe(this.view + load<u32>(entry, 8), load<u32>(entry, 4));
  }
  bytes(field: u32): Uint8Array {
    const entry = this.present(field);
    const bytes = new Uint8Array(load<u32>(entry, 4));
    memory.copy(bytes.dataStart, this.view + load<u32>(entry, 8), bytes.length);
    return bytes;
  }

  // Metadata keys are numbered behind the fields.
  /** How many values a metadata key has: none if it is absent or withheld. */
  valueCount(entry: u32): i32 { return this.has(entry) ? load<u32>(this.entry(entry)) : 0; }
  /** The value of a metadata key at a place, from 0; null if there is none. */
  value(entry: u32, place: i32 = 0): Uint8Array | null {
    if (place >= this.valueCount(entry)) return null;
    let at = this.view + load<u32>(this.entry(entry), 8);
    for (; place > 0; place--) at += 4 + load<u32>(at);
    const bytes = new Uint8Array(load<u32>(at));
    memory.copy(bytes.dataStart, at + 4, bytes.length);
    return bytes;
  }
  /** The same as text, which it is unless the key ends in -bin. */
  valueText(entry: u32, place: i32 = 0): string | null {
    const bytes = this.value(entry, place);
    return bytes ? String.UTF8.decode(bytes.buffer) : null;
  }

  private entry(field: u32): usize { return this.view + 8 + 16 * field; }
  private present(field: u32): usize {
    if (!this.has(field)) throw new Error(`field ${field} is absent, or the policy isn't allowed to see it`);
    return this.entry(field);
  }
}

class Record {
  constructor(public kind: u32, public field: u32, public value: u64, public bytes: ArrayBuffer | null) {}
}

/** Kinds 1 to 3 are about one field, 4 and 5 about one metadata key, each later one about the call. */
function about(kind: u32): u32 { return kind <= 3 ? 1 : kind <= 5 ? 4 : kind; }

/** What becomes of a call: it passes, unless the policy sets something here. */
export class Answer {
  status: u32 = 0;
  message: ArrayBuffer | null = null;
  records: Record[] = [];

  /** Ends the call. The caller sees 1,024 bytes of the message at most. */
  deny(status: u32, message: string): void {
    this.denyBytes(status, String.UTF8.encode(message));
  }
  denyBytes(status: u32, message: ArrayBuffer): void {
    this.status = status;
    this.message = message;
  }

  // Changes of an allowed message; `field` is a position in the manifest's `changes` (or `reply_changes`).
  clear(field: u32): void { this.put(new Record(1, field, 0, null)); }
  setUint(field: u32, value: u64): void { this.put(new Record(2, field, value, null)); }
  setInt(field: u32, value: i64): void { this.put(new Record(2, field, value, null)); }
  setBool(field: u32, value: bool): void { this.put(new Record(2, field, value ? 1 : 0, null)); }
  setFloat(field: u32, value: f32): void { this.put(new Record(2, field, reinterpret<u32>(value), null)); }
  setDouble(field: u32, value: f64): void { this.put(new Record(2, field, reinterpret<u64>(value), null)); }
  setText(field: u32, value: string): void { this.put(new Record(3, field, 0, String.UTF8.encode(value))); }
  setBytes(field: u32, value: Uint8Array): void {
    this.put(new Record(3, field, 0, value.buffer.slice(value.byteOffset, value.byteOffset + value.length)));
  }

  // The metadata of an allowed call; `key` is a position in the manifest's `metadata_changes` (or `reply_metadata_changes`).
  /** One value instead of all that the key has: printable ASCII. */
  setMetadata(key: u32, value: string): void { this.put(new Record(4, key, 0, String.UTF8.encode(value))); }
  /** The same for a key that ends in -bin. */
  setMetadataBytes(key: u32, value: Uint8Array): void {
    this.put(new Record(4, key, 0, value.buffer.slice(value.byteOffset, value.byteOffset + value.length)));
  }
  removeMetadata(key: u32): void { this.put(new Record(5, key, 0, null)); }

  /** Lets an allowed call wait, a second at most: capability `delay`. */
  delay(microseconds: u32): void { this.put(new Record(6, 0, microseconds, null)); }
  /** 0, what all calls have, to 7, which comes first: capability `priority`. */
  priority(priority: u32): void { this.put(new Record(7, 0, priority, null)); }
  /** The route of an allowed request, 1 to 64 of a-z 0-9 - _ . : capability `route`. */
  route(label: string): void { this.put(new Record(8, 0, 0, String.UTF8.encode(label))); }

  private put(record: Record): void {
    for (let i = 0; i < this.records.length; i++) {
      if (this.records[i].field == record.field && about(this.records[i].kind) == about(record.kind)) {
        this.records[i] = record;
        return;
      }
    }
    this.records.push(record);
  }

  /** The effect list, as the host reads it. */
  list(): ArrayBuffer {
    const list = new ArrayBuffer(16 * this.records.length);
    for (let i = 0; i < this.records.length; i++) {
      const record = this.records[i];
      const at = changetype<usize>(list) + 16 * i;
      const bytes = record.bytes;
      const value = bytes ? <u64>changetype<usize>(bytes) | (<u64>bytes.byteLength << 32) : record.value;
      store<u32>(at, record.kind);
      store<u32>(at, record.field, 4);
      store<u64>(at, value, 8);
    }
    return list;
  }
}

/** A policy: made from its configuration, then asked about calls. */
export abstract class Policy {
  request(call: Call, answer: Answer): void {}
  reply(call: Call, answer: Answer): void {}
  tick(): void {}
  save(): Uint8Array { return new Uint8Array(0); }
  /** False if there is no going on from this. */
  restore(version: u32, state: Uint8Array): bool { return false; }
}

/** Why `configure` refused the configuration. Discarded with the refused instance. */
let refusal: string | null = null;

/** Refuses the configuration, with a sentence. */
export function refuse(sentence: string): void { refusal = sentence; }
export function refused(): string | null { return refusal; }

type Configure = (config: Uint8Array) => Policy;
let configure: Configure | null = null;

/** Says how a policy is made from its configuration. */
export function register(make: Configure): void { configure = make; }
export function make(config: Uint8Array): Policy { return configure!(config); }
