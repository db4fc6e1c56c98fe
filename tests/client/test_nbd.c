/* SPDX-License-Identifier: Apache-2.0 */
/* The NBD server, byte by byte: a hand-written client that also says what no decent client would.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "client/nbd.h"
#include "client/nbd_proto.h"
#include "net/tls.h"
#include "node/base/log.h"
#include "tests/client/fake_client.h"
#include "tests/client/fake_node.h"
#include "tests/client/harness.h"
#include "tests/lib/test.h"

#define DISK (64u << 20)

static struct fixture {
	struct harness h;
	struct buf_pool *pool;
	struct client *client;
	struct fake_volume *disk, *odd;
	struct nbd_server *server;
	struct nbd_config cfg;
	struct tls_ctx *server_tls, *client_tls;
	char path[200];
	size_t pool_bytes;
	bool stopped;
	struct wait stop;
} fx;

static struct tls_session *session; /* of the one TLS connection a test may have */

static void server_start(void *arg)
{
	fx.pool = fx.cfg.pool = buf_pool_create(fx.pool_bytes);
	fx.client = fx.cfg.client = fake_client_create(fx.h.loop, fx.pool);
	fx.disk = fake_volume_add(fx.client, "disk", DISK);
	fx.odd = fake_volume_add(fx.client, "odd", 1000001);
	fx.cfg.loop = fx.h.loop;
	fx.cfg.unix_path = fx.path;
	fx.server = nbd_server_create(&fx.cfg);
	EXPECT(fx.server != NULL);
}

static void fixture_begin(void)
{
	log_set_level(LOG_ERROR);
	memset(&fx, 0, sizeof(fx));
	fx.pool_bytes = 96u << 20;
	snprintf(fx.path, sizeof(fx.path), "%s/nbd", test_dir());
	harness_start(&fx.h);
}

static void fixture_start(void)
{
	fixture_begin();
	harness_do(&fx.h, server_start, NULL);
}

static void on_stopped(struct wait *w, int rc)
{
	fx.stopped = true;
}

static void server_stop(void *arg)
{
	fx.stop.resume = on_stopped;
	nbd_server_stop(fx.server, &fx.stop);
}

static bool is_stopped(void *arg)
{
	return fx.stopped;
}

static void server_destroy(void *arg)
{
	nbd_server_destroy(fx.server);
	fake_client_destroy(fx.client);
	buf_pool_destroy(fx.pool); /* CHECKs that every buffer came back */
}

static void fixture_stop(void)
{
	harness_do(&fx.h, server_stop, NULL);
	harness_await(&fx.h, is_stopped, NULL, "the server has stopped");
	harness_do(&fx.h, server_destroy, NULL);
	harness_stop(&fx.h);
	EXPECT(access(fx.path, F_OK) != 0);
}

/* ---- A raw client ---- */

static int dial(void)
{
	struct sockaddr_un sa = {.sun_family = AF_UNIX};
	struct timeval tv = {.tv_sec = 10};
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);

	strcpy(sa.sun_path, fx.path);
	EXPECT_EQ(connect(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof(tv));
	return fd;
}

static void put_all(int fd, const void *data, size_t n)
{
	const char *p = data;

	while (n) {
		ssize_t k = send(fd, p, n, MSG_NOSIGNAL);

		if (k < 0 && errno == EINTR)
			continue;
		if (k <= 0)
			test_failed(__FILE__, __LINE__, "send: %s", strerror(errno));
		p += k;
		n -= (size_t)k;
	}
}

static void get_all(int fd, void *data, size_t n)
{
	char *p = data;

	while (n) {
		ssize_t k = recv(fd, p, n, 0);

		if (k < 0 &&
		    errno == EINTR) /* work of the loop's ring, which this thread created */
			continue;
		if (k <= 0)
			test_failed(__FILE__, __LINE__, "recv: %s, %zu bytes missing",
				    k ? strerror(errno) : "end of file", n);
		p += k;
		n -= (size_t)k;
	}
}

static bool is_eof(int fd)
{
	char c;
	ssize_t n;

	while ((n = recv(fd, &c, 1, 0)) > 0 || (n < 0 && errno == EINTR))
		;
	return n == 0 || errno == ECONNRESET;
}

static void expect_closed(int fd)
{
	EXPECT(is_eof(fd));
	close(fd);
}

static void put_flags(int fd, uint32_t flags)
{
	uint8_t b[4];

	put_be32(b, flags);
	put_all(fd, b, 4);
}

static int greet(uint32_t flags)
{
	uint8_t b[18];
	int fd = dial();

	get_all(fd, b, sizeof(b));
	EXPECT(!memcmp(b, "NBDMAGICIHAVEOPT", 16));
	EXPECT_EQ(get_be16(b + 16), 3);
	put_flags(fd, flags);
	return fd;
}

static void put_option(int fd, uint32_t option, const void *data, uint32_t n)
{
	uint8_t b[16];

	put_be64(b, NBD_OPTION_MAGIC);
	put_be32(b + 8, option);
	put_be32(b + 12, n);
	put_all(fd, b, 16);
	put_all(fd, data, n);
}

struct option_reply {
	uint32_t type, length;
	uint8_t data[4096];
};

static uint32_t get_option(int fd, uint32_t option, struct option_reply *r)
{
	uint8_t b[20];

	get_all(fd, b, 20);
	EXPECT_EQ(get_be64(b), NBD_OPTION_REPLY_MAGIC);
	EXPECT_EQ(get_be32(b + 8), option);
	r->type = get_be32(b + 12);
	r->length = get_be32(b + 16);
	EXPECT(r->length <= sizeof(r->data));
	get_all(fd, r->data, r->length);
	return r->type;
}

static uint32_t option_error(int fd, uint32_t option, const void *data, uint32_t n)
{
	struct option_reply r;

	put_option(fd, option, data, n);
	return get_option(fd, option, &r);
}

