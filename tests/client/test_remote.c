/* SPDX-License-Identifier: Apache-2.0 */
/* libashlar and ashlar-client over the real wire protocol and TLS, against a node in RAM that drops
 * connections and damages answers. argv[1] of the program may be a test's name; ASHLAR_CLIENT names
 * the daemon's binary. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/ashlar.h"
#include "client/pem.h"
#include "cluster/map_codec.h"
#include "node/base/log.h"
#include "tests/client/fake_node.h"
#include "tests/client/harness.h"
#include "tests/lib/test.h"

struct fixture {
	struct harness h;
	struct fake_node node;
	struct fake_files files;
	char connect[128];
};

static struct fixture fx;

static void node_start(void *arg)
{
	fake_node_start(&fx.node, fx.h.loop, &fx.files);
}

static void node_stop(void *arg)
{
	fake_node_stop(&fx.node);
}

static bool no_connections(void *arg)
{
	return !fx.node.controls && !fx.node.data_conns;
}

static void fixture_start(void)
{
	static bool made;

	log_set_level(LOG_ERROR);
	if (!made)
		fake_files_make(&fx.files, test_dir());
	made = true;
	harness_start(&fx.h);
	harness_do(&fx.h, node_start, NULL);
	/* The first address does not answer: the second is found. */
	snprintf(fx.connect, sizeof(fx.connect), "127.0.0.1:1,127.0.0.1:%u",
		 listener_port(fx.node.listener));
}

static void fixture_stop(void)
{
	harness_await(&fx.h, no_connections, NULL, "all connections are closed");
	harness_do(&fx.h, node_stop, NULL);
	harness_stop(&fx.h);
	buf_pool_destroy(fx.node.pool);
}

static struct ashlar *connect_to(int plain)
{
	struct ashlar_options o = {.struct_size = sizeof(o),
				   .connect = fx.connect,
				   .cert = fx.files.client_cert,
				   .key = fx.files.client_key,
				   .ca = fx.files.ca,
				   .plain_data = plain};
	struct ashlar *a;

	EXPECT_OK(ashlar_connect(&o, &a));
	return a;
}

static int list_one(void *arg, const char *name, uint64_t size)
{
	EXPECT_STR(name, "disk");
	EXPECT_EQ(size, FAKE_OBJECTS * FAKE_OBJECT_SIZE);
	++*(int *)arg;
	return 0;
}

static void random_io(struct ashlar_volume *v, unsigned count, uint64_t seed)
{
	enum { AREA = 24 << 20, MAX_LEN = 5 << 20 };
	uint8_t *shadow = xcalloc(1, AREA), *got = xmalloc(AREA);
	struct rng r;

	rng_seed(&r, seed);
	for (unsigned i = 0; i < count; i++) {
		uint32_t len = (uint32_t)rng_between(&r, 1, rng_chance(&r, 0.2) ? MAX_LEN : 10000);
		uint64_t off = rng_below(&r, AREA - len);

		if (rng_chance(&r, 0.6)) {
			off = round_down(off, 4096);
			len = (uint32_t)round_up(len, 4096);
			len = (uint32_t)MIN(len, AREA - off);
		}
		if (rng_chance(&r, 0.3)) {
			EXPECT_OK(ashlar_read(v, off, got, len));
			EXPECT_MEM(got, shadow + off, len);
		} else if (rng_chance(&r, 0.2)) {
			EXPECT_OK(rng_chance(&r, 0.5) ? ashlar_trim(v, off, len)
						      : ashlar_zeroes(v, off, len));
			memset(shadow + off, 0, len);
		} else {
			rng_fill(&r, shadow + off, len);
			EXPECT_OK(ashlar_write(v, off, shadow + off, len));
		}
	}
	EXPECT_OK(ashlar_flush(v));
	EXPECT_OK(ashlar_read(v, 0, got, AREA));
	EXPECT_MEM(got, shadow, AREA);
	free(shadow);
	free(got);
}

TEST(remote, reads_names_from_certificates)
{
	char text[128], want[UUID_TEXT];

	fixture_start();
	EXPECT_OK(pem_find_text(fx.files.client_cert, "client:", text, sizeof(text)));
	EXPECT_STR(text, "client:tester");
	uuid_format(&fx.files.cluster, want);
	EXPECT_OK(pem_find_text(fx.files.ca, "ashlar CA ", text, sizeof(text)));
	EXPECT_STR(text + 10, want);
	EXPECT_RC(pem_find_text(fx.files.ca, "client:", text, sizeof(text)), -ERR_NOT_FOUND);
	EXPECT_RC(pem_find_text(fx.files.ca_key, "client:", text, sizeof(text)), -ERR_INVALID);
	EXPECT_RC(pem_find_text("/nonexistent", "client:", text, sizeof(text)), -ENOENT);
	fixture_stop();
}

