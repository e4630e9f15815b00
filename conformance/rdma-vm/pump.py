"""Copies what a VM's program says to this script's standard output and error: pump.py DIRECTORY PID

DIRECTORY/out and DIRECTORY/err are the pipes that the emulator, of that process id, writes. Each stream ends with the marker
\\0\\0VMEOF:<exit code>\\0\\0. It travels behind the output, so whoever has read it has all of it: a virtio port can't
say that it is empty, and the emulator drops what is queued when it ends. When both have come, the exit code goes into
DIRECTORY/status. Nothing does if the emulator ends without.
"""

import os
import re
import select
import sys

MARKER = re.compile(rb"\0\0VMEOF:(\d+)\0\0")
LONGEST = len(b"\0\0VMEOF:255\0\0")


class Stream:
    def __init__(self, path, to):
        self.fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self.to = to
        self.held = b""
        self.status = None
        self.begun = False
        self.ended = False

    def put(self, upto):
        left, self.held = self.held[:upto], self.held[upto:]
        while left:
            left = left[os.write(self.to, left) :]

    def read(self, emulator_gone):
        """Takes what there is; whether that was anything."""
        try:
            data = os.read(self.fd, 1 << 16)
        except BlockingIOError:
            return False
        if not data:  # no writer: it hasn't come yet, or it is gone
            if self.begun or emulator_gone:
                self.put(len(self.held))
                self.ended = True
            return False
        self.begun = True
        if self.status is None:
            self.held += data
            self.take()
        return True

    def take(self):
        found = MARKER.search(self.held)
        if found:
            self.put(found.start())
            self.status, self.held = int(found[1]), b""
            return
        # What may be the beginning of a marker is held back.
        tail = self.held.rfind(b"\0", max(0, len(self.held) - LONGEST))
        while tail > 0 and self.held[tail - 1] == 0:
            tail -= 1
        self.put(len(self.held) if tail < 0 else max(0, min(tail, len(self.held))))


def gone(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(") ", 1)[1][0] == "Z"
    except OSError:
        return True


def main():
    directory, emulator = sys.argv[1], int(sys.argv[2])
    streams = [Stream(f"{directory}/out", 1), Stream(f"{directory}/err", 2)]
    poll = select.poll()
    for stream in streams:
        poll.register(stream.fd, select.POLLIN)
    while any(stream.status is None and not stream.ended for stream in streams):
        emulator_gone = gone(emulator)
        poll.poll(200)
        busy = [stream.read(emulator_gone) for stream in streams if not stream.ended]
        if not any(busy):
            select.select([], [], [], 0.01)
            if emulator_gone:
                for stream in streams:
                    stream.put(len(stream.held))
                    stream.ended = True
    if all(stream.status is not None for stream in streams):
        with open(f"{directory}/status", "w") as status:
            status.write(str(streams[0].status))


main()
