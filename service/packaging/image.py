#!/usr/bin/env python3
"""Writes an OCI image layout (image-layout 1.0) from directories, without a container daemon.

image.py OUT --name NAME --version VERSION --revision COMMIT --epoch SECONDS --base ROOT --programs ROOT

The base and the programs become one layer each. Equal trees give equal bytes: entries are sorted,
their owners come from a table, and their time is the epoch. `image.py --unpack LAYOUT ROOT` makes
the root of an image again, and prints its user and its command line.
"""

import argparse
import gzip
import hashlib
import io
import json
import os
import pathlib
import stat
import tarfile
import time

# The user of the daemon in the image. Its number is outside of the range that Debian allots.
USER = 65532
# Directories of the daemon's user, with their modes.
OWNED = {"run/tollgate": 0o755, "var/lib/tollgate": 0o700}


class Layout:
    """The blobs below a directory."""

    def __init__(self, out):
        self.blobs = out / "blobs" / "sha256"
        self.blobs.mkdir(parents=True)

    def blob(self, media, data):
        digest = hashlib.sha256(data).hexdigest()
        (self.blobs / digest).write_bytes(data)
        return {"mediaType": media, "digest": f"sha256:{digest}", "size": len(data)}

    def json(self, media, value):
        return self.blob(media, encoded(value))

    def layer(self, root, epoch):
        """Adds a layer; returns its descriptor and the digest of the archive inside."""
        archive = archived(root, epoch)
        packed = io.BytesIO()
        with gzip.GzipFile(fileobj=packed, mode="wb", filename="", mtime=epoch, compresslevel=6) as file:
            file.write(archive)
        descriptor = self.blob("application/vnd.oci.image.layer.v1.tar+gzip", packed.getvalue())
        return descriptor, "sha256:" + hashlib.sha256(archive).hexdigest()


def encoded(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def archived(root, epoch):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(root.rglob("*")):
            name = str(path.relative_to(root))
            entry = archive.gettarinfo(str(path), arcname=name)
            if entry.islnk():
                raise SystemExit(f"image.py: {path} is a hard link; copy the file")
            owner = USER if name in OWNED else 0
            entry.uid = entry.gid = owner
            entry.uname = entry.gname = ""
            entry.mtime = epoch
            # Others may write to the directories for temporary files.
            kept = 0o7777 if entry.mode & stat.S_ISVTX else 0o7755
            entry.mode = OWNED.get(name, 0o777 if entry.issym() else entry.mode & kept)
            with open(path, "rb") if entry.isreg() else io.BytesIO() as content:
                archive.addfile(entry, content if entry.isreg() else None)
    return data.getvalue()


def write(args):
    out = pathlib.Path(args.out)
    layout = Layout(out)
    layers, inside = zip(*(layout.layer(pathlib.Path(root), args.epoch) for root in (args.base, args.programs)))
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(args.epoch))
    labels = {
        "org.opencontainers.image.title": args.name,
        "org.opencontainers.image.description": "Tollgate, the managed RPC service of a host",
        "org.opencontainers.image.version": args.version,
        "org.opencontainers.image.revision": args.revision,
        "org.opencontainers.image.created": created,
        "org.opencontainers.image.licenses": "Apache-2.0",
    }
    config = layout.json(
        "application/vnd.oci.image.config.v1+json",
        {
            "architecture": "amd64",
            "os": "linux",
            "created": created,
            "config": {
                "User": f"{USER}:{USER}",
                "Entrypoint": ["/usr/bin/tollgated"],
                "Cmd": ["--config", "/etc/tollgate/tollgated.toml"],
                "Env": ["PATH=/usr/bin:/bin"],
                "WorkingDir": "/var/lib/tollgate",
                "Volumes": {"/" + path: {} for path in OWNED},
                "StopSignal": "SIGTERM",
                "Labels": labels,
            },
            "rootfs": {"type": "layers", "diff_ids": list(inside)},
            "history": [{"created": created, "created_by": text} for text in ("Debian packages", "tollgate")],
        },
    )
    manifest = layout.json(
        "application/vnd.oci.image.manifest.v1+json",
        {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": config,
            "layers": list(layers),
            "annotations": labels,
        },
    )
    manifest["platform"] = {"architecture": "amd64", "os": "linux"}
    manifest["annotations"] = {"org.opencontainers.image.ref.name": args.version}
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [manifest]}
    (out / "index.json").write_bytes(encoded(index))
    (out / "oci-layout").write_bytes(encoded({"imageLayoutVersion": "1.0.0"}))


def unpack(layout, root):
    """Checks each digest on the way."""

    def blob(descriptor):
        algorithm, digest = descriptor["digest"].split(":")
        data = (layout / "blobs" / algorithm / digest).read_bytes()
        if hashlib.sha256(data).hexdigest() != digest or len(data) != descriptor["size"]:
            raise SystemExit(f"image.py: blob {digest} has other contents than its name says")
        return data

    assert json.loads((layout / "oci-layout").read_bytes()) == {"imageLayoutVersion": "1.0.0"}
    (manifest,) = json.loads((layout / "index.json").read_bytes())["manifests"]
    manifest = json.loads(blob(manifest))
    config = json.loads(blob(manifest["config"]))
    for layer, inside in zip(manifest["layers"], config["rootfs"]["diff_ids"]):
        data = gzip.decompress(blob(layer))
        if "sha256:" + hashlib.sha256(data).hexdigest() != inside:
            raise SystemExit(f"image.py: the layer {layer['digest']} isn't the archive {inside}")
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            # With owners and all modes, which Python 3.14 ignores otherwise.
            archive.extraction_filter = lambda member, _root: member
            archive.extractall(root, numeric_owner=True)
    config = config["config"]
    print(config["User"])
    print(*config["Entrypoint"], *config["Cmd"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("root", nargs="?")
    parser.add_argument("--unpack", action="store_true")
    for name in ("name", "version", "revision", "base", "programs"):
        parser.add_argument("--" + name)
    parser.add_argument("--epoch", type=int)
    args = parser.parse_args()
    if args.unpack:
        os.umask(0)
        unpack(pathlib.Path(args.out), args.root)
    else:
        write(args)


main()
