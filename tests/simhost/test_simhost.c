/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated host itself: what is durable survives, what is not may not, threads and turns run
 * in order, one seed is one history. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/socket.h>
#include <unistd.h>

#include "node/base/bytes.h"
#include "node/base/hash.h"
#include "node/base/log.h"
#include "node/loop/worker.h"
#include "store/kv.h"
#include "tests/lib/test.h"
#include "tests/simhost/simhost.h"
#include "tests/simhost/vnet.h"

#define DISK VPATH "disk"
#define DB   VPATH "db"

static struct vhost *host_new(uint64_t seed)
{
	struct vhost *h;

	simhost_begin(seed);
	h = vhost_create("a");
	vfile_create(h, DISK, 1 << 20);
	vfile_mkdir(h, DB);
	return h;
}

/* ---- Disks ---- */

static void fill(uint8_t *b, uint8_t with)
{
	memset(b, with, BLOCK_SIZE);
}

static uint8_t first_byte(struct vhost *h, unsigned block)
{
	uint8_t b;

	vfile_peek(h, DISK, block * BLOCK_SIZE, &b, 1);
	return b;
}

struct dsync {
	struct wait wait;
	struct loop *loop;
	struct post post;
	struct io io;
	uint8_t block[BLOCK_SIZE];
	int fd;
	uint64_t off;
};

static void dsync_ended(struct wait *w, int rc)
{
	EXPECT_OK(rc);
	loop_stop(container_of(w, struct dsync, wait)->loop);
}

static void dsync_begin(struct post *p)
{
	struct dsync *d = container_of(p, struct dsync, post);

	d->wait.resume = dsync_ended;
	EXPECT_EQ(
		io_write(d->loop, &d->io, d->fd, d->block, BLOCK_SIZE, d->off, IO_DSYNC, &d->wait),
		PENDING);
}

static void dsync_write(int fd, uint8_t with, uint64_t off)
{
	struct dsync d = {.fd = fd, .off = off, .post.fn = dsync_begin};

	fill(d.block, with);
	d.loop = loop_create("io", 8);
	loop_post(d.loop, &d.post);
	loop_run(d.loop);
	loop_destroy(d.loop);
}

/* Block 0 flushed, 1 written durably by a loop, 2 only written, 3 flushed and overwritten. */
static void writer_main(void *arg)
{
	uint8_t b[BLOCK_SIZE];
	int fd = open(DISK, O_RDWR);

	EXPECT(fd >= 0);
	fill(b, 1);
	EXPECT_EQ(pwrite(fd, b, sizeof(b), 0), BLOCK_SIZE);
	EXPECT_EQ(pwrite(fd, b, sizeof(b), 3 * BLOCK_SIZE), BLOCK_SIZE);
	EXPECT_EQ(fdatasync(fd), 0);
	EXPECT_EQ(pwrite(fd, b, sizeof(b), 2 * BLOCK_SIZE), BLOCK_SIZE);
	fill(b, 2);
	EXPECT_EQ(pwrite(fd, b, sizeof(b), 3 * BLOCK_SIZE), BLOCK_SIZE);
	dsync_write(fd, 1, BLOCK_SIZE);
	EXPECT_EQ(pread(fd, b, sizeof(b), 2 * BLOCK_SIZE), BLOCK_SIZE);
	EXPECT_EQ(b[0], 1);
	if (*(bool *)arg)
		vproc_kill(vproc_current());
	else
		vhost_power_cut(vproc_host(vproc_current()));
	EXPECT(false);
}

TEST(simhost, power_cut_loses_only_what_was_not_durable)
{
	unsigned lost = 0, kept = 0, old = 0, garbage = 0;

	for (uint64_t seed = 1; seed <= 60; seed++) {
		struct vhost *h = host_new(seed);
		bool kill9 = false;

		EXPECT(!vproc_run(h, "w", writer_main, &kill9));
		EXPECT_EQ(first_byte(h, 0), 1);
		EXPECT_EQ(first_byte(h, 1), 1);
		lost += first_byte(h, 2) == 0;
		kept += first_byte(h, 2) == 1;
		old += first_byte(h, 3) == 1;
		garbage += first_byte(h, 3) > 2;
		EXPECT(first_byte(h, 3) != 0 || garbage);
		simhost_end();
	}
	EXPECT(lost > 5 && kept > 5 && old > 5 && garbage > 0);
}