static uint32_t go_data(uint8_t *b, const char *name, unsigned infos)
{
	uint32_t n = (uint32_t)strlen(name);

	put_be32(b, n);
	memcpy(b + 4, name, n);
	put_be16(b + 4 + n, (uint16_t)infos);
	for (unsigned i = 0; i < infos; i++)
		put_be16(b + 6 + n + 2 * i, (uint16_t)i);
	return 6 + n + 2 * infos;
}

static uint32_t meta_data(uint8_t *b, const char *name, const char *query)
{
	uint32_t n = (uint32_t)strlen(name), q = query ? (uint32_t)strlen(query) : 0;

	put_be32(b, n);
	memcpy(b + 4, name, n);
	put_be32(b + 4 + n, query != NULL);
	if (!query)
		return 8 + n;
	put_be32(b + 8 + n, q);
	memcpy(b + 12 + n, query, q);
	return 12 + n + q;
}

/* INFO and GO: all replies up to the ACK, for comparison. */
static uint32_t ask_info(int fd, uint32_t option, const char *name, uint8_t *all)
{
	struct option_reply r;
	uint8_t b[128];
	uint32_t n = 0;

	put_option(fd, option, b, go_data(b, name, 4));
	while (get_option(fd, option, &r) == NBD_REP_INFO) {
		memcpy(all + n, r.data, r.length);
		n += r.length;
	}
	EXPECT_EQ(r.type, NBD_REP_ACK);
	return n;
}

static int open_export(const char *name, bool structured, bool meta)
{
	uint8_t all[512], b[128];
	struct option_reply r;
	int fd = greet(3);

	if (structured)
		EXPECT_EQ(option_error(fd, NBD_OPT_STRUCTURED_REPLY, NULL, 0), NBD_REP_ACK);
	if (meta) {
		put_option(fd, NBD_OPT_SET_META_CONTEXT, b, meta_data(b, name, "base:allocation"));
		EXPECT_EQ(get_option(fd, NBD_OPT_SET_META_CONTEXT, &r), NBD_REP_META_CONTEXT);
		EXPECT_EQ(get_be32(r.data), NBD_CONTEXT_ALLOCATION);
		EXPECT_EQ(get_option(fd, NBD_OPT_SET_META_CONTEXT, &r), NBD_REP_ACK);
	}
	ask_info(fd, NBD_OPT_GO, name, all);
	return fd;
}

static void put_request(int fd, uint16_t flags, uint16_t type, uint64_t cookie, uint64_t off,
			uint32_t len)
{
	uint8_t b[28];

	put_be32(b, NBD_REQUEST_MAGIC);
	put_be16(b + 4, flags);
	put_be16(b + 6, type);
	put_be64(b + 8, cookie);
	put_be64(b + 16, off);
	put_be32(b + 24, len);
	put_all(fd, b, 28);
}

static uint32_t get_simple(int fd, uint64_t cookie)
{
	uint8_t b[16];

	get_all(fd, b, 16);
	EXPECT_EQ(get_be32(b), NBD_SIMPLE_MAGIC);
	EXPECT_EQ(get_be64(b + 8), cookie);
	return get_be32(b + 4);
}

static uint32_t simple(int fd, uint16_t flags, uint16_t type, uint64_t off, uint32_t len)
{
	static uint64_t cookie = 0xfedcba9876543210;

	put_request(fd, flags, type, ++cookie, off, len);
	return get_simple(fd, cookie);
}

static uint32_t simple_write(int fd, uint16_t flags, uint64_t off, const void *data, uint32_t len)
{
	put_request(fd, flags, NBD_CMD_WRITE, 77, off, len);
	put_all(fd, data, len);
	return get_simple(fd, 77);
}

struct chunk {
	uint16_t flags, type;
	uint64_t cookie;
	uint32_t length;
	uint8_t *data;
};

static struct chunk get_chunk(int fd)
{
	struct chunk c;
	uint8_t b[20];

	get_all(fd, b, 20);
	EXPECT_EQ(get_be32(b), NBD_CHUNK_MAGIC);
	c.flags = get_be16(b + 4);
	c.type = get_be16(b + 6);
	c.cookie = get_be64(b + 8);
	c.length = get_be32(b + 16);
	EXPECT(c.length <= (33u << 20));
	c.data = xmalloc(c.length + 1);
	get_all(fd, c.data, c.length);
	return c;
}

static uint32_t chunk_error(int fd, const char *text)
{
	struct chunk c = get_chunk(fd);
	uint32_t error = get_be32(c.data);

	EXPECT_EQ(c.type, NBD_CHUNK_ERROR);
	EXPECT_EQ(c.flags, NBD_CHUNK_DONE);
	EXPECT_EQ(c.length, 6 + get_be16(c.data + 4));
	if (text) {
		EXPECT_EQ(get_be16(c.data + 4), strlen(text));
		EXPECT(!memcmp(c.data + 6, text, strlen(text)));
	}
	free(c.data);
	return error;
}

/* ---- Negotiation ---- */

TEST(nbd, unknown_client_flags_close)
{
	fixture_start();
	expect_closed(greet(1 << 5 | 1));
	expect_closed(greet(0)); /* not fixed newstyle */
	fixture_stop();
}

TEST(nbd, export_name_is_padded_unless_agreed_otherwise)
{
	uint8_t b[10 + 124];
	int fd;

	fixture_start();
	fd = greet(1);
	put_option(fd, NBD_OPT_EXPORT_NAME, "odd", 3);
	get_all(fd, b, 134);
	EXPECT_EQ(get_be64(b), 1000001);
	EXPECT(get_be16(b + 8) & NBD_FLAG_SEND_FLUSH);
	EXPECT(!(get_be16(b + 8) & (NBD_FLAG_READ_ONLY | NBD_FLAG_SEND_DF)));
	for (unsigned i = 10; i < 134; i++)
		EXPECT_EQ(b[i], 0);
	EXPECT_EQ(simple(fd, 0, NBD_CMD_FLUSH, 0, 0), 0);
	close(fd);
	fd = greet(3);
	put_option(fd, NBD_OPT_EXPORT_NAME, "odd", 3);
	get_all(fd, b, 10);
	EXPECT_EQ(simple(fd, 0, NBD_CMD_FLUSH, 0, 0), 0);
	close(fd);
	fd = greet(3);
	put_option(fd, NBD_OPT_EXPORT_NAME, "none", 4);
	expect_closed(fd);
	fixture_stop();
}

