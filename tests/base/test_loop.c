/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "node/loop/gather.h"
#include "node/loop/loop.h"
#include "node/loop/worker.h"
#include "tests/lib/test.h"

static char trace[256];
static struct loop *loop;

static void note(const char *s)
{
	strcat(trace, s);
}

static void start(void)
{
	trace[0] = 0;
	loop = loop_create("test", 8);
	EXPECT(loop);
}

static struct timer t1, t2;
static void on_t1(struct timer *t)
{
	note("1");
}
static void on_t2(struct timer *t)
{
	note("2");
	loop_stop(loop);
}

TEST(loop, timers_fire_in_order_and_can_be_cancelled)
{
	struct timer never;

	start();
	timer_init(&t1, loop, on_t1);
	timer_init(&t2, loop, on_t2);
	timer_init(&never, loop, on_t1);
	timer_set(&t2, 20000);
	timer_set(&t1, 5000);
	timer_set(&never, 1000);
	timer_cancel(&never);
	loop_run(loop);
	EXPECT_STR(trace, "12");
	timer_fini(&t1);
	timer_fini(&t2);
	timer_fini(&never);
	loop_destroy(loop);
}

static struct turn_end log_hook, send_hook;
static void on_log(struct turn_end *t)
{
	note("L");
	turn_end_arm(loop, &send_hook, TURN_SEND);
}
static void on_send(struct turn_end *t)
{
	note("S");
	loop_stop(loop);
}
static struct post armed_post;
static void on_armed(struct post *p)
{
	turn_end_arm(loop, &send_hook, TURN_SEND);
	turn_end_arm(loop, &log_hook, TURN_LOG);
	turn_end_arm(loop, &log_hook, TURN_LOG);
	note("p");
}

TEST(loop, the_turn_ends_with_log_then_send)
{
	start();
	turn_end_init(&log_hook, on_log);
	turn_end_init(&send_hook, on_send);
	armed_post.fn = on_armed;
	loop_post(loop, &armed_post);
	loop_run(loop);
	EXPECT_STR(trace, "pLS");
	loop_destroy(loop);
}

/* Posts of one sender keep their order, also from another thread, and none is lost. */
#define POSTS 20000
static struct post posts[POSTS];
static int posts_seen;
static void on_count(struct post *p)
{
	EXPECT(p == &posts[posts_seen]);
	if (++posts_seen == POSTS)
		loop_stop(loop);
}
static void *poster(void *arg)
{
	for (int i = 0; i < POSTS; i++) {
		posts[i].fn = on_count;
		loop_post(loop, &posts[i]);
	}
	return NULL;
}

TEST(loop, posts_from_another_thread_keep_their_order)
{
	pthread_t th;

	start();
	EXPECT_EQ(pthread_create(&th, NULL, poster, NULL), 0);
	loop_run(loop);
	pthread_join(th, NULL);
	EXPECT_EQ(posts_seen, POSTS);
	loop_destroy(loop);
}

#define IOS 100
static struct io ios[IOS];
static struct wait io_wait;
static int io_left, io_rc;
static void on_io(struct wait *w, int rc)
{
	if (rc < 0)
		io_rc = rc;
	if (!--io_left)
		loop_stop(loop);
}

/* More requests than the ring has entries; vectors; the end of the file. */
static void io_round_trip(const char *dir)
{
	static uint8_t data[IOS][8192], back[IOS][8192];
	struct iovec iov[IOS][2];
	char path[4200];
	int fd;

	snprintf(path, sizeof(path), "%s/ashlar-test-io", dir);
	fd = open(path, O_RDWR | O_CREAT, 0600);
	EXPECT(fd >= 0);
	unlink(path);
	io_file_opened(fd);
	io_rc = 0;
	start();
	io_wait.resume = on_io;
	for (int i = 0; i < IOS; i++) {
		memset(data[i], i, 8192);
		iov[i][0] = (struct iovec){data[i], 4096};
		iov[i][1] = (struct iovec){data[i] + 4096, 4096};
		EXPECT_EQ(io_writev(loop, &ios[i], fd, iov[i], 2, (uint64_t)i * 8192, IO_DSYNC,
				    &io_wait),
			  PENDING);
	}
	io_left = IOS;
	loop_run(loop);
	EXPECT_EQ(io_rc, 0);
	EXPECT_EQ(loop_io_inflight(loop), 0);
	loop_destroy(loop);

	start();
	for (int i = 0; i < IOS; i++)
		EXPECT_EQ(io_read(loop, &ios[i], fd, back[i], 8192, (uint64_t)i * 8192, &io_wait),
			  PENDING);
	io_left = IOS;
	loop_run(loop);
	EXPECT_EQ(io_rc, 0);
	EXPECT_MEM(back, data, sizeof(data));
	loop_destroy(loop);

	start();
	/* A short read continues and then meets the end. */
	EXPECT_EQ(io_read(loop, &ios[0], fd, back, 8192 * 2, (uint64_t)(IOS - 1) * 8192, &io_wait),
		  PENDING);
	EXPECT_EQ(io_fsync(loop, &ios[1], fd, &io_wait), PENDING);
	io_left = 2;
	loop_run(loop);
	EXPECT_EQ(io_rc, -ENODATA);
	loop_destroy(loop);
	io_file_closed(fd);
	close(fd);
}

