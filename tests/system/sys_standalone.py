#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ashlard run --standalone DIR: a one-node cluster on plain files; survives kill -9; inspect reads it."""
import sys, os, signal, subprocess, tempfile
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from kit import *

with tempfile.TemporaryDirectory(dir="/var/tmp") as d:
    env = {"ASHLAR_ADMIN": f"unix:{d}/admin.sock"}
    log = open(f"{d}/log", "wb")

    def start():
        p = subprocess.Popen([f"{BIN}/ashlard", "run", "--standalone", d, "--size", "2G", "--cache", "256M"],
                             stdout=log, stderr=log)

        def serving():
            if p.poll() is not None:
                fail("ashlard ended:\n" + open(f"{d}/log").read()[-3000:])
            rc, out, _ = sh(f"{BIN}/ashlar", "diskgroup", "list", "-o", "json", rc=None, env=env)
            return rc == 0 and any(g["state"] == "active" for g in json.loads(out)["diskgroups"])
        watch_for("the standalone node", serving, 60)
        return p

    p = start()
    try:
        sh(f"{BIN}/ashlar", "volume", "create", "v", "--size", "1G", "--copies", "1", env=env)
        uri = f"nbd+unix:///v?socket={d}/nbd.sock"
        step("fio with verification")
        fio(uri, "--rw=randwrite", "--bs=4k", "--iodepth=32", "--size=512m", "--io_size=256m", "--verify=crc32c",
            "--do_verify=1", "--verify_fatal=1")
        sh("qemu-io", "-f", "raw", "-c", "write -P 0x5a 700M 8M", uri)
        step("kill -9, start again")
        p.send_signal(signal.SIGKILL)
        p.wait()
        p = start()
        watch_for("the data", lambda: "verification failed" not in
                  sh("qemu-io", "-f", "raw", "-c", "read -P 0x5a 700M 8M", uri), 10)
        step("SIGTERM is a clean stop")
        p.send_signal(signal.SIGTERM)
        if p.wait(timeout=20) != 0:
            fail(f"exit {p.returncode} after SIGTERM")
        step("inspect")
        for f in ("capacity", "cache"):
            sh(f"{BIN}/ashlard", "inspect", f"{d}/{f}")
    finally:
        if p.poll() is None:
            p.kill()
        p.wait()
print("passed")
