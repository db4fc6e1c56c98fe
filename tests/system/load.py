# SPDX-License-Identifier: Apache-2.0
"""A foreground load that runs through a whole test, and what it saw in each part of it: completions per second
and latencies, from fio's log of every I/O."""
import atexit, glob, os, shutil, signal, subprocess, tempfile, time
from kit import fail


class Phase:
    def __init__(self, name, seconds, latencies, writes):
        latencies.sort()
        self.name, self.seconds, self.ios, self.writes = name, seconds, len(latencies), writes
        self.iops = self.ios / seconds
        self.mean_us = sum(latencies) / max(self.ios, 1) / 1000
        self.p99_us = latencies[int(self.ios * 0.99)] / 1000 if latencies else 0
        self.max_ms = latencies[-1] / 1e6 if latencies else 0

    def __str__(self):
        return (f"{self.name}: {self.seconds:.1f} s, {self.iops:.0f} IOPS, mean {self.mean_us:.0f} us, "
                f"p99 {self.p99_us:.0f} us, longest {self.max_ms:.0f} ms")


class Load:
    """Runs until finish(); phase(name) gives what completed since the last mark begins with that name."""

    def __init__(self, uri, *args):
        self.dir = tempfile.mkdtemp(prefix="ashlar-load.")
        atexit.register(shutil.rmtree, self.dir, ignore_errors=True)
        self.marks = []
        cmd = ["fio", "--name=j", "--ioengine=nbd", f"--uri={uri}", "--time_based=1", "--runtime=3600", "--bs=4k",
               "--verify_state_save=0", f"--write_lat_log={self.dir}/l", "--log_unix_epoch=1", "--log_offset=1",
               "--disable_clat=1", "--disable_slat=1", *args]
        self.p = subprocess.Popen(cmd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        atexit.register(lambda: self.p.poll() is None and self.p.kill())

    def mark(self, name):
        """From now on it is this phase."""
        if self.p.poll() is not None:
            fail(f"the load ended early: {self.p.communicate()[0][-3000:]}")
        self.marks.append((name, time.time()))

    def finish(self):
        """Ends the load, which must have met no error; name → Phase, of all parts of that name together."""
        end = time.time()
        self.p.send_signal(signal.SIGINT)
        out, _ = self.p.communicate(timeout=120)
        if "err= 0" not in out:
            fail(f"the load met an error:\n{out[-3000:]}")
        bounds = [t * 1000 for _, t in self.marks] + [end * 1000]
        found = [([], set()) for _ in self.marks]
        k = 0
        lines = []
        for path in glob.glob(self.dir + "/l_lat.*.log"):
            with open(path) as f:
                lines += [line.split(",") for line in f]
        for at, ns, direction, _, offset, *_ in sorted(lines, key=lambda x: int(x[0])):
            at = int(at)
            if at < bounds[0]:
                continue
            while k + 1 < len(bounds) - 1 and at >= bounds[k + 1]:
                k += 1
            found[k][0].append(int(ns))
            if int(direction) == 1:
                found[k][1].add(int(offset))
        parts = {}
        for i, (name, _) in enumerate(self.marks):
            p = parts.setdefault(name, [0, [], set()])
            p[0] += (bounds[i + 1] - bounds[i]) / 1000
            p[1] += found[i][0]
            p[2] |= found[i][1]
        return {name: Phase(name, *p) for name, p in parts.items()}
