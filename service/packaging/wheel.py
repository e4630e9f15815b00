#!/usr/bin/env python3
"""Copies a wheel, with licences in its .dist-info directory.

wheel.py FROM TO FILE...

maturin looks for licences in the package's own directory only. Members keep their times, so that
equal wheels and licences give equal bytes.
"""

import base64
import hashlib
import pathlib
import sys
import zipfile


def main():
    source, target, *files = map(pathlib.Path, sys.argv[1:])
    with zipfile.ZipFile(source) as wheel:
        members = [(info, wheel.read(info)) for info in wheel.infolist()]
    (record,) = (info for info, _ in members if info.filename.endswith(".dist-info/RECORD"))
    metadata = record.filename.removesuffix("RECORD") + "METADATA"
    licences = record.filename.removesuffix("RECORD") + "licenses/"
    content = {info.filename: data for info, data in members}
    # The fields end with the first empty line; the description comes after it.
    fields, _, rest = content[metadata].partition(b"\n\n")
    fields += b"".join(b"\nLicense-File: " + file.name.encode() for file in files)
    content[metadata] = fields + b"\n\n" + rest
    content |= {licences + file.name: file.read_bytes() for file in files}
    lines = [f"{name},{digest(data)},{len(data)}\n" for name, data in content.items() if name != record.filename]
    content[record.filename] = "".join([*lines, f"{record.filename},,\n"]).encode()
    known = {info.filename: info for info, _ in members}
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as wheel:
        # RECORD comes last, as the format asks for.
        for name in sorted(content, key=lambda name: name == record.filename):
            info = known.get(name) or added(name, record)
            wheel.writestr(info, content[name], zipfile.ZIP_DEFLATED)


def digest(data):
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")


def added(name, like):
    info = zipfile.ZipInfo(name, like.date_time)
    info.create_system, info.external_attr = like.create_system, like.external_attr
    return info


main()