TEST(simhost, kill_keeps_what_the_kernel_has)
{
	for (uint64_t seed = 1; seed <= 10; seed++) {
		struct vhost *h = host_new(seed);
		bool kill9 = true;

		EXPECT(!vproc_run(h, "w", writer_main, &kill9));
		for (unsigned i = 0; i < 3; i++)
			EXPECT_EQ(first_byte(h, i), 1);
		EXPECT_EQ(first_byte(h, 3), 2);
		simhost_end();
	}
}

struct one_fault {
	enum vio_kind kind;
	enum vfault fault;
};

static enum vfault one_fault(void *arg, const struct vio *io)
{
	struct one_fault *f = arg;
	enum vfault what = io->kind == f->kind ? f->fault : VFAULT_NONE;

	if (what)
		f->fault = VFAULT_NONE;
	return what;
}

static int faulty_rc[3];
static void faulty_main(void *arg)
{
	uint8_t b[BLOCK_SIZE];
	int fd = open(DISK, O_RDWR);

	fill(b, 7);
	faulty_rc[0] = pwrite(fd, b, sizeof(b), 8 * BLOCK_SIZE) < 0;
	faulty_rc[1] = fdatasync(fd) < 0;
	faulty_rc[2] = pread(fd, b, sizeof(b), 8 * BLOCK_SIZE) < 0;
	close(fd);
}

static unsigned sevens(struct vhost *h)
{
	uint8_t b[1 << 20];
	unsigned n = 0;

	vfile_peek(h, DISK, 0, b, sizeof(b));
	for (unsigned i = 0; i < sizeof(b); i++)
		n += b[i] == 7;
	return n;
}

TEST(simhost, each_fault_does_what_it_says)
{
	static const struct {
		struct one_fault f;
		int rc[3];
		unsigned lo, hi; /* bytes that arrived */
	} cases[] = {
		{{VIO_WRITE, VFAULT_EIO}, {1, 0, 0}, 0, 4096},
		{{VIO_WRITE, VFAULT_ENOSPC}, {1, 0, 0}, 0, 0},
		{{VIO_WRITE, VFAULT_LOST}, {0, 0, 0}, 0, 0},
		{{VIO_WRITE, VFAULT_MISDIRECTED}, {0, 0, 0}, 4096, 4096},
		{{VIO_WRITE, VFAULT_FLIP}, {0, 0, 0}, 4095, 4095},
		{{VIO_FLUSH, VFAULT_EIO}, {0, 1, 0}, 4096, 4096},
		{{VIO_READ, VFAULT_EIO}, {0, 0, 1}, 4096, 4096},
		{{VIO_READ, VFAULT_FLIP}, {0, 0, 0}, 4096, 4096},
	};

	for (unsigned i = 0; i < ARRAY_LEN(cases); i++) {
		struct vhost *h = host_new(i);
		struct one_fault f = cases[i].f;

		vhost_set_fault(h, one_fault, &f);
		EXPECT(vproc_run(h, "f", faulty_main, NULL));
		EXPECT_MEM(faulty_rc, cases[i].rc, sizeof(faulty_rc));
		EXPECT(sevens(h) >= cases[i].lo && sevens(h) <= cases[i].hi);
		simhost_end();
	}
}

/* ---- Database ---- */

static void db_put(struct kv *kv, uint8_t key, bool sync)
{
	struct kv_batch *b = kv_batch_create();

	kv_batch_put(kv, b, KV_OBJ, &key, 1, "x", 1);
	kv_batch_put(kv, b, KV_META, &key, 1, "y", 1);
	EXPECT_OK(kv_commit(kv, b, sync));
	kv_batch_destroy(b);
}

static void db_main(void *arg)
{
	struct kv *kv;

	EXPECT_OK(kv_format(DB));
	EXPECT_OK(kv_open(DB, false, &kv));
	for (uint8_t k = 1; k <= 6; k++)
		db_put(kv, k, k == 3);
	vhost_power_cut(vproc_host(vproc_current()));
}

