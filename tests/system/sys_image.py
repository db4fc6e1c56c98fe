#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The tools people use: a real image in and out is identical, holes are told, odd sizes work."""
import sys, os, tempfile
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from kit import *

lab = Lab("image", "--nodes", "3", "--ram", "--size", "4G", "--cache", "512M")
size = "2G" if LONG else "768M"
lab.volume("img", size)
uri = lab.uri(1, "img")
with tempfile.TemporaryDirectory(dir="/var/tmp") as d:
    image, back = f"{d}/in.ext4", f"{d}/out.raw"
    step("an ext4 image of /usr/share/doc")
    sh("truncate", "-s", size, image)
    sh("mkfs.ext4", "-q", "-d", "/usr/share/doc", image)
    step("qemu-img convert in, compare, convert out, compare")
    sh("qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", image, uri, timeout=600)
    sh("qemu-img", "compare", "-f", "raw", "-F", "raw", image, lab.uri(2, "img"), timeout=600)
    sh("qemu-img", "convert", "-f", "raw", "-O", "raw", lab.uri(3, "img"), back, timeout=600)
    sh("cmp", image, back)
    os.unlink(back)
    step("nbdcopy out, compare")
    sh("nbdcopy", uri, back, timeout=600)
    sh("cmp", image, back)
    sh("e2fsck", "-fn", back)
step("nbdinfo")
sh("nbdinfo", "--json", uri)
sh("nbdinfo", "--can", "multi-conn", uri)
if "img" not in sh("nbdinfo", "--list", uri):
    fail("the export is not listed")
if "hole" not in sh("nbdinfo", "--map", uri):
    fail("a sparse image shows no hole")
step("qemu-io: sub-block writes, zeroes, trims")
for cmds in (["write -P 0xaa 512 1024", "read -P 0xaa 512 1024"], ["write -P 0xbb 4095 4098", "read -P 0xbb 4095 4098"],
             ["write -z 1M 64k", "read -P 0 1M 64k"], ["write -P 0xcc 2M 1M", "discard 2M 512k", "read -P 0xcc 2560k 512k"],
             ["write -f -P 0xdd 1m 3m", "flush", "read -P 0xdd 1m 3m"]):
    args = [a for c in cmds for a in ("-c", c)]
    out = sh("qemu-io", "-f", "raw", *args, uri)
    if "Pattern verification failed" in out or "failed" in out.lower():
        fail(out)
lab.in_sync()
lab.done()