TEST(nbd, hostile_options_keep_the_stream_in_step_or_close)
{
	static uint8_t big[100000];
	struct option_reply r;
	uint8_t b[5000];
	int fd;

	fixture_start();
	fd = greet(3);
	EXPECT_EQ(option_error(fd, 99, "whatever", 8), NBD_REP_ERR_UNSUP);
	EXPECT_EQ(option_error(fd, 0xffffffff, NULL, 0), NBD_REP_ERR_UNSUP);
	EXPECT_EQ(option_error(fd, 99, big, sizeof(big)), NBD_REP_ERR_TOO_BIG);
	EXPECT_EQ(option_error(fd, NBD_OPT_LIST, "x", 1), NBD_REP_ERR_INVALID);
	EXPECT_EQ(option_error(fd, NBD_OPT_STRUCTURED_REPLY, "x", 1), NBD_REP_ERR_INVALID);
	EXPECT_EQ(option_error(fd, NBD_OPT_STARTTLS, NULL, 0), NBD_REP_ERR_POLICY);
	EXPECT_EQ(option_error(fd, NBD_OPT_GO, NULL, 0), NBD_REP_ERR_INVALID);
	memset(b, 'a', sizeof(b));
	put_be32(b, 0xffffffff); /* name longer than the option */
	EXPECT_EQ(option_error(fd, NBD_OPT_GO, b, 20), NBD_REP_ERR_INVALID);
	put_be32(b, 4097); /* and longer than a name may be */
	EXPECT_EQ(option_error(fd, NBD_OPT_INFO, b, 4 + 4097 + 2), NBD_REP_ERR_INVALID);
	put_be32(b, 4096);
	put_be16(b + 4 + 4096, 0);
	EXPECT_EQ(option_error(fd, NBD_OPT_INFO, b, 4 + 4096 + 2), NBD_REP_ERR_UNKNOWN);
	EXPECT_EQ(option_error(fd, NBD_OPT_GO, b, go_data(b, "none", 0)), NBD_REP_ERR_UNKNOWN);
	EXPECT_EQ(option_error(fd, NBD_OPT_GO, b, go_data(b, "disk", 0) + 1), NBD_REP_ERR_INVALID);
	memcpy(b, "\0\0\0\4d\0sk\0\0", 10);
	EXPECT_EQ(option_error(fd, NBD_OPT_GO, b, 10), NBD_REP_ERR_INVALID);
	put_option(fd, NBD_OPT_LIST, NULL, 0);
	EXPECT_EQ(get_option(fd, NBD_OPT_LIST, &r), NBD_REP_SERVER);
	EXPECT(!memcmp(r.data, "\0\0\0\4disk", 8));
	EXPECT_EQ(get_option(fd, NBD_OPT_LIST, &r), NBD_REP_SERVER);
	EXPECT_EQ(get_option(fd, NBD_OPT_LIST, &r), NBD_REP_ACK);
	EXPECT_EQ(option_error(fd, NBD_OPT_ABORT, NULL, 0), NBD_REP_ACK);
	expect_closed(fd);
	fd = greet(3);
	put_be64(b, NBD_OPTION_MAGIC);
	put_be32(b + 8, NBD_OPT_GO);
	put_be32(b + 12, 0xffffffff);
	put_all(fd, b, 16);
	expect_closed(fd);
	fd = greet(3);
	put_all(fd, "not an option at all", 20);
	expect_closed(fd);
	fixture_stop();
}

TEST(nbd, info_and_go_say_the_same)
{
	uint8_t info[512], go[512];
	uint32_t n;
	int fd;

	fixture_start();
	fd = greet(3);
	n = ask_info(fd, NBD_OPT_INFO, "disk", info);
	EXPECT_EQ(ask_info(fd, NBD_OPT_GO, "disk", go), n);
	EXPECT_MEM(go, info, n);
	EXPECT_EQ(get_be16(go), NBD_INFO_EXPORT);
	EXPECT_EQ(get_be64(go + 2), DISK);
	EXPECT_EQ(get_be16(go + 12), NBD_INFO_BLOCK_SIZE);
	EXPECT_EQ(get_be32(go + 14), 1);
	EXPECT_EQ(get_be32(go + 18), 4096);
	EXPECT_EQ(get_be32(go + 22), 32 << 20);
	EXPECT_EQ(get_be16(go + 26), NBD_INFO_NAME);
	EXPECT_EQ(simple(fd, 0, NBD_CMD_FLUSH, 0, 0), 0);
	close(fd);
	fixture_stop();
}

TEST(nbd, a_name_may_ask_for_shared_mode)
{
	static const char *const bad[] = {"disk:", ":shared", "disk:shared:shared", "disk:SHARED", "disk:x"};
	uint8_t b[128];
	char name[80];
	int fd;

	fixture_start();
	fd = greet(3);
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		EXPECT_EQ(option_error(fd, NBD_OPT_INFO, b, go_data(b, bad[i], 0)), NBD_REP_ERR_UNKNOWN);
	for (size_t n = 62; n < 72; n++) { /* around the longest name there can be */
		memset(name, 'x', n);
		strcpy(name + n, ":shared");
		EXPECT_EQ(option_error(fd, NBD_OPT_INFO, b, go_data(b, name, 0)), NBD_REP_ERR_UNKNOWN);
	}
	close(fd);
	fd = open_export("disk", false, false);
	EXPECT_EQ(simple(fd, 0, NBD_CMD_FLUSH, 0, 0), 0);
	EXPECT_EQ(fx.disk->shared_opens, 0);
	close(fd);
	fd = open_export("disk:shared", true, true); /* a context is chosen for the name as given */
	put_request(fd, 0, NBD_CMD_BLOCK_STATUS, 1, 0, 4096);
	free(get_chunk(fd).data);
	EXPECT_EQ(fx.disk->shared_opens, 1);
	close(fd);
	fixture_stop();
}

