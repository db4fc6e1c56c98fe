/* SPDX-License-Identifier: Apache-2.0 */
/* Devices: exclusive open, superblocks, blocking I/O for set-up, recovery and the destager thread.
 * The lock is on the very file description that does the I/O: the kernel keeps it until the last
 * in-flight write of a dead predecessor has ended. A device that failed once stays failed: after a
 * failed flush nobody knows what it holds. */
#include "store/device.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#include "node/base/bytes.h"
#include "node/base/err.h"
#include "node/base/log.h"
#include "node/loop/gather.h"

/* BLKGETSIZE64. The headers that name it also define a BLOCK_SIZE of 1024, which must not get in
 * here. */
#define IOCTL_DEVICE_BYTES _IOR(0x12, 114, size_t)
_Static_assert(BLOCK_SIZE == 4096, "another header's BLOCK_SIZE");

#define HASHED 568u /* bytes of a superblock before its hash */

void superblock_encode(const struct superblock *sb, uint8_t out[BLOCK_SIZE])
{
	struct writer w = writer_init(out, BLOCK_SIZE);

	memset(out, 0, BLOCK_SIZE);
	write_u64(&w, SUPERBLOCK_MAGIC);
	write_u32(&w, SUPERBLOCK_FORMAT);
	write_u32(&w, sb->role);
	write_bytes(&w, sb->cluster.b, 16);
	write_bytes(&w, sb->node.b, 16);
	write_bytes(&w, sb->group.b, 16);
	write_bytes(&w, sb->device.b, 16);
	write_bytes(&w, sb->log.b, 16);
	write_u32(&w, sb->group_incarnation);
	write_u32(&w, sb->log_incarnation);
	write_u32(&w, sb->node_incarnation);
	write_u16(&w, sb->index);
	write_u16(&w, sb->group_number);
	write_u32(&w, sb->flags);
	write_u32(&w, sb->devices);
	write_u64(&w, sb->size);
	write_u64(&w, sb->log_start);
	write_u64(&w, sb->log_len);
	write_u64(&w, sb->data_start);
	write_u64(&w, sb->data_len);
	write_u64(&w, sb->segment_size);
	write_u64(&w, sb->log_segment_size);
	write_u64(&w, sb->sequence);
	for (unsigned i = 0; i < GROUP_DEVICES_MAX; i++) {
		const struct superblock_member *m = &sb->member[i];

		write_bytes(&w, m->device.b, 16);
		write_u16(&w, m->role);
		write_u16(&w, m->state);
		write_u32(&w, 0);
		write_u64(&w, m->size);
		write_u64(&w, m->data_start);
		write_u64(&w, m->data_len);
	}
	CHECK(w.len == HASHED);
	write_u64(&w, hash_xxh3(out, HASHED, 0));
}

static bool members_ok(const struct superblock *sb)
{
	for (unsigned i = 0; i < GROUP_DEVICES_MAX; i++) {
		const struct superblock_member *m = &sb->member[i];

		if (!m->role)
			continue;
		if ((m->role != DEVICE_CACHE && m->role != DEVICE_CAPACITY) || m->state > MEMBER_FAILED ||
		    m->data_start % BLOCK_SIZE || m->data_start > m->size ||
		    m->data_len > m->size - m->data_start ||
		    (sb->segment_size && m->data_len % sb->segment_size))
			return false;
	}
	return true;
}

static bool region_ok(const struct superblock *sb, uint64_t start, uint64_t len, uint64_t segment)
{
	if (!len)
		return true;
	return start % BLOCK_SIZE == 0 && start >= BLOCK_SIZE && start <= sb->size &&
	       len <= sb->size - start && segment % BLOCK_SIZE == 0 && segment &&
	       len % segment == 0;
}

