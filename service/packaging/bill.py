#!/usr/bin/env python3
"""Lists the third-party crates in what is released, from cargo's own metadata.

bill.py VERSION SECONDS SBOM LICENCES, with `cargo metadata` of one platform on standard input

SBOM is a CycloneDX 1.5 file: the crates that are linked into programs and libraries, and what each
depends on. LICENCES is text: crates with their licences, then the notices that come with them.
Rust's standard library, of the compiler that runs here, is in both. Crates of build scripts and
tests are in neither.
"""

import html
import json
import pathlib
import re
import subprocess
import sys
import time
import tomllib

# What is released: two programs, the C library and the Python library.
ROOTS = ("tollgate-daemon", "tollgate-cli", "tollgate-gen", "tollgate-c", "tollgate-python")
NOTICE = re.compile(r"(LICEN[CS]E|COPYING|NOTICE|UNLICENSE|COPYRIGHT)(?!.*\.rs$).*", re.IGNORECASE)
STD_LICENCE = "MIT OR Apache-2.0"


def main():
    version, seconds, sbom, licences = sys.argv[1:]
    metadata = json.load(sys.stdin)
    packages = {package["id"]: package for package in metadata["packages"]}
    needs = {}
    for node in metadata["resolve"]["nodes"]:
        kinds = {dep["pkg"]: [kind["kind"] for kind in dep["dep_kinds"]] for dep in node["deps"]}
        needs[node["id"]] = sorted(
            pkg for pkg, kind in kinds.items() if None in kind and not is_macro(packages[pkg])
        )
    linked, left = set(), [id for id, package in packages.items() if package["name"] in ROOTS]
    while left:
        if (id := left.pop()) not in linked:
            linked.add(id)
            left += needs[id]
    order = sorted(linked, key=lambda id: (packages[id]["name"], packages[id]["version"]))
    sums = {
        (package["name"], package["version"]): package.get("checksum")
        for package in tomllib.loads(pathlib.Path("Cargo.lock").read_text())["package"]
    }

    def component(id):
        package = packages[id]
        entry = {
            "type": "library",
            "bom-ref": ref(package),
            "name": package["name"],
            "version": package["version"],
            "purl": ref(package),
            "licenses": [{"expression": expression(package)}],
        }
        if checksum := sums[package["name"], package["version"]]:
            entry["hashes"] = [{"alg": "SHA-256", "content": checksum}]
        return entry

    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(int(seconds))),
            "component": {"type": "application", "bom-ref": "tollgate", "name": "tollgate", "version": version},
        },
        "components": [component(id) for id in order]
        + [
            {
                "type": "library",
                "bom-ref": "rust-std",
                "name": "std",
                "version": rustc("--version").split()[1],
                "description": "Rust's standard library",
                "licenses": [{"expression": STD_LICENCE}],
            }
        ],
        "dependencies": [
            {
                "ref": "tollgate",
                "dependsOn": [ref(packages[id]) for id in order if packages[id]["name"] in ROOTS] + ["rust-std"],
            },
            {"ref": "rust-std"},
        ]
        + [{"ref": ref(packages[id]), "dependsOn": [ref(packages[to]) for to in needs[id]]} for id in order],
    }
    pathlib.Path(sbom).write_text(json.dumps(bill, indent=1) + "\n")

    foreign = [packages[id] for id in order if packages[id]["source"]]
    lines = ["Crates of other authors in the programs and libraries of Tollgate, with their licences.\n"]
    lines += [f"{package['name']} {package['version']}: {expression(package)}" for package in foreign]
    lines.append(f"Rust's standard library, {rustc('--version')}: {STD_LICENCE}")
    notices, without = {}, []
    for package in foreign:
        name, directory = f"{package['name']} {package['version']}", pathlib.Path(package["manifest_path"]).parent
        # Crates with code of others have its notices beside it.
        found = [path for path in sorted(directory.rglob("*")) if path.is_file() and NOTICE.fullmatch(path.name)]
        for path in found:
            notices.setdefault(path.read_text(errors="replace").strip(), []).append(name)
        if not found:
            without.append(name)
    notices.setdefault(notices_of_std(), []).append("Rust's standard library")
    lines.append(f"\nThese come without a notice; the texts of their licences are below: {', '.join(without)}")
    for text, names in notices.items():
        lines.append(f"\n{'=' * 80}\n{', '.join(dict.fromkeys(names))}:\n\n{text}")
    pathlib.Path(licences).write_text("\n".join(lines) + "\n")


def rustc(*words):
    return subprocess.run(["rustc", *words], check=True, capture_output=True, text=True).stdout.strip()


def notices_of_std():
    """The page that comes with the compiler, as text."""
    page = pathlib.Path(rustc("--print", "sysroot")) / "share/doc/rust/COPYRIGHT-library.html"
    if not page.is_file():
        raise SystemExit(f"bill.py: the notices of Rust's standard library aren't in {page}; install Rust through rustup")
    body = page.read_text().partition("<body>")[2]
    text = html.unescape(re.sub(r"<[^>]*>", "", body))
    return re.sub(r"\s*\n(\s*\n)+", "\n\n", text).strip()


def is_macro(package):
    return any("proc-macro" in target["kind"] for target in package["targets"])


def ref(package):
    return f"pkg:cargo/{package['name']}@{package['version']}"


def expression(package):
    # Old crates write MIT/Apache-2.0, some with spaces.
    if not package["license"]:
        raise SystemExit(f"bill.py: {package['name']} {package['version']} has no licence expression")
    return re.sub(r"\s*/\s*", " OR ", package["license"])


main()
