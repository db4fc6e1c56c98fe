#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kill -9 of each node in turn under load, from a compute host of a two-layer cluster: no I/O error, no
verify error, nothing lost, no stall over 1 s, all replicas in-sync again at the end. With ASHLAR_TEST_LONG=1
ten times in all."""
import subprocess, sys, os, time
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from kit import *

lab = Lab("killeach", "--nodes", "3", "--copies", "2", "--ram", "--mode", "two-layer")
lab.volume("v", "1G")
lab.volume("h", "256M")
lab.volume("g", "256M")
gauge = Load(lab.uri("client", "g"), "256m", iops=500)
history = History(lab, "h", ["client"])
step("fio: random 4 KiB writes with verify=crc32c")
f = subprocess.Popen(["fio", "--name=j", "--ioengine=nbd", f"--uri={lab.uri('client', 'v')}", "--rw=randwrite",
                      "--bs=4k", "--iodepth=16", "--size=1g", f"--io_size={1536 if LONG else 384}m", "--verify=crc32c", "--verify_fatal=1",
                      "--verify_backlog=2048", "--do_verify=1", "--verify_state_save=0", "--rate_iops=8000"],
                     stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
for node in ("1", "2", "3") * 3 + ("1",) if LONG else ("1", "2", "3"):
    step(f"kill node {node}")
    with gauge.during(f"kill {node}", limit_ms=1000):
        lab.do("kill", node)
        lab.do("wait", "leader", rc=None)
        time.sleep(1.2)  # a stall would be over 1 s by then
    step(f"start node {node}")
    lab.do("start", node)
    lab.in_sync()
out, _ = f.communicate(timeout=900 if LONG else 240)
if f.returncode or "verify:" in out:
    fail(f"fio: exit {f.returncode}\n{out[-3000:]}")
gauge.finish()
out = history.finish()
if " 0 errors" not in out:
    fail("a client saw an I/O error")
lab.in_sync()
lab.done()