int superblock_decode(const uint8_t in[BLOCK_SIZE], struct superblock *out)
{
	struct reader r = reader_init(in, HASHED);

	memset(out, 0, sizeof(*out));
	if (read_u64(&r) != SUPERBLOCK_MAGIC)
		return -ENODATA;
	if (hash_xxh3(in, HASHED, 0) != get_le64(in + HASHED))
		return -ERR_CORRUPT;
	if (read_u32(&r) != SUPERBLOCK_FORMAT)
		return -ERR_VERSION;
	out->role = read_u32(&r);
	read_copy(&r, out->cluster.b, 16);
	read_copy(&r, out->node.b, 16);
	read_copy(&r, out->group.b, 16);
	read_copy(&r, out->device.b, 16);
	read_copy(&r, out->log.b, 16);
	out->group_incarnation = read_u32(&r);
	out->log_incarnation = read_u32(&r);
	out->node_incarnation = read_u32(&r);
	out->index = read_u16(&r);
	out->group_number = read_u16(&r);
	out->flags = read_u32(&r);
	out->devices = read_u32(&r);
	out->size = read_u64(&r);
	out->log_start = read_u64(&r);
	out->log_len = read_u64(&r);
	out->data_start = read_u64(&r);
	out->data_len = read_u64(&r);
	out->segment_size = read_u64(&r);
	out->log_segment_size = read_u64(&r);
	out->sequence = read_u64(&r);
	for (unsigned i = 0; i < GROUP_DEVICES_MAX; i++) {
		struct superblock_member *m = &out->member[i];

		read_copy(&r, m->device.b, 16);
		m->role = read_u16(&r);
		m->state = read_u16(&r);
		read_u32(&r);
		m->size = read_u64(&r);
		m->data_start = read_u64(&r);
		m->data_len = read_u64(&r);
	}
	if (!members_ok(out) || (out->role != DEVICE_CACHE && out->role != DEVICE_CAPACITY) ||
	    out->index >= GROUP_DEVICES_MAX || !out->devices || out->devices > GROUP_DEVICES_MAX ||
	    !region_ok(out, out->log_start, out->log_len, out->log_segment_size) ||
	    !region_ok(out, out->data_start, out->data_len, out->segment_size))
		return -ERR_CORRUPT;
	return 0;
}

#define DEAD_HOLDER_MS 5000u /* a dead process' writes end by then, or the device has a fault of its own */
#define DEAD_HOLDER_POLL_MS 10u

/* The process that holds a flock on the open file, or 0. */
static long lock_holder(int fd)
{
	struct stat st;
	char line[256];
	long holder = 0;
	FILE *f = fopen("/proc/locks", "re");

	if (!f || fstat(fd, &st)) {
		if (f)
			fclose(f);
		return 0;
	}
	while (fgets(line, sizeof(line), f)) {
		long pid;
		unsigned major, minor;
		unsigned long ino;

		if (sscanf(line, "%*d: FLOCK %*s %*s %ld %x:%x:%lu", &pid, &major, &minor, &ino) ==
			    4 &&
		    ino == st.st_ino && major == major(st.st_dev) && minor == minor(st.st_dev))
			holder = pid;
	}
	fclose(f);
	return holder;
}

int device_lock(struct device *d, int how)
{
	long holder;

	for (unsigned waited = 0;; waited += DEAD_HOLDER_POLL_MS) {
		if (!flock(d->fd, how | LOCK_NB))
			return 0;
		if (errno != EWOULDBLOCK)
			return -errno;
		holder = lock_holder(d->fd);
		if (waited >= DEAD_HOLDER_MS || (holder > 0 && !kill((pid_t)holder, 0)))
			break;
		usleep(DEAD_HOLDER_POLL_MS * 1000);
	}
	log_error("store", "the device is held by another process", "device=%s pid=%ld", d->path, holder);
	return -ERR_BUSY;
}

static bool write_through(const struct stat *st)
{
	static const char *const forms[] = {"/sys/dev/block/%u:%u/queue/write_cache",
					    "/sys/dev/block/%u:%u/../queue/write_cache"};

	for (unsigned i = 0; i < ARRAY_LEN(forms); i++) {
		char path[96], text[32] = "";
		FILE *f;

		snprintf(path, sizeof(path), i ? forms[1] : forms[0], major(st->st_rdev),
			 minor(st->st_rdev));
		f = fopen(path, "re");
		if (!f)
			continue;
		if (!fgets(text, sizeof(text), f))
			text[0] = 0;
		fclose(f);
		return strncmp(text, "write through", 13) == 0;
	}
	return false;
}