TEST(io, writes_then_reads_come_back)
{
	io_round_trip(test_dir());
}

/* A file system in memory goes another way and promises the same. */
TEST(io, files_in_memory_do_the_same)
{
	if (access("/dev/shm", W_OK) == 0)
		io_round_trip("/dev/shm");
}

/* More at once than the ring takes, one of them past the end of the file. */
static void gather_round_trip(const char *dir)
{
	static uint8_t data[IOS][4096], back[IOS][4096];
	struct gather *g = gather_create(8);
	struct gather_read r[IOS];
	char path[4200];
	int fd;

	snprintf(path, sizeof(path), "%s/ashlar-test-gather", dir);
	fd = open(path, O_RDWR | O_CREAT, 0600);
	EXPECT(fd >= 0);
	unlink(path);
	io_file_opened(fd);
	for (int i = 0; i < IOS; i++)
		memset(data[i], i + 1, sizeof(data[i]));
	EXPECT_EQ(pwrite(fd, data, sizeof(data), 0), (ssize_t)sizeof(data));
	for (int i = 0; i < IOS; i++)
		r[i] = (struct gather_read){fd, back[i], sizeof(back[i]), (uint64_t)i * 4096, 1};
	r[1].off = (uint64_t)IOS * 4096 - 100; /* short, then the end */
	gather_run(g, r, IOS);
	for (int i = 0; i < IOS; i++) {
		EXPECT_EQ(r[i].rc, i == 1 ? -ENODATA : 0);
		if (i != 1)
			EXPECT_MEM(back[i], data[i], sizeof(data[i]));
	}
	r[0].fd = -1;
	gather_run(g, r, 3);
	EXPECT_EQ(r[0].rc, -EBADF);
	EXPECT_EQ(r[2].rc, 0);
	gather_run(g, r, 0);
	gather_destroy(g);
	io_file_closed(fd);
	close(fd);
}

TEST(gather, reads_side_by_side_all_come_back)
{
	gather_round_trip(test_dir());
	if (access("/dev/shm", W_OK) == 0)
		gather_round_trip("/dev/shm");
}

static int pair[2];
static struct fdwatch watch;
static void on_socket(struct fdwatch *w, unsigned events)
{
	char b[8];

	if (events & FD_WRITE) {
		note("w");
		fdwatch_want(w, FD_READ);
		EXPECT_EQ(write(pair[1], "x", 1), 1);
	} else {
		EXPECT_EQ(read(w->fd, b, 8), 1);
		note("r");
		loop_stop(loop);
	}
}

TEST(fdwatch, tells_what_is_wanted_and_ready)
{
	start();
	EXPECT_OK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair));
	fdwatch_init(&watch, loop, pair[0], on_socket);
	fdwatch_want(&watch, FD_WRITE);
	loop_run(loop);
	EXPECT_STR(trace, "wr");
	fdwatch_fini(&watch);
	loop_destroy(loop);
}

static struct work works[50];
static int run_work(struct work *w)
{
	return -(int)(w - works);
}
static void on_work(struct wait *w, int rc)
{
	EXPECT(loop_is_current(loop));
	io_rc += rc;
	if (!--io_left)
		loop_stop(loop);
}

TEST(worker, results_come_back_on_the_loop)
{
	struct worker_pool *p = worker_pool_create("w", 2, 0);
	struct wait w = {on_work};

	start();
	io_rc = 0;
	io_left = 50;
	for (int i = 0; i < 50; i++) {
		works[i].run = run_work;
		EXPECT_EQ(worker_submit(p, loop, &works[i], &w), PENDING);
	}
	loop_run(loop);
	EXPECT_EQ(io_rc, -49 * 50 / 2);
	worker_pool_destroy(p);
	loop_destroy(loop);
}