static unsigned db_rows;
static void db_count_main(void *arg)
{
	const void *k, *v;
	size_t kl, vl, len;
	struct kv_iter *it;
	struct kv *kv;
	char value;

	EXPECT_OK(kv_open(DB, false, &kv));
	it = kv_iter_range(kv, KV_OBJ, NULL, 0, NULL, 0);
	for (db_rows = 0; kv_iter_next(it, &k, &kl, &v, &vl);) {
		EXPECT_EQ(*(const uint8_t *)k, ++db_rows);
		EXPECT_OK(kv_get(kv, KV_META, k, kl, &value, 1, &len));
	}
	EXPECT_OK(kv_iter_close(it));
	kv_close(kv);
}

TEST(simhost, unsynced_batches_are_lost_from_some_point_on)
{
	unsigned seen[7] = {0};

	for (uint64_t seed = 1; seed <= 40; seed++) {
		struct vhost *h = host_new(seed);

		EXPECT(!vproc_run(h, "db", db_main, NULL));
		EXPECT(vproc_run(h, "count", db_count_main, NULL));
		EXPECT(db_rows >= 3);
		seen[db_rows]++;
		simhost_end();
	}
	EXPECT(seen[3] && seen[4] && seen[5] && seen[6]);
}

/* ---- Threads and memory ---- */

struct shared {
	pthread_mutex_t lock;
	pthread_cond_t cond;
	sem_t sem;
	unsigned turns, inside;
};

static void *thread_main(void *arg)
{
	struct shared *s = arg;

	for (unsigned i = 0; i < 50; i++) {
		pthread_mutex_lock(&s->lock);
		EXPECT_EQ(s->inside++, 0);
		sched_yield();
		s->inside--;
		s->turns++;
		pthread_cond_broadcast(&s->cond);
		pthread_mutex_unlock(&s->lock);
	}
	sem_post(&s->sem);
	return NULL;
}

static void threads_main(void *arg)
{
	struct shared *s = xcalloc(1, sizeof(*s));
	pthread_t t[3];

	pthread_mutex_init(&s->lock, NULL);
	pthread_cond_init(&s->cond, NULL);
	sem_init(&s->sem, 0, 0);
	for (unsigned i = 0; i < 3; i++)
		EXPECT_EQ(pthread_create(&t[i], NULL, thread_main, s), 0);
	pthread_mutex_lock(&s->lock);
	while (s->turns < 120)
		pthread_cond_wait(&s->cond, &s->lock);
	pthread_mutex_unlock(&s->lock);
	for (unsigned i = 0; i < 3; i++)
		sem_wait(&s->sem);
	for (unsigned i = 0; i < 3; i++)
		EXPECT_EQ(pthread_join(t[i], NULL), 0);
	EXPECT_EQ(s->turns, 150);
	if (!arg)
		free(s);
}

TEST(simhost, threads_exclude_wait_and_end)
{
	struct vhost *h = host_new(5);
	struct vproc *p = vproc_spawn(h, "t", threads_main, NULL);

	EXPECT(!simhost_run(NULL, NULL, UINT64_MAX));
	EXPECT(!vproc_alive(p));
	EXPECT_EQ(vproc_leaked(p), 0);
	p = vproc_spawn(h, "t", threads_main, h);
	simhost_run(NULL, NULL, UINT64_MAX);
	EXPECT_EQ(vproc_leaked(p), 1);
	simhost_end();
}

/* ---- What is thread-local belongs to a turn of a loop, though all fibers are one thread ---- */

static _Thread_local volatile unsigned scratch;

static void use_scratch(struct post *p)
{
	static unsigned next;
	unsigned mine = ++next;

	scratch = mine;
	sched_yield(); /* and the other host's loop has its turn */
	EXPECT_EQ(scratch, mine);
}

static void on_end(struct timer *t)
{
	loop_stop(t->loop);
}

