/* SPDX-License-Identifier: Apache-2.0 */
/* history: load with a memory. Clients write unique values, read, trim and zero on a few hot blocks
 * through NBD, reconnect when a connection breaks, record every operation with its times, and at
 * the end read everything back and check that the whole history is linearizable per block: no
 * acknowledged write lost, no read back in time, no torn, misplaced or foreign block.
 *
 *   history --volume NAME --socket PATH [--socket PATH …] [--clients 4] [--blocks 256] [--seconds
 * 10]
 *           [--seed N] [--stop-file F]     runs until the time is over or F exists
 *
 * Exit: 0 clean; 1 a violation (printed); 2 usage; 3 the device did not come back for the final
 * read. */
#include <errno.h>
#include <getopt.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "node/base/hash.h"
#include "node/base/rng.h"
#include "tests/system/history_check.h"
#include "tests/system/nbd_io.h"

#define BLOCK             4096u
#define SPAN_MAX          8u
#define SOCKETS_MAX       8
#define MAGIC             0x59524f545349487full
#define RECONNECT_LIMIT_S 120

struct label { /* at both ends of each block, so that tearing shows */
	uint64_t magic, run, value;
	uint32_t block, client;
};

struct client {
	pthread_t thread;
	unsigned index;
	struct rng rng;
	struct nbd_io nbd;
	struct history_op *ops;
	size_t count, cap;
	uint64_t errors, reconnects;
	unsigned tries;
};

static const char *volume, *sockets[SOCKETS_MAX], *stop_file;
static unsigned socket_count, client_count = 4, blocks = 256;
static double seconds = 10;
static uint64_t seed, run_id;
static atomic_bool stop, failed;
static _Atomic uint64_t next_value = 1, last_completion, longest_gap;
static atomic_uchar
	*zeroed; /* per block: one zeroing write per run, so that zeros are unambiguous */

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void note_completion(void)
{
	uint64_t now = now_ns(), before = atomic_exchange(&last_completion, now), gap;

	gap = before && now > before ? now - before : 0;
	for (uint64_t g = atomic_load(&longest_gap); gap > g;)
		if (atomic_compare_exchange_weak(&longest_gap, &g, gap))
			break;
}

static void violation(const char *what, unsigned block, const struct label *l)
{
	printf("VIOLATION: block %u: %s (label: run %llx value %llx block %u client %u)\n", block,
	       what, (unsigned long long)l->run, (unsigned long long)l->value, l->block, l->client);
	fflush(stdout);
	atomic_store(&failed, true);
	atomic_store(&stop, true);
}

static void block_fill(uint8_t *p, unsigned block, unsigned client, uint64_t value)
{
	struct label l = {MAGIC, run_id, value, block, client};
	struct rng r;

	rng_seed(&r, value ^ run_id);
	memcpy(p, &l, sizeof(l));
	rng_fill(&r, p + sizeof(l), BLOCK - 2 * sizeof(l));
	memcpy(p + BLOCK - sizeof(l), &l, sizeof(l));
}

/* The value a block shows: 0 for zeros that were there from the start is not possible (every block
 * is written first), so zeros stand for the block's one zeroing write. */
static int block_value(const uint8_t *p, unsigned block, uint64_t *value)
{
	static const uint8_t zeros[BLOCK];
	uint8_t want[BLOCK];
	struct label l;

	memcpy(&l, p, sizeof(l));
	if (!memcmp(p, zeros, BLOCK)) {
		*value = UINT64_MAX - block;
		return 0;
	}
	if (l.magic != MAGIC || l.run != run_id)
		violation("foreign bytes", block, &l);
	else if (l.block != block)
		violation("another block's bytes", block, &l);
	else {
		block_fill(want, l.block, l.client, l.value);
		if (!memcmp(want, p, BLOCK)) {
			*value = l.value;
			return 0;
		}
		violation("torn or corrupt bytes", block, &l);
	}
	return -1;
}

static void record(struct client *c, unsigned block, bool is_write, uint64_t value, uint64_t t0,
		   uint64_t t1)
{
	if (c->count == c->cap) {
		c->cap = c->cap ? c->cap * 2 : 65536;
		c->ops = realloc(c->ops, c->cap * sizeof(*c->ops));
	}
	c->ops[c->count++] = (struct history_op){value, t0, t1, block, is_write};
}

