// What the vectors are checked with (guest-sdk/vectors/README.md): says what it reads, or answers as it is told.
import { Answer, Call, Policy, Status, refuse, register } from "./tollgate";
export * from "./exports";

class Witness extends Policy {
  private next: i32 = 1;

  constructor(private lines: string[]) { super(); }

  request(call: Call, answer: Answer): void { this.evaluate(call, answer); }
  reply(call: Call, answer: Answer): void { this.evaluate(call, answer); }

  private evaluate(call: Call, answer: Answer): void {
    if (this.lines[0] == "w") this.witness(call, answer);
    else this.parrot(answer);
  }

  private line(): string { return this.next < this.lines.length ? this.lines[this.next++] : ""; }

  private witness(call: Call, answer: Answer): void {
    const kinds = this.line();
    let text = call.method.toString();
    for (let field = 0; field < kinds.length; field++) text += "|" + read(call, field, kinds.charAt(field));
    if (call.fieldCount != kinds.length) text += "!";
    answer.deny(Status.Internal, text);
  }

  // `d STATUS HEX`, or any of `c FIELD`, `u FIELD NUMBER`, `x FIELD HEX`, `m KEY HEX`, `r KEY`, `w MICROSECONDS`, `p PRIORITY`,
  // `l LABEL`, one after the other.
  private parrot(answer: Answer): void {
    for (let line = this.line(); line.length > 0; line = this.line()) {
      const words = line.split(" ");
      if (words[0] == "l") {
        answer.route(words[1]);
        continue;
      }
      const first = u32.parse(words[1]);
      if (words[0] == "c") answer.clear(first);
      else if (words[0] == "m") answer.setMetadataBytes(first, unhex(words.length > 2 ? words[2] : ""));
      else if (words[0] == "r") answer.removeMetadata(first);
      else if (words[0] == "w") answer.delay(first);
      else if (words[0] == "p") answer.priority(first);
      else if (words[0] == "u") answer.setUint(first, u64.parse(words[2]));
      else if (words[0] == "x") answer.setBytes(first, unhex(words[2]));
      else answer.denyBytes(first, unhex(words[2]).buffer);
    }
  }
}

function read(call: Call, field: u32, kind: string): string {
  if (!call.has(field)) return "-";
  if (kind == "v") {
    let text = call.valueCount(field).toString();
    for (let i = 0; i < call.valueCount(field); i++) text += (i == 0 ? ":" : ",") + hex(call.value(field, i)!);
    return text;
  }
  if (kind == "t") return call.text(field);
  if (kind == "x") return hex(call.bytes(field));
  if (kind == "u") return call.uint(field).toString();
  if (kind == "i") return call.int(field).toString();
  if (kind == "b") return call.bool(field) ? "T" : "F";
  if (kind == "f") return reinterpret<u32>(call.float(field)).toString();
  return reinterpret<u64>(call.double(field)).toString();
}

function hex(bytes: Uint8Array): string {
  let text = "";
  for (let i = 0; i < bytes.length; i++) text += bytes[i].toString(16).padStart(2, "0");
  return text;
}

function unhex(text: string): Uint8Array {
  const bytes = new Uint8Array(text.length / 2);
  for (let i = 0; i < bytes.length; i++) bytes[i] = <u8>parseInt(text.substr(2 * i, 2), 16);
  return bytes;
}

register((config: Uint8Array) => {
  const lines = String.UTF8.decode(config.buffer).split("\n");
  if (lines[0] != "w" && lines[0] != "p") refuse("the first letter is w or p");
  return new Witness(lines);
});
