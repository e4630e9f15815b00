"""Takes the uncompressed kernel out of a bzImage: vmlinux.py BZIMAGE VMLINUX

The emulator boots it as it is (PVH), and the guest needn't decompress it, which takes emulated seconds. Offsets are of Linux'
x86 boot protocol: setup_sects at 0x1f1, payload_offset and payload_length at 0x248.
"""

import gzip
import lzma
import struct
import subprocess
import sys


def unpacked(payload):
    if payload.startswith(b"\x28\xb5\x2f\xfd"):
        return subprocess.run(["zstd", "-dcq"], input=payload[:-4], stdout=subprocess.PIPE, check=False).stdout
    if payload.startswith(b"\xfd7zXZ\0"):
        return lzma.LZMADecompressor().decompress(payload)
    if payload.startswith(b"\x1f\x8b"):
        return gzip.decompress(payload)
    sys.exit(f"the kernel is compressed in a way that begins with {payload[:6]!r}")


with open(sys.argv[1], "rb") as image:
    image = image.read()
setup_sectors = image[0x1F1] or 4
offset, length = struct.unpack_from("<II", image, 0x248)
kernel = unpacked(image[(setup_sectors + 1) * 512 + offset :][:length])
if not kernel.startswith(b"\x7fELF"):
    sys.exit("what the bzImage has inside is no ELF file")
with open(sys.argv[2], "wb") as out:
    out.write(kernel)