static void volume_made(void *arg)
{
	(void)fake_volume_add(fx.client, arg, DISK);
}

/* Made through another node a moment ago: the answer waits for the news instead of denying it. */
TEST(nbd, a_volume_made_meanwhile_is_found)
{
	struct option_reply r;
	uint8_t b[128];
	int fd;

	fixture_start();
	fd = greet(3);
	put_option(fd, NBD_OPT_GO, b, go_data(b, "fresh", 0));
	harness_do(&fx.h, volume_made, "fresh");
	EXPECT_EQ(get_option(fd, NBD_OPT_GO, &r), NBD_REP_INFO);
	close(fd);
	fixture_stop();
}

TEST(nbd, meta_contexts_follow_their_rules)
{
	uint8_t b[256], all[512];
	struct option_reply r;
	int fd;

	fixture_start();
	fd = greet(3);
	EXPECT_EQ(option_error(fd, NBD_OPT_SET_META_CONTEXT, b,
			       meta_data(b, "disk", "base:allocation")),
		  NBD_REP_ERR_INVALID); /* structured replies first */
	EXPECT_EQ(option_error(fd, NBD_OPT_STRUCTURED_REPLY, NULL, 0), NBD_REP_ACK);
	EXPECT_EQ(option_error(fd, NBD_OPT_SET_META_CONTEXT, b, meta_data(b, "disk", "base:")),
		  NBD_REP_ACK);
	EXPECT_EQ(option_error(fd, NBD_OPT_SET_META_CONTEXT, b, meta_data(b, "disk", "qemu:dirty")),
		  NBD_REP_ACK);
	EXPECT_EQ(option_error(fd, NBD_OPT_SET_META_CONTEXT, b,
			       meta_data(b, "none", "base:allocation")),
		  NBD_REP_ERR_UNKNOWN);
	put_be32(b, 4);
	memcpy(b + 4, "disk", 4);
	put_be32(b + 8, 0xffffffff); /* so many queries in no bytes */
	EXPECT_EQ(option_error(fd, NBD_OPT_LIST_META_CONTEXT, b, 12), NBD_REP_ERR_INVALID);
	for (unsigned i = 0; i < 2; i++) {
		put_option(fd, NBD_OPT_LIST_META_CONTEXT, b,
			   meta_data(b, "disk", i ? "base:" : NULL));
		EXPECT_EQ(get_option(fd, NBD_OPT_LIST_META_CONTEXT, &r), NBD_REP_META_CONTEXT);
		EXPECT(!memcmp(r.data + 4, "base:allocation", 15));
		EXPECT_EQ(get_option(fd, NBD_OPT_LIST_META_CONTEXT, &r), NBD_REP_ACK);
	}
	/* Chosen for one export, gone to another: no context. */
	put_option(fd, NBD_OPT_SET_META_CONTEXT, b, meta_data(b, "odd", "base:allocation"));
	EXPECT_EQ(get_option(fd, NBD_OPT_SET_META_CONTEXT, &r), NBD_REP_META_CONTEXT);
	EXPECT_EQ(get_option(fd, NBD_OPT_SET_META_CONTEXT, &r), NBD_REP_ACK);
	ask_info(fd, NBD_OPT_GO, "disk", all);
	put_request(fd, 0, NBD_CMD_BLOCK_STATUS, 1, 0, 4096);
	EXPECT_EQ(chunk_error(fd, NULL), NBD_EINVAL);
	close(fd);
	/* A failed SET ends the earlier choice. */
	fd = greet(3);
	EXPECT_EQ(option_error(fd, NBD_OPT_STRUCTURED_REPLY, NULL, 0), NBD_REP_ACK);
	put_option(fd, NBD_OPT_SET_META_CONTEXT, b, meta_data(b, "disk", "base:allocation"));
	EXPECT_EQ(get_option(fd, NBD_OPT_SET_META_CONTEXT, &r), NBD_REP_META_CONTEXT);
	EXPECT_EQ(get_option(fd, NBD_OPT_SET_META_CONTEXT, &r), NBD_REP_ACK);
	EXPECT_EQ(option_error(fd, NBD_OPT_SET_META_CONTEXT, b, 3), NBD_REP_ERR_INVALID);
	ask_info(fd, NBD_OPT_GO, "disk", all);
	put_request(fd, 0, NBD_CMD_BLOCK_STATUS, 1, 0, 4096);
	EXPECT_EQ(chunk_error(fd, NULL), NBD_EINVAL);
	close(fd);
	fixture_stop();
}

/* ---- Transmission ---- */