static void scratch_main(void *arg)
{
	struct post posts[50];
	struct loop *l = loop_create("l", 8);
	struct timer end;

	for (unsigned i = 0; i < ARRAY_LEN(posts); i++) {
		posts[i].fn = use_scratch;
		loop_post(l, &posts[i]);
	}
	timer_init(&end, l, on_end);
	timer_set(&end, 10000);
	loop_run(l);
	timer_fini(&end);
	loop_destroy(l);
}

TEST(simhost, what_is_thread_local_stays_within_a_turn)
{
	struct vproc *a = vproc_spawn(host_new(7), "a", scratch_main, NULL), *b;

	b = vproc_spawn(vhost_create("b"), "b", scratch_main, NULL);
	simhost_run(NULL, NULL, UINT64_MAX);
	EXPECT(vproc_ended(a) && vproc_ended(b));
	simhost_end();
}

/* ---- Cores: of the host, not of the machine ---- */

static void cores_main(void *arg)
{
	*(long *)arg = sysconf(_SC_NPROCESSORS_ONLN);
}

TEST(simhost, cores_are_the_seeds)
{
	unsigned seen = 0;

	for (uint64_t seed = 1; seed <= 40; seed++) {
		long cores[2];

		for (unsigned i = 0; i < 2; i++) {
			struct vhost *h = host_new(seed);

			EXPECT(vproc_run(h, "c", cores_main, &cores[i]));
			simhost_end();
		}
		EXPECT_EQ(cores[0], cores[1]);
		EXPECT(cores[0] == 2 || cores[0] == 4 || cores[0] == 8);
		seen |= (unsigned)cores[0];
	}
	EXPECT_EQ(seen, 2 | 4 | 8);
}

/* ---- Loops ---- */

struct turns {
	struct loop *loop;
	struct timer timer;
	struct post post;
	struct turn_end log, send;
	struct work work;
	struct wait wait;
	struct worker_pool *pool;
	char order[16];
	unsigned n;
	uint64_t at;
};
static struct turns turns;

static void note(char c)
{
	turns.order[turns.n++] = c;
}

static void on_log(struct turn_end *t)
{
	note('l');
	turn_end_arm(turns.loop, &turns.send, TURN_SEND);
}

static void on_send(struct turn_end *t)
{
	note('s');
}

static void on_timer(struct timer *t)
{
	note('t');
	EXPECT(loop_mono_us(turns.loop) >= turns.at + 5000 &&
	       loop_mono_us(turns.loop) < turns.at + 7000);
	turn_end_arm(turns.loop, &turns.log, TURN_LOG);
	loop_post(turns.loop, &turns.post);
}

static int slow_work(struct work *w)
{
	usleep(1000);
	note('w');
	return -5;
}

static void on_work(struct wait *w, int rc)
{
	EXPECT_EQ(rc, -5);
	note('r');
	loop_stop(turns.loop);
}

static void on_turn_post(struct post *p)
{
	note('p');
	turns.work.run = slow_work;
	EXPECT_EQ(worker_submit(turns.pool, turns.loop, &turns.work, &turns.wait), PENDING);
}

static void turns_main(void *arg)
{
	turns.loop = loop_create("l", 8);
	turns.pool = worker_pool_create("w", 2, 0);
	turns.post.fn = on_turn_post;
	turns.wait.resume = on_work;
	turn_end_init(&turns.log, on_log);
	turn_end_init(&turns.send, on_send);
	timer_init(&turns.timer, turns.loop, on_timer);
	turns.at = loop_mono_us(turns.loop);
	timer_set(&turns.timer, 5000);
	loop_run(turns.loop);
	timer_fini(&turns.timer);
	worker_pool_destroy(turns.pool);
	loop_destroy(turns.loop);
}

TEST(simhost, a_turn_has_the_product_s_order)
{
	struct vhost *h = host_new(9);

	EXPECT(vproc_run(h, "l", turns_main, NULL));
	EXPECT_STR(turns.order, "tplswr");
	simhost_end();
}

/* ---- Who is busy ---- */

static struct {
	struct post post;
	struct loop *loop;
	unsigned left;
} again;

static void on_again(struct post *p)
{
	if (again.left--)
		loop_post(again.loop, p);
	else
		loop_stop(again.loop);
}

