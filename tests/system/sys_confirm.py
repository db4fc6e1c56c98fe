#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Nodes with confirm_reads, as in guests that may be paused (N6): reads wait for the other replica's word while there is
one, in far fewer messages than reads, and for nobody while there is none; a killed node loses nothing and fails nothing."""
import sys, os, re
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from kit import *

lab = Lab("confirm", "--nodes", "2", "--witness", "--copies", "2", "--ram", "--size", "1G", "--cache", "256M",
          "--config", "confirm_reads=true")


def count(name):
    """Over both storage nodes; one that is down counts nothing."""
    return sum(int(n) for node in (1, 2) if lab.alive(node)
               for n in re.findall(rf"^ashlar_replication_{name}{{.*}} (\d+)$", lab.metrics(node), re.M))


def read(node, depth):
    """How many blocks were read, and how many beacons that took."""
    reads, confirms = count("reads"), count("confirms")
    sh("fio", "--name=j", "--ioengine=nbd", f"--uri={lab.uri(node, 'v')}", "--rw=randread", "--bs=4k",
       f"--iodepth={depth}", "--size=64m", "--number_ios=4000")
    return count("reads") - reads, count("confirms") - confirms


lab.volume("v", "64M")
lab.volume("h", "64M")
lab.in_sync()
reads, confirms = read(1, 1)
step(f"one at a time: {reads} reads, {confirms} beacons for them")
if reads < 4000 or not reads * 0.9 <= confirms <= reads * 1.1:
    fail("each read by itself should have been confirmed")
reads, confirms = read(1, 64)
step(f"64 at a time: {reads} reads, {confirms} beacons for them")
if not 0 < confirms < reads * 0.8:
    fail("reads of one turn should have been confirmed together")
history = History(lab, "h", [1])
step("kill node 2")
lab.do("kill", 2)
watch_for("all primaries to be at node 1, alone",
          lambda: "DATA_SINGLE_COPY" in json.dumps(lab.json("health")) and count("serving") == count("objects"), 20)
reads, confirms = read(1, 64)
step(f"alone: {reads} reads, {confirms} beacons for them")
if reads < 4000 or confirms:
    fail("there was nobody to confirm these")
lab.do("start", 2)
lab.in_sync()
out = history.finish()
if " 0 errors" not in out:
    fail("a client saw an I/O error")
lab.done()