static char *faults_path(const char *path);

static int open_fd(struct device *d, const struct stat *st, bool read_only)
{
	int flags = (read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC;

	if (S_ISBLK(st->st_mode) && !read_only)
		flags |= O_EXCL;
	if (!d->buffered) {
		d->fd = open(d->path, flags | O_DIRECT);
		if (d->fd >= 0)
			return 0;
		if (errno != EINVAL)
			return -errno;
		d->buffered = true;
		log_warn("device", "the file system refuses O_DIRECT: using buffered files",
			 "path=%s", d->path);
	}
	d->fd = open(d->path, flags);
	if (d->fd < 0)
		return -errno;
	/* After a flush that failed the page cache may hold what the device does not: recovery is to see the
	 * device. */
	(void)posix_fadvise(d->fd, 0, 0, POSIX_FADV_DONTNEED);
	return 0;
}

int device_open(struct device *d, const char *path, bool buffered, bool read_only)
{
	struct stat st;
	uint64_t size;
	int rc;

	*d = (struct device){.fd = -1, .buffered = buffered, .needs_flush = true};
	if (stat(path, &st))
		return -errno;
	if (!S_ISREG(st.st_mode) && !S_ISBLK(st.st_mode))
		return -EINVAL;
	d->path = xstrdup(path);
	d->faults = faults_path(path);
	rc = open_fd(d, &st, read_only);
	io_file_opened(d->fd);
	if (rc == -EBUSY) {
		log_error("store", "the device is in use (mounted, or held by another program)",
			  "device=%s", path);
		rc = -ERR_BUSY;
	}
	if (rc) {
		device_close(d);
		return rc;
	}
	rc = read_only ? 0 : device_lock(d, LOCK_EX);
	if (rc) {
		device_close(d);
		return rc;
	}
	if (fstat(d->fd, &st)) {
		rc = -errno;
		device_close(d);
		return rc;
	}
	size = (uint64_t)st.st_size;
	if (S_ISBLK(st.st_mode)) {
		if (ioctl(d->fd, IOCTL_DEVICE_BYTES, &size)) {
			rc = -errno;
			device_close(d);
			return rc;
		}
		d->needs_flush = d->buffered || !write_through(&st);
	}
	d->size = round_down(size, BLOCK_SIZE);
	if (d->size < 4 * BLOCK_SIZE) {
		device_close(d);
		return -EINVAL;
	}
	return 0;
}

void device_close(struct device *d)
{
	if (d->fd >= 0) {
		io_file_closed(d->fd);
		close(d->fd);
	}
	free(d->path);
	free(d->faults);
	d->fd = -1;
	d->path = d->faults = NULL;
}

void device_swap(struct device *a, struct device *b)
{
	struct device was = *a;

	*a = *b;
	*b = was;
	a->on_failed = was.on_failed;
	a->on_failed_arg = was.on_failed_arg;
	b->on_failed = NULL;
}

/* ---- Failing ---- */

void device_fail(struct device *d, int rc, const char *what, uint64_t off)
{
	int none = 0;

	if (!__atomic_compare_exchange_n(&d->failed, &none, rc, false, __ATOMIC_RELAXED,
					 __ATOMIC_RELAXED))
		return;
	log_error("store", "device failed", "device=%s op=%s offset=%llu error=%s",
		  d->path ? d->path : "?", what, (unsigned long long)off, err_name(rc));
	if (d->on_failed)
		d->on_failed(d->on_failed_arg, d);
}

void device_done(struct device *d, enum device_op op, uint64_t us, int rc)
{
	static const char *const names[] = {"read", "write", "flush"};
	struct device_counters *c = &d->counters;
	unsigned bucket = us ? MIN(DEVICE_BUCKETS - 1, 64u - (unsigned)__builtin_clzll(us)) : 0;

	if (rc >= 0) {
		atomic_fetch_add_explicit(&c->sum_us[op], us, memory_order_relaxed);
		atomic_fetch_add_explicit(&c->bucket[op][bucket], 1, memory_order_relaxed);
		if (op == DEVICE_READ && __atomic_load_n(&d->read_streak, __ATOMIC_RELAXED))
			__atomic_store_n(&d->read_streak, 0, __ATOMIC_RELAXED);
		return;
	}
	atomic_fetch_add_explicit(&c->errors[op], 1, memory_order_relaxed);
	/* One bad block is asked for more than once; many in a row are a device that is gone. While nobody
	 * listens, which is during recovery, every block gets its chance. */
	if (op == DEVICE_READ && !d->on_failed)
		return;
	if (op != DEVICE_READ ||
	    __atomic_add_fetch(&d->read_streak, 1, __ATOMIC_RELAXED) >= DEVICE_READ_STREAK ||
	    atomic_load_explicit(&c->errors[op], memory_order_relaxed) >= DEVICE_READ_ERRORS)
		device_fail(d, rc, names[op], 0);
}

/* ---- Tests: faults from a file --------------------------------------------------------------
 * ASHLAR_TEST_DEVICE_FAULTS names a directory. What is in the file there that has the device's path for a
 * name, with % for /, happens to it: words "read", "write", "flush" fail with EIO, "slow N" takes N ms
 * longer. */

static char *faults_path(const char *path)
{
	const char *dir = getenv("ASHLAR_TEST_DEVICE_FAULTS");
	char *file = dir && *dir ? xasprintf("%s/%s", dir, path) : NULL;

	for (char *c = file ? file + strlen(dir) + 1 : NULL; c && *c; c++)
		*c = *c == '/' ? '%' : *c;
	return file;
}

int device_fault_ask(struct device *d, enum device_op op)
{
	static const char *const names[] = {"read", "write", "flush"};
	char text[64] = "", *slow;
	FILE *f = fopen(d->faults, "re");

	if (!f)
		return 0;
	if (!fgets(text, sizeof(text), f))
		text[0] = 0;
	fclose(f);
	slow = strstr(text, "slow ");
	if (slow)
		usleep((useconds_t)strtoul(slow + 5, NULL, 10) * 1000);
	if (!strstr(text, names[op]))
		return 0;
	if (strstr(text, "once"))
		(void)unlink(d->faults);
	return -EIO;
}

/* O_DIRECT wants aligned memory; callers with odd buffers (set-up code) go through a bounce buffer.
 */
static uint8_t *bounce_for(const struct device *d, const void *p, size_t n)
{
	return !d->buffered && (uintptr_t)p % BLOCK_SIZE ? xalloc_aligned(BLOCK_SIZE, n) : NULL;
}

static uint64_t now_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000 + (uint64_t)ts.tv_nsec / 1000;
}