static void again_main(void *arg)
{
	again.loop = loop_create("again", 8);
	again.post.fn = on_again;
	loop_post(again.loop, &again.post);
	loop_run(again.loop);
	loop_destroy(again.loop);
}

TEST(simhost, a_loop_that_never_waits_is_noticed)
{
	struct vhost *h = host_new(11);

	EXPECT_EQ(simhost_busiest()->turns, 0);
	again.left = 3000;
	EXPECT(vproc_run(h, "again", again_main, NULL));
	EXPECT(simhost_now_us() < SIMHOST_BUSY_US);
	EXPECT(simhost_busiest()->turns > 3000);
	EXPECT_STR(simhost_busiest()->host, "a");
	EXPECT_STR(simhost_busiest()->loop, "again");
	simhost_end();
}

/* ---- The network ---- */

#define NUMBERS 2000u

static struct sockaddr_in address(unsigned host)
{
	return (struct sockaddr_in){.sin_family = AF_INET,
				    .sin_port = htons(7),
				    .sin_addr.s_addr = htonl(0x0a000000u | host)};
}

static void listen_main(void *arg)
{
	struct sockaddr_in a = address(2);
	uint32_t *heard = arg, next = 0;
	int ls = socket(AF_INET, SOCK_STREAM, 0), fd;

	EXPECT_OK(bind(ls, (struct sockaddr *)&a, sizeof(a)));
	EXPECT_OK(listen(ls, 1));
	while ((fd = accept4(ls, NULL, NULL, 0)) < 0)
		usleep(100);
	while (next < NUMBERS) {
		uint8_t b[4];
		size_t n = 0;

		while (n < 4) { /* pieces of any size */
			ssize_t got = recv(fd, b + n, 4 - n, 0);

			EXPECT(got > 0 || (got < 0 && errno == EAGAIN));
			if (got > 0)
				n += (size_t)got;
			else
				usleep(100);
		}
		EXPECT_EQ(get_le32(b), next);
		*heard = ++next;
	}
	close(fd);
	close(ls);
}

static void tell_main(void *arg)
{
	struct sockaddr_in a = address(2);
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	EXPECT(connect(fd, (struct sockaddr *)&a, sizeof(a)) < 0 && errno == EINPROGRESS);
	for (uint32_t i = 0; i < NUMBERS; i++) {
		uint8_t b[4];
		struct iovec iov = {b, 4};
		struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
		ssize_t n;

		put_le32(b, i);
		while (iov.iov_len) {
			n = sendmsg(fd, &m, 0);
			if (n > 0) {
				iov.iov_base = (uint8_t *)iov.iov_base + n;
				iov.iov_len -= (size_t)n;
			} else {
				EXPECT_EQ(errno, EAGAIN);
			}
			usleep(n > 0 ? 50 : 1000);
		}
	}
	close(fd);
}

static bool all_heard(void *arg)
{
	return *(uint32_t *)arg == NUMBERS;
}

/* Whatever is silent for a while, and however late a packet is: bytes come in order, all of them. */
TEST(simhost, bytes_come_in_order)
{
	for (uint64_t seed = 1; seed < 20; seed++) {
		static uint32_t heard;
		struct vhost *a = host_new(seed), *b = vhost_create("b");

		heard = 0;
		vhost_set_address(a, 1);
		vhost_set_address(b, 2);
		vnet_set_delay(20, 3000, 0.05, 20000);
		vproc_spawn(b, "listens", listen_main, &heard);
		simhost_run(NULL, NULL, simhost_now_us() + 1000);
		vproc_spawn(a, "tells", tell_main, NULL);
		for (unsigned i = 0; i < 40; i++) {
			simhost_run(NULL, NULL, simhost_now_us() + 3000 + i * 97);
			vnet_block(a, b, VCLASS_CONTROL, true);
			simhost_run(NULL, NULL, simhost_now_us() + 500 + i * 50);
			vnet_block(a, b, VCLASS_CONTROL, false);
		}
		EXPECT(simhost_run(all_heard, &heard, simhost_now_us() + 60000000));
		simhost_end();
	}
}