static int client_connect(struct client *c)
{
	uint64_t give_up = now_ns() + RECONNECT_LIMIT_S * 1000000000ull;

	while (c->nbd.fd < 0) {
		/* In turn, so that every gateway takes part from the start. */
		const char *path = sockets[(c->index + c->tries++) % socket_count];
		struct timespec pause = {0, 20000000};

		if (nbd_connect(&c->nbd, path, volume) == 0) {
			c->reconnects++;
			return 0;
		}
		if (now_ns() > give_up)
			return -1;
		nanosleep(&pause, NULL); /* the server is another process that is being restarted */
	}
	return 0;
}

static void do_read(struct client *c, unsigned first, unsigned n, uint8_t *buf)
{
	uint64_t t0 = now_ns(), t1;
	int rc = nbd_request(&c->nbd, NBD_READ, (uint64_t)first * BLOCK, n * BLOCK, buf);

	t1 = now_ns();
	if (rc) {
		c->errors += rc > 0;
		return;
	}
	note_completion();
	for (unsigned i = 0; i < n; i++) {
		uint64_t value;

		if (block_value(buf + i * BLOCK, first + i, &value) < 0)
			return;
		record(c, first + i, false, value, t0, t1);
	}
}

static void do_write(struct client *c, unsigned first, unsigned n, uint8_t *buf)
{
	uint64_t value = atomic_fetch_add(&next_value, n), t0, t1;
	int rc;

	for (unsigned i = 0; i < n; i++)
		block_fill(buf + i * BLOCK, first + i, c->index, value + i);
	t0 = now_ns();
	rc = nbd_request(&c->nbd, NBD_WRITE, (uint64_t)first * BLOCK, n * BLOCK, buf);
	t1 = rc ? OP_PENDING : now_ns();
	c->errors += rc > 0;
	if (!rc)
		note_completion();
	for (unsigned i = 0; i < n; i++)
		record(c, first + i, true, value + i, t0, t1);
}

static void do_zero(struct client *c, unsigned block)
{
	int kind = rng_below(&c->rng, 2) ? NBD_TRIM : NBD_ZEROES, rc;
	uint64_t t0;

	if (atomic_exchange(&zeroed[block], 1))
		return;
	t0 = now_ns();
	rc = nbd_request(&c->nbd, kind, (uint64_t)block * BLOCK, BLOCK, NULL);
	c->errors += rc > 0;
	record(c, block, true, UINT64_MAX - block, t0, rc ? OP_PENDING : now_ns());
}

static void *client_run(void *arg)
{
	struct client *c = arg;
	uint8_t *buf = malloc(SPAN_MAX * BLOCK);

	while (!atomic_load(&stop)) {
		unsigned first = (unsigned)rng_below(&c->rng, blocks);
		unsigned n = 1 + (unsigned)rng_below(&c->rng, SPAN_MAX);
		uint64_t dice = rng_below(&c->rng, 100);

		if (n > blocks - first)
			n = blocks - first;
		if (c->nbd.fd < 0 && client_connect(c) < 0)
			break;
		if (dice < 50)
			do_write(c, first, n, buf);
		else if (dice < 97)
			do_read(c, first, n, buf);
		else if (dice < 98)
			do_zero(c, first);
		else if (nbd_request(&c->nbd, NBD_FLUSH, 0, 0, NULL) > 0)
			c->errors++;
	}
	free(buf);
	return NULL;
}

static int read_all(struct client *c)
{
	uint8_t *buf = malloc(SPAN_MAX * BLOCK);
	size_t before;
	int rc = 0;

	for (unsigned b = 0; b < blocks && !atomic_load(&failed); b++) {
		unsigned tries = 0;

		for (before = c->count; c->count == before && !atomic_load(&failed);) {
			if ((c->nbd.fd < 0 && client_connect(c) < 0) || ++tries > 200) {
				rc = -1;
				goto out;
			}
			do_read(c, b, 1, buf);
		}
	}
out:
	free(buf);
	return rc;
}

static int write_all(struct client *c)
{
	uint8_t *buf = malloc(SPAN_MAX * BLOCK);

	for (unsigned b = 0; b < blocks; b++) {
		do {
			if (c->nbd.fd < 0 && client_connect(c) < 0)
				return -1;
			do_write(c, b, 1, buf);
		} while (c->ops[c->count - 1].returned == OP_PENDING);
	}
	free(buf);
	return 0;
}

