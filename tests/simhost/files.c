/* SPDX-License-Identifier: Apache-2.0 */
/* Paths and file descriptors of virtual processes, by the linker's --wrap. Paths that do not begin
 * with VPATH, and everything outside of a process, go on to libc. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "node/loop/gather.h"
#include "tests/simhost/impl.h"

#define FD_FIRST (1 << 20)

int __real_open(const char *path, int flags, ...);
int __real_close(int fd);
int __real_stat(const char *path, struct stat *st);
int __real_fstat(int fd, struct stat *st);
int __real_flock(int fd, int how);
int __real_access(const char *path, int mode);
ssize_t __real_pread(int fd, void *p, size_t n, off_t off);
ssize_t __real_pwrite(int fd, const void *p, size_t n, off_t off);
int __real_fdatasync(int fd);
int __real_fsync(int fd);
int __wrap_open(const char *path, int flags, ...);
int __wrap_close(int fd);
int __wrap_stat(const char *path, struct stat *st);
int __wrap_fstat(int fd, struct stat *st);
int __wrap_flock(int fd, int how);
int __wrap_access(const char *path, int mode);
ssize_t __wrap_pread(int fd, void *p, size_t n, off_t off);
ssize_t __wrap_pwrite(int fd, const void *p, size_t n, off_t off);
int __wrap_fdatasync(int fd);
int __wrap_fsync(int fd);

static bool is_ours(const char *path)
{
	return fiber_current() && !strncmp(path, VPATH, strlen(VPATH));
}

struct vfd *vfd_find(int fd)
{
	struct vfd *f;

	if (fd < FD_FIRST || !vproc_current())
		return NULL;
	list_for_each(f, &vproc_current()->files, link) if (f->fd == fd) return f;
	return NULL;
}

static void fd_free(struct vfd *f)
{
	if (f->file->locked_by == f->proc)
		f->file->locked_by = NULL;
	list_del(&f->link);
	keep_free(f);
}

void fds_close(struct vproc *p)
{
	while (!list_empty(&p->files))
		fd_free(list_first(&p->files, struct vfd, link));
}

static int fail(int code)
{
	errno = code;
	return -1;
}

int __wrap_open(const char *path, int flags, ...)
{
	static int next = FD_FIRST;
	struct vfile *file;
	struct vio io;
	struct vfd *f;
	mode_t mode;
	va_list ap;

	va_start(ap, flags);
	mode = va_arg(ap, mode_t);
	va_end(ap);
	if (!is_ours(path))
		return __real_open(path, flags, mode);
	file = vfile_find(vproc_current()->host, path);
	if (!file)
		return fail(ENOENT);
	io = (struct vio){.host = vproc_current()->host,
			  .proc = vproc_current(),
			  .kind = VIO_OPEN,
			  .path = path};
	switch (vio_start(&io)) {
	case VFAULT_NONE:
		break;
	case VFAULT_CUT_DURING:
	case VFAULT_CUT_AFTER:
		vio_die(io.host, VFAULT_CUT_AFTER);
	case VFAULT_KILL_AFTER:
		vio_die(io.host, VFAULT_KILL_AFTER);
	default:
		return fail(EIO);
	}
	f = keep_alloc(sizeof(*f));
	f->proc = vproc_current();
	f->file = file;
	f->fd = next++;
	f->writable = (flags & O_ACCMODE) != O_RDONLY;
	list_push_back(&f->proc->files, &f->link);
	fiber_crossing();
	return f->fd;
}

int __wrap_close(int fd)
{
	struct vfd *f = vfd_find(fd);

	if (!f)
		return vsock_close(fd) ? 0 : __real_close(fd);
	fd_free(f);
	return 0;
}

static void stat_of(const struct vfile *f, struct stat *st)
{
	memset(st, 0, sizeof(*st));
	st->st_mode = f->dir ? S_IFDIR | 0700 : S_IFREG | 0600;
	st->st_size = (off_t)f->size;
	st->st_ino = (ino_t)(uintptr_t)f;
}

int __wrap_stat(const char *path, struct stat *st)
{
	struct vfile *f;

	if (!is_ours(path))
		return __real_stat(path, st);
	f = vfile_find(vproc_current()->host, path);
	if (!f)
		return fail(ENOENT);
	stat_of(f, st);
	return 0;
}

int __wrap_fstat(int fd, struct stat *st)
{
	struct vfd *f = vfd_find(fd);

	if (!f)
		return __real_fstat(fd, st);
	stat_of(f->file, st);
	return 0;
}

int __wrap_access(const char *path, int mode)
{
	if (!is_ours(path))
		return __real_access(path, mode);
	return vfile_find(vproc_current()->host, path) ? 0 : fail(ENOENT);
}

int __wrap_flock(int fd, int how)
{
	struct vfd *f = vfd_find(fd);

	if (!f)
		return __real_flock(fd, how);
	if (how & LOCK_UN) {
		f->file->locked_by = NULL;
		return 0;
	}
	if (f->file->locked_by)
		return fail(EWOULDBLOCK);
	f->file->locked_by = f->proc;
	return 0;
}

ssize_t __wrap_pread(int fd, void *p, size_t n, off_t off)
{
	struct vfd *f = vfd_find(fd);
	struct iovec v = {p, n};
	int rc;

	if (!f)
		return __real_pread(fd, p, n, off);
	rc = disk_do(f, VIO_READ, &v, 1, (uint64_t)off);
	if (rc == -ENODATA)
		return 0;
	return rc ? fail(-rc) : (ssize_t)n;
}

ssize_t __wrap_pwrite(int fd, const void *p, size_t n, off_t off)
{
	struct vfd *f = vfd_find(fd);
	struct iovec v = {(void *)(uintptr_t)p, n};
	int rc;

	if (!f)
		return __real_pwrite(fd, p, n, off);
	if (!f->writable)
		return fail(EBADF);
	rc = disk_do(f, VIO_WRITE, &v, 1, (uint64_t)off);
	return rc ? fail(-rc) : (ssize_t)n;
}

int __wrap_fdatasync(int fd)
{
	struct vfd *f = vfd_find(fd);
	int rc;

	if (!f)
		return __real_fdatasync(fd);
	rc = disk_do(f, VIO_FLUSH, NULL, 0, 0);
	return rc ? fail(-rc) : 0;
}

int __wrap_fsync(int fd)
{
	return vfd_find(fd) ? __wrap_fdatasync(fd) : __real_fsync(fd);
}

/* ---- node/loop/gather.h: one read after the other ---------------------------------------------- */

struct gather *gather_create(unsigned depth)
{
	return NULL;
}

void gather_destroy(struct gather *g)
{
}

void gather_run(struct gather *g, struct gather_read *reads, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		ssize_t got = pread(reads[i].fd, reads[i].data, reads[i].len, (off_t)reads[i].off);

		reads[i].rc = got < 0 ? -errno : (size_t)got == reads[i].len ? 0 : -ENODATA;
	}
}