static int pread_all(struct device *d, uint8_t *at, size_t n, uint64_t off)
{
	size_t done = 0;

	while (done < n) {
		ssize_t k = pread(d->fd, at + done, n - done, (off_t)(off + done));

		if (k < 0 && errno == EINTR)
			continue;
		if (k < 0)
			return -errno;
		if (k == 0)
			return -ENODATA;
		done += (size_t)k;
	}
	return 0;
}

int device_pread(struct device *d, void *p, size_t n, uint64_t off)
{
	CLEANUP(free_ptr) uint8_t *bounce = NULL;
	uint64_t start;
	int rc;

	if (d->fd < 0 || device_failed(d))
		return -ERR_DEVICE;
	bounce = bounce_for(d, p, n);
	start = now_us();
	rc = device_fault(d, DEVICE_READ);
	if (!rc)
		rc = pread_all(d, bounce ? bounce : p, n, off);
	device_done(d, DEVICE_READ, now_us() - start, rc);
	if (!rc && bounce)
		memcpy(p, bounce, n);
	return rc;
}

void device_read_many(struct gather *g, struct device_read *reads, unsigned n)
{
	struct gather_read r[64];

	for (unsigned i = 0, some; i < n; i += some) {
		some = MIN(n - i, ARRAY_LEN(r));
		for (unsigned k = 0; k < some; k++)
			r[k] = (struct gather_read){reads[i + k].device->fd, reads[i + k].data,
						    reads[i + k].len, reads[i + k].off, 0};
		gather_run(g, r, some);
		for (unsigned k = 0; k < some; k++) {
			reads[i + k].rc = r[k].rc;
			if (r[k].rc < 0)
				device_done(reads[i + k].device, DEVICE_READ, 0, r[k].rc);
		}
	}
}