static int parse(int argc, char **argv)
{
	static const struct option options[] = {
		{"volume", 1, NULL, 'v'},    {"socket", 1, NULL, 's'},  {"clients", 1, NULL, 'c'},
		{"blocks", 1, NULL, 'b'},    {"seconds", 1, NULL, 't'}, {"seed", 1, NULL, 'r'},
		{"stop-file", 1, NULL, 'f'}, {NULL, 0, NULL, 0},
	};
	int o;

	while ((o = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (o) {
		case 'v':
			volume = optarg;
			break;
		case 's':
			if (socket_count < SOCKETS_MAX)
				sockets[socket_count++] = optarg;
			break;
		case 'c':
			client_count = (unsigned)atoi(optarg);
			break;
		case 'b':
			blocks = (unsigned)atoi(optarg);
			break;
		case 't':
			seconds = atof(optarg);
			break;
		case 'r':
			seed = strtoull(optarg, NULL, 0);
			break;
		case 'f':
			stop_file = optarg;
			break;
		default:
			return -1;
		}
	}
	return volume && socket_count && client_count && blocks ? 0 : -1;
}

static int report(struct client *clients)
{
	struct history_op *all;
	size_t total = 0, n = 0;
	uint64_t errors = 0, reconnects = 0;
	char why[512] = "";

	for (unsigned i = 0; i <= client_count; i++) {
		total += clients[i].count;
		errors += clients[i].errors;
		reconnects += clients[i].reconnects;
	}
	all = malloc(total * sizeof(*all));
	for (unsigned i = 0; i <= client_count; i++) {
		memcpy(all + n, clients[i].ops, clients[i].count * sizeof(*all));
		n += clients[i].count;
	}
	if (!atomic_load(&failed) && history_check(all, total, why, sizeof(why)) < 0) {
		printf("VIOLATION: %s\n", why);
		atomic_store(&failed, true);
	}
	printf("history: %zu block operations, %llu errors, %llu connects, longest gap %llu ms, "
	       "seed %llu: %s\n",
	       total, (unsigned long long)errors, (unsigned long long)reconnects,
	       (unsigned long long)(atomic_load(&longest_gap) / 1000000), (unsigned long long)seed,
	       atomic_load(&failed) ? "VIOLATED" : "clean");
	return atomic_load(&failed) ? 1 : 0;
}

int main(int argc, char **argv)
{
	struct client *clients;
	uint64_t end;

	if (parse(argc, argv) < 0) {
		fprintf(stderr,
			"usage: history --volume NAME --socket PATH … [--clients N] [--blocks N] "
			"[--seconds S] [--seed N] [--stop-file F]\n");
		return 2;
	}
	if (!seed)
		seed = now_ns();
	run_id = seed * 0x9e3779b97f4a7c15ull | 1;
	clients = calloc(client_count + 1, sizeof(*clients));
	zeroed = calloc(blocks, sizeof(*zeroed));
	for (unsigned i = 0; i <= client_count; i++) {
		clients[i].index = i;
		clients[i].nbd.fd = -1;
		rng_seed(&clients[i].rng, seed + i);
	}
	if (write_all(&clients[client_count]) < 0) {
		fprintf(stderr, "history: %s could not be written through %s\n", volume,
			sockets[0]);
		return 3;
	}
	printf("history: started\n");
	fflush(stdout);
	atomic_store(&last_completion, now_ns());
	atomic_store(&longest_gap, 0);
	for (unsigned i = 0; i < client_count; i++)
		pthread_create(&clients[i].thread, NULL, client_run, &clients[i]);
	end = now_ns() + (uint64_t)(seconds * 1e9);
	while (now_ns() < end && !atomic_load(&stop) &&
	       !(stop_file && access(stop_file, F_OK) == 0)) {
		struct timespec tick = {0, 10000000};

		nanosleep(&tick, NULL); /* the run's duration, not a condition */
	}
	atomic_store(&stop, true);
	for (unsigned i = 0; i < client_count; i++)
		pthread_join(clients[i].thread, NULL);
	if (read_all(&clients[client_count]) < 0) {
		fprintf(stderr, "history: the volume did not come back for the final read\n");
		report(clients);
		return 3;
	}
	return report(clients);
}