TEST(remote, library_round_trip_over_tls)
{
	struct ashlar_volume *v;
	struct ashlar *a;
	int listed = 0;

	fixture_start();
	a = connect_to(0);
	EXPECT_OK(ashlar_list(a, list_one, &listed));
	EXPECT_EQ(listed, 1);
	EXPECT_RC(ashlar_volume_open(a, "nothing", 0, &v), -ENOENT);
	EXPECT_OK(ashlar_volume_open(a, "disk", 0, &v));
	EXPECT_EQ(ashlar_volume_size(v), FAKE_OBJECTS * FAKE_OBJECT_SIZE);
	random_io(v, 80, 1);
	EXPECT_RC(ashlar_read(v, FAKE_OBJECTS * FAKE_OBJECT_SIZE, &listed, 1), -EINVAL);
	EXPECT_EQ(fx.node.attaches, 1);
	EXPECT(!strncmp(fx.node.holder, "client:tester ", 14));
	EXPECT_OK(ashlar_volume_close(v));
	EXPECT_EQ(fx.node.detaches, 1);
	ashlar_disconnect(a);
	fixture_stop();
}

TEST(remote, lost_connections_and_damaged_answers_do_not_show)
{
	struct ashlar_volume *v;
	struct ashlar *a;

	fixture_start();
	fx.node.drop_every = 23;
	fx.node.corrupt_every = 7;
	a = connect_to(1);
	EXPECT_OK(ashlar_volume_open(a, "disk", 0, &v));
	log_set_level(LOG_ERROR + 1); /* each damaged answer is reported, as it should be */
	random_io(v, 60, 2);
	log_set_level(LOG_ERROR);
	EXPECT(fx.node.ios > 23);
	EXPECT_OK(ashlar_volume_close(v));
	ashlar_disconnect(a);
	fixture_stop();
}

TEST(remote, a_held_volume_is_busy_and_says_by_whom)
{
	struct ashlar_volume *v;
	struct ashlar *a;
	char text[64];

	fixture_start();
	fx.node.held = true;
	a = connect_to(0);
	EXPECT_OK(ashlar_volume_open(a, "disk", 0, &v));
	log_set_level(LOG_ERROR);
	EXPECT_RC(ashlar_write(v, 0, "x", 1), -EBUSY);
	EXPECT_OK(ashlar_volume_held_by(v, text, sizeof(text)));
	EXPECT_STR(text, "attached by node:other");
	EXPECT_OK(ashlar_read(v, 0, text, 10));
	EXPECT_OK(ashlar_volume_close(v));
	ashlar_disconnect(a);
	fixture_stop();
}

static void drop_control(void *arg)
{
	if (fx.node.control)
		conn_close(fx.node.control, -ERR_CLOSED);
}

static bool control_is_back(void *arg)
{
	return fx.node.control != NULL;
}

struct waiting {
	unsigned left;
	int rc;
};

static void async_done(void *arg, int rc)
{
	struct waiting *w = arg;

	if (rc)
		w->rc = rc;
	__atomic_sub_fetch(&w->left, 1, __ATOMIC_SEQ_CST);
}

static bool async_all(void *arg)
{
	return !__atomic_load_n(&((struct waiting *)arg)->left, __ATOMIC_SEQ_CST);
}

TEST(remote, goes_on_without_its_control_connection_and_gets_it_back)
{
	static uint8_t data[64][4096];
	struct waiting w = {.left = 64};
	struct ashlar_volume *v;
	struct ashlar *a;

	fixture_start();
	a = connect_to(0);
	EXPECT_OK(ashlar_volume_open(a, "disk", ASHLAR_SHARED, &v));
	EXPECT_OK(ashlar_write(v, 0, "x", 1));
	harness_do(&fx.h, drop_control, NULL);
	for (unsigned i = 0; i < 64; i++)
		EXPECT_OK(ashlar_aio_write(v, i * 4096, data[i], 4096, async_done, &w));
	harness_await(&fx.h, async_all, &w, "64 writes");
	EXPECT_OK(w.rc);
	harness_await(&fx.h, control_is_back, NULL, "the control connection is back");
	EXPECT_OK(ashlar_volume_close(v));
	ashlar_disconnect(a);
	fixture_stop();
}