static int pwrite_all(struct device *d, const uint8_t *at, size_t n, uint64_t off)
{
	size_t done = 0;

	while (done < n) {
		ssize_t k = pwrite(d->fd, at + done, n - done, (off_t)(off + done));

		if (k < 0 && errno == EINTR)
			continue;
		if (k <= 0)
			return k ? -errno : -EIO;
		done += (size_t)k;
	}
	return 0;
}

int device_pwrite(struct device *d, const void *p, size_t n, uint64_t off)
{
	CLEANUP(free_ptr) uint8_t *bounce = NULL;
	uint64_t start;
	int rc = device_failed(d);

	if (rc || d->fd < 0)
		return rc ? rc : -ERR_DEVICE;
	bounce = bounce_for(d, p, n);
	if (bounce)
		memcpy(bounce, p, n);
	start = now_us();
	rc = device_fault(d, DEVICE_WRITE);
	if (!rc)
		rc = pwrite_all(d, bounce ? bounce : p, n, off);
	if (rc)
		device_fail(d, rc, "write", off);
	device_done(d, DEVICE_WRITE, now_us() - start, rc);
	return rc;
}

bool device_answers(struct device *d)
{
	CLEANUP(free_ptr) uint8_t *b = xalloc_aligned(BLOCK_SIZE, BLOCK_SIZE);
	int rc = device_pread(d, b, BLOCK_SIZE, 0);

	if (rc)
		rc = device_pread(d, b, BLOCK_SIZE, d->size - BLOCK_SIZE);
	if (rc)
		device_fail(d, rc, "read", 0);
	return !rc;
}

int device_flush(struct device *d)
{
	uint64_t start;
	int rc = device_failed(d);

	if (rc || !d->needs_flush)
		return rc;
	start = now_us();
	rc = device_fault(d, DEVICE_FLUSH);
	if (!rc && fdatasync(d->fd))
		rc = -errno;
	device_done(d, DEVICE_FLUSH, now_us() - start, rc);
	return rc;
}

int device_read_superblock(struct device *d)
{
	CLEANUP(free_ptr) uint8_t *b = xalloc_aligned(BLOCK_SIZE, BLOCK_SIZE);
	const uint64_t at[2] = {0, d->size - BLOCK_SIZE};
	int worst = -ENODATA, found = 0;

	for (unsigned i = 0; i < 2; i++) {
		struct superblock sb;
		int rc = device_pread(d, b, BLOCK_SIZE, at[i]);

		if (!rc)
			rc = superblock_decode(b, &sb);
		if (!rc && sb.size != d->size && i == 1)
			rc = -ERR_CORRUPT; /* the end of a copy of another size */
		if (rc) {
			if (worst == -ENODATA || rc == -ERR_VERSION)
				worst = rc;
			continue;
		}
		if (!found || sb.sequence > d->sb.sequence) {
			d->sb = sb;
			d->sb_first = !i;
		}
		found = 1;
	}
	if (!found)
		return worst;
	return d->sb.size <= d->size ? 0 : -ERR_CORRUPT;
}

int device_write_superblock(struct device *d)
{
	CLEANUP(free_ptr) uint8_t *b = xalloc_aligned(BLOCK_SIZE, BLOCK_SIZE);
	unsigned first = d->sb_first;
	int rc;

	/* One copy at a time, flushed, and first the one that may be torn already: at each moment the other
	 * is whole. The one that was read may be of a process that died before its flush. */
	d->sb.sequence++;
	superblock_encode(&d->sb, b);
	rc = device_flush(d);
	for (unsigned i = 0; i < 2 && !rc; i++) {
		d->sb_first = first ^ i;
		rc = device_pwrite(d, b, BLOCK_SIZE, d->sb_first ? d->sb.size - BLOCK_SIZE : 0);
		if (!rc)
			rc = device_flush(d);
	}
	return rc;
}
