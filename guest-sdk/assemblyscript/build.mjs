// Compiles a policy: `node build.mjs POLICY.ts OUT.wasm`. Beside POLICY.ts lies its manifest, POLICY.json.
//
// The compiler is AssemblyScript's own, with the settings that a policy needs: its garbage collector, no imports of
// JavaScript's (a failure is a line in the policy's log, and a trap), and the manifest as a custom section.
import { readFileSync, writeFileSync } from "node:fs";
import { dirname, relative, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import asc from "assemblyscript/asc";

const [source, out] = process.argv.slice(2).map((path) => resolve(path));
if (!out) throw new Error("usage: node build.mjs POLICY.ts OUT.wasm");
const here = dirname(fileURLToPath(import.meta.url));
const manifest = JSON.stringify(JSON.parse(readFileSync(source.replace(/\.ts$/, ".json"), "utf8")));

let module;
const { error, stderr } = await asc.main(
  [relative(here, source), "--baseDir", here, "--outFile", "policy.wasm", "--optimizeLevel", "3", "--runtime", "incremental",
    "--use", "abort=tollgate/abort", "--noColors"],
  { writeFile: (name, content) => { if (name === "policy.wasm") module = content; } },
);
if (error) {
  process.stderr.write(stderr.toString() + error.message + "\n");
  process.exit(1);
}

// A section: id 0, its length, the length of its name, its name, its content.
const leb = (n) => { const bytes = []; do { bytes.push((n & 127) | (n > 127 ? 128 : 0)); n >>>= 7; } while (n); return Buffer.from(bytes); };
const name = Buffer.from("tollgate.manifest");
const body = Buffer.concat([leb(name.length), name, Buffer.from(manifest)]);
writeFileSync(out, Buffer.concat([module, Buffer.from([0]), leb(body.length), body]));
