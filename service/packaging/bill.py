#!/usr/bin/env python3
"""Lists the third-party crates in what is released, from cargo's own metadata.

bill.py VERSION SECONDS SBOM LICENCES, with `cargo metadata` of one platform on standard input

SBOM is a CycloneDX 1.5 file: the crates that are linked into programs and libraries, and what each
depends on. LICENCES is text: crates with their licences, then the notices that come with them.
Crates of build scripts and tests are in neither.
"""

import json
import pathlib
import re
import sys
import time
import tomllib

# What is released: two programs, the C library and the Python library.
ROOTS = ("tollgate-daemon", "tollgate-cli", "tollgate-gen", "tollgate-c", "tollgate-python")
NOTICE = re.compile(r"(LICEN[CS]E|COPYING|NOTICE|UNLICENSE|COPYRIGHT).*", re.IGNORECASE)


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
        "components": [component(id) for id in order],
        "dependencies": [
            {"ref": "tollgate", "dependsOn": [ref(packages[id]) for id in order if packages[id]["name"] in ROOTS]}
        ]
        + [{"ref": ref(packages[id]), "dependsOn": [ref(packages[to]) for to in needs[id]]} for id in order],
    }
    pathlib.Path(sbom).write_text(json.dumps(bill, indent=1) + "\n")

    foreign = [packages[id] for id in order if packages[id]["source"]]
    lines = ["Crates of other authors in the programs and libraries of Tollgate, with their licences.\n"]
    lines += [f"{package['name']} {package['version']}: {expression(package)}" for package in foreign]
    notices = {}
    for package in foreign:
        for path in sorted(pathlib.Path(package["manifest_path"]).parent.iterdir()):
            if path.is_file() and NOTICE.fullmatch(path.name):
                text = path.read_text(errors="replace").strip()
                notices.setdefault(text, []).append(f"{package['name']} {package['version']}")
    for text, names in notices.items():
        lines.append(f"\n{'=' * 80}\n{', '.join(names)}:\n\n{text}")
    pathlib.Path(licences).write_text("\n".join(lines) + "\n")


def is_macro(package):
    return any("proc-macro" in target["kind"] for target in package["targets"])


def ref(package):
    return f"pkg:cargo/{package['name']}@{package['version']}"


def expression(package):
    # Old crates write MIT/Apache-2.0.
    if not package["license"]:
        raise SystemExit(f"bill.py: {package['name']} {package['version']} has no licence expression")
    return package["license"].replace("/", " OR ")


main()
