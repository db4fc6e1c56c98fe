#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds the house in shape: folders include only what stands on a lower floor, each outside library is
included by its door alone, files keep their size, sources carry their licence line, and no assert()
and no unfinished marks slip in.   tidy.py ROOT | tidy.py --self-test"""
import os, re, sys, tempfile

# Which folders a folder may include, besides itself.
FLOORS = {
    "node/base": [],
    "node/loop": ["node/base"],
    "net": ["node/base", "node/loop"],
    "store": ["node/base", "node/loop"],
    "cluster": ["node/base", "node/loop", "net", "store"],
    "client": ["node/base", "node/loop", "net", "cluster"],
    "node": ["node/base", "node/loop", "net", "store", "cluster", "client"],
}
# client sees of cluster only the map target; map sees of the house only base and the version type.
CLIENT_CLUSTER = {"cluster/map.h", "cluster/command.h", "cluster/control_msg.h"}
MAP_FILES = re.compile(r"cluster/(map|command|control_msg)[a-z_]*\.[ch]$")
MAP_MAY = re.compile(r"(node/base/.*|store/version\.h|cluster/(map|command|control_msg)[a-z_]*\.h)$")
# The one tool of client/ that talks HTTP instead of the block protocol needs no cluster at all.
CTL_MAY = re.compile(r"(node/base/.*|net/ca\.h|client/.*)$")

DOORS = [  # (header pattern, files that may include it)
    (r"event2?/.*|evhttp\.h|event\.h", r"node/loop/(loop|ring|loop_impl)\.[ch]|node/http[a-z_]*\.[ch]"),
    (r"liburing.*", r"node/loop/(loop_impl\.h|ring\.c|gather\.c)"),
    (r"xxhash.*|xxh3.*", r"node/base/hash\.c"),
    (r"jansson.*", r"node/base/json\.c"),
    (r"cyaml/.*", r"node/config[a-z_]*\.c"),
    (r"rocksdb/.*", r"store/kv\.c|cluster/raft_log\.c"),
    (r"lz4.*", r"store/codec\.c"),
    (r"raft\.h|raft/.*", r"cluster/consensus[a-z_]*\.[ch]|cluster/raft_log\.[ch]"),
    (r"openssl/.*", r"net/(tls|ca)\.c"),
    (r"curl/.*", r"client/ctl/[a-z_]*\.c"),
]
LINES_C, LINES_H, COLUMNS = 1200, 320, 110
BANNED = re.compile(r"\bassert\(|\bTODO\b|\bFIXME\b|\bXXX\b|\bstrcpy\(|\bgets\(|\bsystem\(")


def floor_of(path):
    d = os.path.dirname(path)
    for f in ("node/base", "node/loop"):
        if d == f:
            return f
    return path.split("/")[0]


def check_file(root, path):
    bad = []
    text = open(os.path.join(root, path), encoding="utf-8").read()
    lines = text.split("\n")
    floor = floor_of(path)
    limit = LINES_C if path.endswith(".c") else LINES_H
    if len(lines) > limit:
        bad.append(f"{path}: {len(lines)} lines, the limit is {limit}: find the seam that splits it")
    if "SPDX-License-Identifier" not in lines[0]:
        bad.append(f"{path}:1: the first line is not the SPDX line")
    for n, line in enumerate(lines, 1):
        if len(line.expandtabs(8)) > COLUMNS:
            bad.append(f"{path}:{n}: longer than {COLUMNS} columns")
        if BANNED.search(line) and floor != "tests":
            bad.append(f"{path}:{n}: banned: {line.strip()[:60]}")
        m = re.match(r'\s*#\s*include\s+([<"])([^>"]+)[>"]', line)
        if not m:
            continue
        inc = m.group(2)
        for pattern, allowed in DOORS:
            if re.fullmatch(pattern, inc) and not re.fullmatch(allowed, path) and floor != "tests":
                bad.append(f"{path}:{n}: <{inc}> is not included here; its door is {allowed}")
        if m.group(1) != '"' or floor == "tests":
            continue
        if inc.startswith("tests/"):
            bad.append(f"{path}:{n}: product code includes {inc}")
            continue
        target = floor_of(inc)
        if target != floor and target not in FLOORS.get(floor, []):
            bad.append(f"{path}:{n}: {floor} may not include {inc}")
        if MAP_FILES.match(path) and not MAP_MAY.match(inc):
            bad.append(f"{path}:{n}: the map target may not include {inc}")
        if path.startswith("client/ctl/") and not CTL_MAY.match(inc):
            bad.append(f"{path}:{n}: the CLI may not include {inc}")
        elif floor == "client" and target == "cluster" and inc not in CLIENT_CLUSTER:
            bad.append(f"{path}:{n}: client/ sees only the map target of cluster, not {inc}")
    return bad


def check(root):
    bad = []
    for top in ("node", "net", "store", "cluster", "client", "tests"):
        for d, dirs, files in os.walk(os.path.join(root, top)):
            dirs[:] = [x for x in dirs if x not in ("build", "__pycache__")]
            for f in sorted(files):
                if f.endswith((".c", ".h")):
                    bad += check_file(root, os.path.relpath(os.path.join(d, f), root))
    return bad


def self_test():
    """Every rule must be able to fail."""
    cases = {
        "net/a.c": '#include "store/store.h"\n',
        "net/b.c": "#include <jansson.h>\n",
        "client/c.c": '#include "cluster/state.h"\n',
        "cluster/map_x.c": '#include "net/wire.h"\n',
        "store/d.c": "int x; // TODO later\n",
        "node/e.c": "x" * 200 + "\n",
        "node/base/f.c": '#include "node/loop/loop.h"\n',
        "cluster/g.c": '#include "tests/lib/test.h"\n',
        "store/h.c": "\n" * 2000,
    }
    with tempfile.TemporaryDirectory() as root:
        for path, text in cases.items():
            os.makedirs(os.path.join(root, os.path.dirname(path)), exist_ok=True)
            open(os.path.join(root, path), "w").write("/* SPDX-License-Identifier: x */\n" + text)
        bad = check(root)
        missed = [p for p in cases if not any(b.startswith(p + ":") for b in bad)]
        open(os.path.join(root, "net/ok.c"), "w").write('/* SPDX-License-Identifier: x */\n#include "node/loop/loop.h"\n')
        if missed or any(b.startswith("net/ok.c") for b in check(root)):
            print("rules that do not fire:", missed)
            return 1
    return 0


if sys.argv[1:] == ["--self-test"]:
    sys.exit(self_test())
problems = check(sys.argv[1] if len(sys.argv) > 1 else ".")
print("\n".join(problems) or "tidy")
sys.exit(1 if problems else 0)