/* The lease that the first attach will have, short enough for a test. */
static void shorten_lease(void *arg)
{
	struct map_attachment *a = map_attachment_put(&fx.node.map, 1);

	a->volume = a->epoch = 1;
	a->mode = ATTACH_EXCLUSIVE;
	a->ttl_ms = 600;
}

static bool renewed_twice(void *arg)
{
	return fx.node.renews >= 2;
}

static bool renewed_thrice_more(void *arg)
{
	return fx.node.renews >= *(unsigned *)arg + 3;
}

TEST(remote, attachments_are_renewed_over_the_wire)
{
	struct ashlar_volume *v;
	struct ashlar *a;
	unsigned before;
	int rc;

	fixture_start();
	harness_do(&fx.h, shorten_lease, NULL);
	a = connect_to(0);
	EXPECT_OK(ashlar_volume_open(a, "disk", 0, &v));
	EXPECT_OK(ashlar_write(v, 0, "x", 1));
	harness_await(&fx.h, renewed_twice, NULL, "two renewals");
	before = fx.node.renews;
	harness_do(&fx.h, drop_control, NULL);
	harness_await(&fx.h, renewed_thrice_more, &before, "renewals over the next connection");
	EXPECT_OK(ashlar_write(v, 0, "y", 1));
	EXPECT_EQ(fx.node.attaches, 1);
	log_set_level(LOG_ERROR + 1);
	fx.node.renewal_gone = true;
	do /* until the answer has come */
		rc = ashlar_write(v, 0, "z", 1);
	while (!rc);
	EXPECT_RC(rc, -EPERM);
	log_set_level(LOG_ERROR);
	EXPECT_OK(ashlar_volume_close(v));
	EXPECT_EQ(fx.node.detaches, 0);
	ashlar_disconnect(a);
	fixture_stop();
}

TEST(remote, connecting_to_nobody_ends_in_time)
{
	struct ashlar_options o = {.struct_size = sizeof(o),
				   .connect = "127.0.0.1:1",
				   .connect_timeout_ms = 200,
				   .cluster = "11111111-2222-3333-4444-555555555555"};
	struct ashlar *a;

	log_set_level(LOG_ERROR);
	EXPECT_RC(ashlar_connect(&o, &a), -ETIMEDOUT);
	o.connect = "no:address:at all";
	EXPECT_RC(ashlar_connect(&o, &a), -EINVAL);
	o.connect = "127.0.0.1:1";
	o.cert = "/nonexistent";
	EXPECT_RC(ashlar_connect(&o, &a), -EINVAL); /* cert without key */
}

static pid_t spawn_client(const char *binary, const char *sock, const char *pid_file)
{
	pid_t pid = fork();

	if (pid == 0) {
		execl(binary, binary, "--connect", fx.connect, "--cert", fx.files.client_cert,
		      "--key", fx.files.client_key, "--ca", fx.files.ca, "--nbd-unix", sock,
		      "--pid-file", pid_file, "--log-level", "warn", NULL);
		_exit(127);
	}
	return pid;
}

static bool file_exists(void *arg)
{
	return access(arg, R_OK) == 0;
}

TEST(remote, daemon_serves_nbd)
{
	const char *binary = getenv("ASHLAR_CLIENT");
	char sock[300], pid_file[300], cmd[1200];
	int status;
	pid_t pid;

	if (!binary || system("command -v qemu-io >/dev/null 2>&1"))
		return;
	fixture_start();
	snprintf(sock, sizeof(sock), "%s/nbd.sock", test_dir());
	snprintf(pid_file, sizeof(pid_file), "%s/client.pid", test_dir());
	pid = spawn_client(binary, sock, pid_file);
	harness_await(&fx.h, file_exists, pid_file, "the daemon serves");
	snprintf(cmd, sizeof(cmd),
		 "qemu-io -f raw -c 'write -P 0x5a 1M 3M' -c 'write -P 1 512 512' -c 'discard 2M "
		 "64k' -c flush "
		 "-c 'read -P 0x5a 1M 1M' -c 'read -P 0 2M 64k' -c 'read -P 1 512 512' "
		 "'nbd+unix:///disk?socket=%s' >/dev/null",
		 sock);
	EXPECT_EQ(system(cmd), 0);
	EXPECT_EQ(fx.node.attaches, 1);
	kill(pid, SIGTERM);
	EXPECT_EQ(waitpid(pid, &status, 0), pid);
	EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	EXPECT(access(sock, F_OK) != 0 && access(pid_file, F_OK) != 0);
	EXPECT_EQ(fx.node.detaches, 1);
	fixture_stop();
}
