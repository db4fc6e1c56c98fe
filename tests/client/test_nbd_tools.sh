#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The NBD server against the tools that people use it with. Usage: test_nbd_tools.sh nbd_ram_server
# Skips (77) when one of the tools is missing.
set -eu

server=$1
for tool in nbdinfo nbdcopy qemu-io qemu-img fio cmp; do
	command -v "$tool" >/dev/null 2>&1 || { echo "skipped: $tool is not installed"; exit 77; }
done

dir=$(mktemp -d "${TMPDIR:-/tmp}/ashlar-nbd-XXXXXX")
pid=
cleanup() {
	[ -z "$pid" ] || kill "$pid" 2>/dev/null || true
	rm -rf "$dir"
}
trap cleanup EXIT
mkfifo "$dir/out"
exec 3<>"$dir/out" # held open, so that the server's last line finds a reader
"$server" "$dir/s" 96 127.0.0.1:0 >"$dir/out" 3>&- &
pid=$!
read -r line <&3
[ "$line" = ready ]
uri="nbd+unix:///disk?socket=$dir/s"

echo "nbdinfo"
nbdinfo --json "$uri" >"$dir/info"
for want in '"export-size": 100663296' '"can_multi_conn": true' '"can_fua": true' '"can_flush": true' \
	'"can_trim": true' '"can_zero": true' '"can_fast_zero": true' '"can_df": true' '"can_cache": true' \
	'"is_read_only": false' '"structured": true' '"base:allocation"' '"block_size_minimum": 1,' \
	'"block_size_preferred": 4096' '"block_size_maximum": 33554432'; do
	grep -qF "$want" "$dir/info" || { echo "nbdinfo does not say $want"; cat "$dir/info"; exit 1; }
done
nbdinfo --list "nbd+unix:///?socket=$dir/s" >"$dir/list"
grep -q 'export="disk"' "$dir/list"
grep -q 'export="odd"' "$dir/list"
! nbdinfo "nbd+unix:///none?socket=$dir/s" >/dev/null 2>&1

echo "nbdcopy: a sparse image there and back"
truncate -s 96M "$dir/a"
dd if=/dev/urandom of="$dir/a" bs=1M count=10 seek=3 conv=notrunc 2>/dev/null
dd if=/dev/urandom of="$dir/a" bs=1k count=700 seek=60001 conv=notrunc 2>/dev/null
nbdcopy --connections=4 --requests=64 --flush "$dir/a" "$uri"
nbdcopy --connections=4 --requests=64 "$uri" "$dir/b"
cmp "$dir/a" "$dir/b"
qemu-img compare -f raw -F raw "$dir/a" "$uri"
nbdinfo --map "$uri" >"$dir/map"
[ "$(wc -l <"$dir/map")" -ge 4 ]
grep -q 'hole,zero' "$dir/map"

echo "qemu-io: odd sizes, zeroes, discard, FUA"
qemu-io -f raw -c 'write -P 1 0 64k' -c 'write -P 2 513 511' -c 'write -f -P 3 100001 200003' \
	-c 'write -z 4k 8k' -c 'write -z -u 20k 4k' -c 'write -z -n 30k 1k' -c 'discard 40k 8k' -c flush \
	-c 'read -P 2 513 511' -c 'read -P 0 4k 8k' -c 'read -P 0 20k 4k' -c 'read -P 0 30k 1k' \
	-c 'read -P 1 31k 1k' -c 'read -P 3 100001 200003' "$uri" >"$dir/io"
! grep -iE 'fail|error' "$dir/io"
odd="nbd+unix:///odd?socket=$dir/s"
qemu-io -f raw -c 'write -P 9 8388608 512' -c 'read -P 9 8388608 512' "$odd" >"$dir/io"
! grep -iE 'fail|error' "$dir/io"
qemu-img bench -f raw -c 20000 -d 32 -w --flush-interval 64 "$uri" >/dev/null

echo "fio: verified random writes"
fio --name=v --ioengine=nbd --uri="$uri" --rw=randrw --bsrange=512-128k --size=64M --io_size=48M --iodepth=32 \
	--verify=crc32c --verify_fatal=1 --output="$dir/fio" || { cat "$dir/fio"; exit 1; }
grep -q 'err= 0' "$dir/fio" || { cat "$dir/fio"; exit 1; }

echo "the server ends at SIGTERM"
kill "$pid"
wait "$pid"
pid=
echo passed