TEST(nbd, refused_requests_leave_the_connection_usable)
{
	static uint8_t data[33u << 20];
	int fd;

	fixture_start();
	fd = open_export("odd", false, false);
	memset(data, 5, sizeof(data));
	EXPECT_EQ(simple_write(fd, 0, 0, data, 4096), 0);
	EXPECT_EQ(simple_write(fd, 1 << 9, 0, data + 1, 4095), NBD_EINVAL); /* unknown flag */
	EXPECT_EQ(simple_write(fd, 0, 1000000, data, 2), NBD_ENOSPC);
	EXPECT_EQ(simple_write(fd, 0, 900000, data, 200000),
		  NBD_ENOSPC); /* larger than a receive buffer */
	EXPECT_EQ(simple_write(fd, 0, UINT64_MAX, data, 4096), NBD_ENOSPC);
	EXPECT_EQ(simple_write(fd, 0, 0, data, sizeof(data)), NBD_EINVAL); /* beyond 32 MiB */
	EXPECT_EQ(simple_write(fd, 0, 0, data, 0), 0);
	EXPECT_EQ(simple(fd, 0, 200, 0, 0), NBD_EINVAL);
	EXPECT_EQ(simple(fd, 0, NBD_CMD_READ, 1000001, 1), NBD_EINVAL);
	EXPECT_EQ(simple(fd, 0, NBD_CMD_READ, UINT64_MAX, 4096), NBD_EINVAL);
	EXPECT_EQ(simple(fd, 0, NBD_CMD_READ, 0, 33u << 20), NBD_EINVAL);
	EXPECT_EQ(simple(fd, NBD_CMD_DF, NBD_CMD_READ, 0, 1), NBD_EINVAL);
	EXPECT_EQ(simple(fd, 0, NBD_CMD_READ, 0, 0), 0);
	EXPECT_EQ(simple(fd, 0, NBD_CMD_TRIM, 1000000, 4096), NBD_EINVAL);
	EXPECT_EQ(simple(fd, 0, NBD_CMD_WRITE_ZEROES, 1000000, 4096), NBD_ENOSPC);
	EXPECT_EQ(simple(fd, NBD_CMD_NO_HOLE, NBD_CMD_TRIM, 0, 4096), NBD_EINVAL);
	EXPECT_EQ(simple(fd, 0, NBD_CMD_FLUSH, 1, 0), NBD_EINVAL);
	EXPECT_EQ(simple(fd, 0, NBD_CMD_BLOCK_STATUS, 0, 4096), NBD_EINVAL);
	EXPECT_EQ(simple(fd, 0, NBD_CMD_CACHE, 0, 4096), 0);
	EXPECT_EQ(simple(fd, NBD_CMD_FUA, NBD_CMD_FLUSH, 0, 0), 0);
	EXPECT_EQ(simple(fd, NBD_CMD_FUA, NBD_CMD_READ, 0, 4096), 0);
	get_all(fd, data, 4096);
	EXPECT_EQ(data[0], 5);
	EXPECT_EQ(fx.odd->writes, 1); /* the empty one did not count, nor any refused one */
	close(fd);
	fixture_stop();
}

TEST(nbd, bad_request_magic_closes_at_once)
{
	uint8_t b[28] = {1};
	int fd;

	fixture_start();
	fd = open_export("disk", false, false);
	put_all(fd, b, sizeof(b));
	expect_closed(fd);
	fixture_stop();
}

static bool disk_is_closed(void *arg)
{
	return fx.disk->opens == 0;
}

TEST(nbd, a_half_sent_write_does_nothing)
{
	static uint8_t data[200000];
	int fd;

	fixture_start();
	for (unsigned n = 1; n < 2 * sizeof(data); n *= 7) {
		fd = open_export("disk", true, false);
		put_request(fd, 0, NBD_CMD_WRITE, 1, 5000, MIN(n + 1, (uint32_t)sizeof(data)));
		put_all(fd, data, MIN(n, sizeof(data) - 1));
		close(fd);
	}
	harness_await(&fx.h, disk_is_closed, NULL, "the volume is closed");
	EXPECT_EQ(fx.disk->writes, 0);
	fixture_stop();
}

TEST(nbd, structured_read_is_one_chunk_and_errors_are_chunks)
{
	struct chunk c;
	uint8_t data[10000];
	int fd;

	fixture_start();
	fd = open_export("disk", true, true);
	for (unsigned i = 0; i < sizeof(data); i++)
		data[i] = (uint8_t)(i * 7);
	EXPECT_EQ(simple_write(fd, NBD_CMD_FUA, (1 << 20) - 5000, data, sizeof(data)), 0);
	put_request(fd, NBD_CMD_DF, NBD_CMD_READ, 9, (1 << 20) - 5000, sizeof(data));
	c = get_chunk(fd);
	EXPECT_EQ(c.type, NBD_CHUNK_OFFSET_DATA);
	EXPECT_EQ(c.flags, NBD_CHUNK_DONE);
	EXPECT_EQ(c.cookie, 9);
	EXPECT_EQ(c.length, 8 + sizeof(data));
	EXPECT_EQ(get_be64(c.data), (1 << 20) - 5000);
	EXPECT_MEM(c.data + 8, data, sizeof(data));
	free(c.data);
	put_request(fd, 0, NBD_CMD_READ, 10, DISK, 1);
	EXPECT_EQ(chunk_error(fd, ""), NBD_EINVAL);
	put_request(fd, 0, NBD_CMD_READ, 11, 0, 0);
	c = get_chunk(fd);
	EXPECT_EQ(c.type, NBD_CHUNK_NONE);
	free(c.data);
	fake_client_fail(fx.client, -ERR_HELD);
	put_request(fd, 0, NBD_CMD_TRIM, 12, 0, 4096);
	EXPECT_EQ(chunk_error(fd, "held by client:other@elsewhere"), NBD_EPERM);
	fake_client_fail(fx.client, -ERR_FULL);
	put_request(fd, 0, NBD_CMD_WRITE_ZEROES, 12, 0, 4096);
	EXPECT_EQ(chunk_error(fd, NULL), NBD_ENOSPC);
	fake_client_fail(fx.client, -ERR_DAMAGED);
	put_request(fd, 0, NBD_CMD_READ, 12, 0, 4096);
	EXPECT_EQ(chunk_error(fd, NULL), NBD_EIO);
	fake_client_fail(fx.client, -ERR_FENCED);
	put_request(fd, 0, NBD_CMD_WRITE, 12, 0, 3);
	put_all(fd, "abc", 3);
	EXPECT_EQ(chunk_error(fd, NULL), NBD_EPERM);
	fake_client_fail(fx.client, 0);
	close(fd);
	fixture_stop();
}

