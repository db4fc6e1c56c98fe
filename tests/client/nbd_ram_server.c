/* SPDX-License-Identifier: Apache-2.0 */
/* The NBD front end over RAM, as a process: what interop tests and fio run against, and the
 * yardstick of the front end's own cost. nbd_ram_server SOCKET SIZE_MIB [TCP_ADDRESS]; ends at
 * SIGTERM and prints its CPU time. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "client/nbd.h"
#include "tests/client/fake_client.h"

static struct loop *loop;
static struct nbd_server *server;

struct stopper {
	struct post post;
	struct wait wait;
};
static struct stopper stopper;

static void stopped(struct wait *w, int rc)
{
	loop_stop(loop);
}

static void stop(struct post *p)
{
	stopper.wait.resume = stopped;
	nbd_server_stop(server, &stopper.wait);
}

static void on_term(int sig)
{
	stopper.post.fn = stop;
	loop_post(loop, &stopper.post);
}

int main(int argc, char **argv)
{
	struct nbd_config cfg = {0};
	struct rusage u;
	struct client *c;

	if (argc < 3) {
		fprintf(stderr, "usage: nbd_ram_server SOCKET SIZE_MIB [TCP_ADDRESS]\n");
		return 2;
	}
	loop = loop_create("nbd", 64);
	cfg.pool = buf_pool_create(256u << 20);
	cfg.loop = loop;
	cfg.client = c = fake_client_create(loop, cfg.pool);
	fake_volume_add(c, "disk", strtoull(argv[2], NULL, 10) << 20);
	fake_volume_add(c, "odd", (8u << 20) + 512);
	cfg.unix_path = argv[1];
	cfg.tcp_address = argc > 3 ? argv[3] : NULL;
	server = nbd_server_create(&cfg);
	if (!server)
		return 1;
	signal(SIGTERM, on_term);
	printf("ready\n");
	fflush(stdout);
	loop_run(loop);
	nbd_server_destroy(server);
	fake_client_destroy(c);
	buf_pool_destroy(cfg.pool);
	loop_destroy(loop);
	getrusage(RUSAGE_SELF, &u);
	printf("cpu_us %ld user %ld sys %ld\n",
	       u.ru_utime.tv_sec * 1000000 + u.ru_utime.tv_usec + u.ru_stime.tv_sec * 1000000 +
		       u.ru_stime.tv_usec,
	       u.ru_utime.tv_sec * 1000000 + u.ru_utime.tv_usec,
	       u.ru_stime.tv_sec * 1000000 + u.ru_stime.tv_usec);
	return 0;
}