TEST(nbd, trim_zeroes_and_block_status)
{
	static uint8_t data[65536];
	struct chunk c;
	int fd;

	fixture_start();
	fd = open_export("disk", true, true);
	memset(data, 9, sizeof(data));
	EXPECT_EQ(simple_write(fd, 0, 0, data, sizeof(data)), 0);
	EXPECT_EQ(simple(fd, 0, NBD_CMD_TRIM, 100, 4000), 0); /* inwards: nothing */
	EXPECT_EQ(fx.disk->trims, 0);
	EXPECT_EQ(simple(fd, 0, NBD_CMD_TRIM, 100, 12000),
		  0); /* blocks 1 and 2 but for the last bytes */
	EXPECT_EQ(fx.disk->data[4095], 9);
	EXPECT_EQ(fx.disk->data[4096], 0);
	EXPECT_EQ(fx.disk->data[8192], 9);
	EXPECT_EQ(
		simple(fd, NBD_CMD_NO_HOLE | NBD_CMD_FAST_ZERO, NBD_CMD_WRITE_ZEROES, 16384, 8192),
		0);
	EXPECT_EQ(fx.disk->zeroes, 1);
	EXPECT_EQ(simple(fd, 0, NBD_CMD_WRITE_ZEROES, 32768, 8192), 0);
	EXPECT_EQ(fx.disk->trims, 2);
	EXPECT_EQ(simple(fd, 0, NBD_CMD_WRITE_ZEROES, 1 << 20, 60u << 20),
		  0); /* beyond the payload limit */
	put_request(fd, 0, NBD_CMD_BLOCK_STATUS, 5, 0, 1 << 20);
	c = get_chunk(fd);
	EXPECT_EQ(c.type, NBD_CHUNK_BLOCK_STATUS);
	EXPECT_EQ(c.flags, NBD_CHUNK_DONE);
	EXPECT_GOLDEN(c.data, c.length,
		      "00000001"
		      "00001000 00000000  00001000 00000003  00002000 00000000  00002000 00000002"
		      "00002000 00000000  00002000 00000003  00006000 00000000  000f0000 00000003");
	free(c.data);
	put_request(fd, NBD_CMD_REQ_ONE, NBD_CMD_BLOCK_STATUS, 5, 4096, 1 << 20);
	c = get_chunk(fd);
	EXPECT_GOLDEN(c.data, c.length, "00000001 00001000 00000003");
	free(c.data);
	put_request(fd, 0, NBD_CMD_BLOCK_STATUS, 5, 0, 0);
	EXPECT_EQ(chunk_error(fd, NULL), NBD_EINVAL);
	close(fd);
	fixture_stop();
}

static void set_hold(void *arg)
{
	fake_client_hold(fx.client, arg != NULL);
}

static void release(void *arg)
{
	fake_client_release(fx.client);
}

static bool held_are(void *arg)
{
	return fake_client_held(fx.client) == *(unsigned *)arg;
}

TEST(nbd, replies_come_as_requests_end_and_disc_waits_for_them)
{
	unsigned three = 3;
	int fd;

	fixture_start();
	fd = open_export("disk", false, false);
	harness_do(&fx.h, set_hold, &three);
	put_request(fd, 0, NBD_CMD_TRIM, 1, 0, 4096);
	put_request(fd, 0, NBD_CMD_TRIM, 2, 0, 4096);
	put_request(fd, 0, NBD_CMD_FLUSH, 3, 0, 0);
	put_request(fd, 0, NBD_CMD_TRIM, 4, 0, 4096);
	put_request(fd, 0, NBD_CMD_DISC, 5, 0, 0);
	EXPECT_EQ(get_simple(fd, 3),
		  0); /* overtakes what is unanswered: it speaks of answered writes only */
	harness_await(&fx.h, held_are, &three, "three requests are under way");
	harness_do(&fx.h, release, NULL);
	EXPECT_EQ(get_simple(fd, 4), 0);
	EXPECT_EQ(get_simple(fd, 2), 0);
	EXPECT_EQ(get_simple(fd, 1), 0);
	expect_closed(fd);
	fixture_stop();
}

TEST(nbd, requests_in_flight_end_after_their_connection)
{
	unsigned one = 1;
	int fd;

	fixture_start();
	fd = open_export("disk", false, false);
	harness_do(&fx.h, set_hold, &one);
	put_request(fd, 0, NBD_CMD_WRITE, 1, 0, 3);
	put_all(fd, "abc", 3);
	harness_await(&fx.h, held_are, &one, "a write is under way");
	close(fd);
	fd = open_export("disk", false,
			 false); /* the server has seen the end of the other, or will */
	harness_do(&fx.h, release, NULL);
	harness_do(&fx.h, set_hold, NULL);
	EXPECT_EQ(simple(fd, 0, NBD_CMD_READ, 0, 3), 0);
	close(fd);
	harness_await(&fx.h, disk_is_closed, NULL, "the volume is closed");
	EXPECT(!memcmp(fx.disk->data, "abc", 3));
	fixture_stop();
}

TEST(nbd, a_stop_answers_what_is_in_flight)
{
	unsigned one = 1;
	int fd;

	fixture_start();
	fd = open_export("disk", false, false);
	harness_do(&fx.h, set_hold, &one);
	put_request(fd, 0, NBD_CMD_TRIM, 1, 0, 4096);
	harness_await(&fx.h, held_are, &one, "a request is under way");
	harness_do(&fx.h, server_stop, NULL);
	EXPECT_EQ(get_simple(fd, 1), NBD_ESHUTDOWN); /* held for longer than a stop waits */
	expect_closed(fd);
	harness_await(&fx.h, is_stopped, NULL, "the server has stopped");
	harness_do(&fx.h, server_destroy, NULL);
	harness_stop(&fx.h);
}

/* A stream of mixed requests, written in pieces of random size, with a random bottleneck of memory.
 */
static void torrent(uint64_t seed, size_t pool_bytes)
{
	enum { AREA = 8 << 20, COUNT = 400 };
	uint8_t *shadow = xcalloc(1, AREA), *out = xmalloc(64 << 20), *back = xmalloc(AREA);
	size_t n = 0, sent = 0;
	struct rng r;
	int fd;

	fixture_begin();
	fx.pool_bytes = pool_bytes;
	harness_do(&fx.h, server_start, NULL);
	fd = open_export("disk", false, false);
	rng_seed(&r, seed);
	for (unsigned i = 0; i < COUNT; i++) {
		uint32_t len = (uint32_t)rng_between(&r, 1, rng_chance(&r, 0.1) ? 300000 : 9000);
		uint64_t off = rng_below(&r, AREA - len);

		if (rng_chance(&r, 0.02))
			len = (uint32_t)(AREA - off);
		put_be32(out + n, NBD_REQUEST_MAGIC);
		put_be16(out + n + 4, 0);
		put_be16(out + n + 6, NBD_CMD_WRITE);
		put_be64(out + n + 8, i);
		put_be64(out + n + 16, off);
		put_be32(out + n + 24, len);
		rng_fill(&r, out + n + 28, len);
		memcpy(shadow + off, out + n + 28, len);
		n += 28 + len;
		CHECK(n < (56u << 20));
	}
	while (sent < n) { /* replies stay below what the socket holds */
		size_t k = rng_between(&r, 1, 200000);

		k = MIN(k, n - sent);
		put_all(fd, out + sent, k);
		sent += k;
	}
	for (unsigned i = 0; i < COUNT; i++)
		EXPECT_EQ(get_simple(fd, i), 0);
	for (unsigned i = 0; i < 8; i++) /* all reads asked for before one is taken */
		put_request(fd, 0, NBD_CMD_READ, i, i * (AREA / 8), AREA / 8);
	for (unsigned i = 0; i < 8; i++) {
		EXPECT_EQ(get_simple(fd, i), 0);
		get_all(fd, back + i * (AREA / 8), AREA / 8);
	}
	EXPECT_MEM(back, shadow, AREA);
	close(fd);
	fixture_stop();
	free(shadow);
	free(out);
	free(back);
}

TEST(nbd, any_cut_of_the_stream_gives_the_same_writes)
{
	for (uint64_t seed = 1; seed <= 4; seed++)
		torrent(seed, 96u << 20);
}

TEST(nbd, short_memory_means_waiting)
{
	torrent(9, 18u << 20);
}

static void memory_is_bounded(void *arg)
{
	EXPECT(buf_pool_used_bytes(fx.pool) <= (20u << 20));
}

TEST(nbd, slow_readers_cost_a_bounded_amount_of_memory)
{
	enum { READS = 100, LEN = 1 << 20 };
	uint8_t *back = xmalloc(LEN);
	int fd;

	fixture_start();
	fd = open_export("disk", false, false);
	for (unsigned i = 0; i < READS; i++)
		put_request(fd, 0, NBD_CMD_READ, i, 0, LEN);
	for (unsigned i = 0; i < READS; i++) {
		harness_do(&fx.h, memory_is_bounded, NULL);
		EXPECT_EQ(get_simple(fd, i), 0);
		get_all(fd, back, LEN);
	}
	free(back);
	close(fd);
	fixture_stop();
}

TEST(nbd, limits_of_connections)
{
	struct sockaddr_un sa = {.sun_family = AF_UNIX};
	int fd[6];

	fixture_begin();
	fx.cfg.connections_max = 4;
	fx.cfg.negotiating_max = 2;
	harness_do(&fx.h, server_start, NULL);
	strcpy(sa.sun_path, fx.path);
	fd[0] = greet(3);
	fd[1] = greet(3);
	fd[2] = greet(3);
	expect_closed(fd[0]); /* the oldest that still negotiates */
	EXPECT_EQ(option_error(fd[1], 99, NULL, 0), NBD_REP_ERR_UNSUP);
	fd[3] = open_export("disk", false, false); /* pushes 1 out */
	expect_closed(fd[1]);
	fd[4] = open_export("disk", false, false);
	fd[5] = open_export("disk", false, false);
	fd[0] = dial();
	EXPECT(is_eof(fd[0])); /* four are open */
	for (unsigned i = 2; i <= 5; i++)
		close(fd[i]);
	close(fd[0]);
	harness_await(&fx.h, disk_is_closed, NULL, "all are closed");
	close(greet(3));
	fixture_stop();
}

static void try_second(void *arg)
{
	struct nbd_config cfg = fx.cfg;

	EXPECT(nbd_server_create(&cfg) == NULL); /* somebody listens there */
	cfg.unix_path = NULL;
	cfg.tcp_address = "0.0.0.0:0";
	EXPECT(nbd_server_create(&cfg) == NULL); /* in the clear, to the world */
	cfg.tcp_address = "localhost:1";
	EXPECT(nbd_server_create(&cfg) == NULL);
}

TEST(nbd, sockets_are_replaced_only_when_nobody_listens)
{
	struct sockaddr_un sa = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);

	fixture_begin();
	strcpy(sa.sun_path, fx.path);
	EXPECT_EQ(bind(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
	EXPECT_EQ(listen(fd, 1), 0);
	close(fd); /* left behind, as by a killed process */
	harness_do(&fx.h, server_start, NULL);
	log_set_level(LOG_ERROR + 1);
	harness_do(&fx.h, try_second, NULL);
	log_set_level(LOG_ERROR);
	close(greet(3));
	fixture_stop();
}

/* ---- TLS ---- */

static void tls_wait(int fd, int want)
{
	struct pollfd p = {.fd = fd, .events = want == TLS_WANT_WRITE ? POLLOUT : POLLIN};

	EXPECT(poll(&p, 1, 10000) == 1);
}

static void tls_put(int fd, const void *data, size_t n)
{
	const char *p = data;

	while (n) {
		int rc = 0;
		ssize_t k = tls_write(session, p, n, &rc);

		EXPECT_OK(rc);
		if (k < 0) {
			tls_wait(fd, (int)k);
			continue;
		}
		p += k;
		n -= (size_t)k;
	}
}

static void tls_get(int fd, void *data, size_t n)
{
	char *p = data;

	while (n) {
		int rc = 0;
		ssize_t k = tls_read(session, p, n, &rc);

		EXPECT_OK(rc);
		EXPECT(k != 0);
		if (k < 0) {
			tls_wait(fd, (int)k);
			continue;
		}
		p += k;
		n -= (size_t)k;
	}
}

static void tls_fixture(void)
{
	static struct fake_files files;

	fixture_begin();
	if (!files.ca[0])
		fake_files_make(&files, test_dir());
	fx.cfg.tls = fx.server_tls = tls_ctx_create(files.ca, files.node_cert, files.node_key);
	fx.client_tls = tls_ctx_create(files.ca, files.client_cert, files.client_key);
	EXPECT(fx.server_tls && fx.client_tls);
	harness_do(&fx.h, server_start, NULL);
}

static void tls_fixture_stop(void)
{
	fixture_stop();
	tls_ctx_destroy(fx.server_tls);
	tls_ctx_destroy(fx.client_tls);
}

static uint32_t tls_option(int fd, uint32_t option, const void *data, uint32_t n)
{
	uint8_t b[16], reply[20], rest[256];

	put_be64(b, NBD_OPTION_MAGIC);
	put_be32(b + 8, option);
	put_be32(b + 12, n);
	tls_put(fd, b, 16);
	tls_put(fd, data, n);
	tls_get(fd, reply, 20);
	EXPECT_EQ(get_be32(reply + 8), option);
	EXPECT(get_be32(reply + 16) <= sizeof(rest));
	tls_get(fd, rest, get_be32(reply + 16));
	return get_be32(reply + 12);
}

static void handshake(int fd)
{
	int rc = 0, want;

	session = tls_session_create(fx.client_tls, fd, false);
	EXPECT(session != NULL);
	while ((want = tls_handshake(session, &rc)) && !rc)
		tls_wait(fd, want);
	EXPECT_OK(rc);
}

TEST(nbd_tls, what_was_said_in_the_clear_is_forgotten)
{
	uint8_t b[256], *data = xmalloc(200028), head[28];
	int fd;

	tls_fixture();
	fd = greet(3);
	EXPECT_EQ(option_error(fd, NBD_OPT_STRUCTURED_REPLY, NULL, 0), NBD_REP_ACK);
	EXPECT_EQ(option_error(fd, NBD_OPT_STARTTLS, "x", 1), NBD_REP_ERR_INVALID);
	EXPECT_EQ(option_error(fd, NBD_OPT_STARTTLS, NULL, 0), NBD_REP_ACK);
	handshake(fd);
	EXPECT_EQ(tls_option(fd, NBD_OPT_STARTTLS, NULL, 0), NBD_REP_ERR_INVALID);
	EXPECT_EQ(tls_option(fd, NBD_OPT_SET_META_CONTEXT, b,
			     meta_data(b, "disk", "base:allocation")),
		  NBD_REP_ERR_INVALID); /* structured replies are no longer agreed */
	EXPECT_EQ(tls_option(fd, NBD_OPT_GO, b, go_data(b, "disk", 0)), NBD_REP_INFO);
	tls_get(fd, b, 20 + 14 + 20); /* block sizes, ACK */
	/* A write of many records, read back. */
	put_be32(data, NBD_REQUEST_MAGIC);
	put_be16(data + 4, 0);
	put_be16(data + 6, NBD_CMD_WRITE);
	put_be64(data + 8, 1);
	put_be64(data + 16, 4096);
	put_be32(data + 24, 200000);
	memset(data + 28, 0x77, 200000);
	tls_put(fd, data, 200028);
	tls_get(fd, b, 16);
	EXPECT_EQ(get_be32(b + 4), 0);
	memcpy(head, data, 28);
	put_be16(head + 6, NBD_CMD_READ);
	tls_put(fd, head, 28);
	tls_get(fd, b, 16);
	EXPECT_EQ(get_be32(b), NBD_SIMPLE_MAGIC);
	memset(data, 0, 200000);
	tls_get(fd, data, 200000);
	for (unsigned i = 0; i < 200000; i++)
		EXPECT_EQ(data[i], 0x77);
	tls_session_destroy(session);
	close(fd);
	free(data);
	tls_fixture_stop();
}

/* Its certificate still verifies. */
TEST(nbd_tls, a_node_that_was_removed_is_sent_away)
{
	char byte;
	int fd, rc = 0;
	ssize_t n;

	tls_fixture();
	fake_client_removed = "client:tester";
	fd = greet(3);
	EXPECT_EQ(option_error(fd, NBD_OPT_STARTTLS, NULL, 0), NBD_REP_ACK);
	handshake(fd);
	while ((n = tls_read(session, &byte, 1, &rc)) < 0)
		tls_wait(fd, (int)n);
	EXPECT_EQ(n, 0);
	tls_session_destroy(session);
	close(fd);
	fake_client_removed = NULL;
	tls_fixture_stop();
}

TEST(nbd_tls, bytes_smuggled_behind_starttls_end_the_connection)
{
	uint8_t b[16 + 16];
	struct option_reply r;
	int fd;

	tls_fixture();
	fd = greet(3);
	for (unsigned i = 0; i < 2; i++) {
		put_be64(b + 16 * i, NBD_OPTION_MAGIC);
		put_be32(b + 16 * i + 8, i ? NBD_OPT_LIST : NBD_OPT_STARTTLS);
		put_be32(b + 16 * i + 12, 0);
	}
	put_all(fd, b, 32);
	EXPECT_EQ(get_option(fd, NBD_OPT_STARTTLS, &r), NBD_REP_ACK);
	expect_closed(fd);
	tls_fixture_stop();
}

TEST(nbd_tls, a_server_that_requires_tls_answers_nothing_else)
{
	struct nbd_negotiation n = {.tls_offered = true, .tls_required = true, .greeted = true};
	struct writer out = writer_init_heap();
	uint8_t b[16];
	size_t used;

	put_be64(b, NBD_OPTION_MAGIC);
	put_be32(b + 12, 0);
	put_be32(b + 8, NBD_OPT_LIST);
	EXPECT_EQ(nbd_negotiate(&n, b, 16, &used, &out), NBD_STEP_NEXT);
	EXPECT_EQ(get_be32(out.data + 12), NBD_REP_ERR_TLS_REQD);
	put_be32(b + 8, NBD_OPT_EXPORT_NAME);
	EXPECT_EQ(nbd_negotiate(&n, b, 16, &used, &out), NBD_STEP_CLOSE);
	put_be32(b + 8, NBD_OPT_STARTTLS);
	EXPECT_EQ(nbd_negotiate(&n, b, 16, &used, &out), NBD_STEP_TLS);
	writer_free(&out);
}
