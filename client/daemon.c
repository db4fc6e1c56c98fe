/* SPDX-License-Identifier: Apache-2.0 */
/* ashlar-client: the front end of a compute host that stores nothing. Serves the cluster's volumes
 * by NBD; keeps one control connection to any node and data connections to those that have I/O. */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/nbd.h"
#include "client/pem.h"
#include "client/remote.h"
#include "node/base/err.h"
#include "node/base/log.h"
#include "node/loop/loop.h"

#define POOL_BYTES   (128u << 20)
#define OPS          2048u
#define RING_ENTRIES 16u /* no files here */

static struct daemon {
	struct loop *loop;
	struct buf_pool *pool;
	struct remote *remote;
	struct remote_config remote_config;
	struct nbd_config nbd_config;
	struct nbd_server *nbd;
	struct tls_ctx *tls;
	const char *cert, *key, *ca, *pid_file, *cluster;
	char holder[128];
	struct post start, term;
	struct wait stopped;
	struct timer grace;
	bool stopping;
	int exit_code;
} daemon_state;

static void daemon_end(struct daemon *d)
{
	if (d->nbd)
		nbd_server_destroy(d->nbd);
	d->nbd = NULL;
	remote_destroy(d->remote);
	timer_set(&d->grace, 0); /* closed connections end in the next turn */
}

static void daemon_grace(struct timer *t)
{
	loop_stop(container_of(t, struct daemon, grace)->loop);
}

static void daemon_nbd_stopped(struct wait *w, int rc)
{
	daemon_end(container_of(w, struct daemon, stopped));
}

static void daemon_term(struct post *p)
{
	struct daemon *d = container_of(p, struct daemon, term);

	if (d->stopping)
		return;
	d->stopping = true;
	log_info("client", "stopping", "%s", "");
	if (!d->nbd) {
		daemon_end(d);
		return;
	}
	d->stopped.resume = daemon_nbd_stopped;
	nbd_server_stop(d->nbd, &d->stopped);
}

static void on_signal(int sig)
{
	static volatile sig_atomic_t once;

	if (once)
		return;
	once = 1;
	loop_post(daemon_state.loop, &daemon_state.term);
}

static int write_pid_file(const char *path)
{
	FILE *f = fopen(path, "we");

	if (!f)
		return -errno;
	fprintf(f, "%d\n", getpid());
	return fclose(f) ? -errno : 0;
}

/* The map is there: volumes can be found from here on. */
static void daemon_ready(void *ctx)
{
	struct daemon *d = ctx;
	int rc = 0;

	if (d->stopping)
		return;
	d->nbd_config.client = remote_client(d->remote);
	d->nbd = nbd_server_create(&d->nbd_config);
	if (d->nbd && d->pid_file)
		rc = write_pid_file(d->pid_file);
	if (rc < 0)
		log_error("client", "cannot write the pid file", "path=%s error=%s", d->pid_file,
			  err_name(rc));
	if (!d->nbd || rc < 0) {
		d->exit_code = 1;
		loop_post(d->loop, &d->term);
		return;
	}
	log_info("client", "serving volumes", "unix=%s tcp=%s holder=\"%s\"",
		 d->nbd_config.unix_path ? d->nbd_config.unix_path : "",
		 d->nbd_config.tcp_address ? d->nbd_config.tcp_address : "", d->holder);
}

static void daemon_start(struct post *p)
{
	struct daemon *d = container_of(p, struct daemon, start);

	d->remote = remote_create(&d->remote_config);
}

static int usage(const char *what)
{
	if (what)
		fprintf(stderr, "ashlar-client: %s\n", what);
	fprintf(stderr,
		"usage: ashlar-client --connect HOST:PORT[,HOST:PORT...] --nbd-unix PATH "
		"[options]\n"
		"  --cert FILE --key FILE --ca FILE   this client's identity and the cluster's CA\n"
		"  --nbd-tcp HOST:PORT   also serve on TCP (off loopback with TLS only)\n"
		"  --nbd-open            allow TCP off loopback in the clear\n"
		"  --plain-data          authenticated but unencrypted data connections\n"
		"  --cluster UUID        when it cannot be read from the CA's subject\n"
		"  --pid-file PATH       written once volumes are served\n"
		"  --log-level LEVEL     debug, info, warn, error\n");
	return 2;
}

/* Who we are and which cluster this is stands in the certificates. */
static int read_identity(struct daemon *d)
{
	char name[96] = "client:anonymous", text[96], host[32];
	const char *uuid = d->cluster;
	int rc;

	if (d->cert) {
		rc = pem_find_text(d->cert, "client:", name, sizeof(name));
		if (rc < 0) {
			fprintf(stderr, "ashlar-client: %s: no client name in it: %s\n", d->cert,
				err_text(rc));
			return rc;
		}
	}
	if (!uuid && d->ca) {
		rc = pem_find_text(d->ca, "ashlar CA ", text, sizeof(text));
		if (rc < 0) {
			fprintf(stderr,
				"ashlar-client: %s: no cluster uuid in it (%s); give --cluster\n",
				d->ca, err_text(rc));
			return rc;
		}
		uuid = text + strlen("ashlar CA ");
	}
	if (!uuid || uuid_parse(uuid, &d->remote_config.cluster) < 0) {
		fprintf(stderr, "ashlar-client: no valid cluster uuid; give --ca or --cluster\n");
		return -EINVAL;
	}
	if (gethostname(host, sizeof(host) - 1) < 0)
		host[0] = 0;
	host[sizeof(host) - 1] = 0;
	snprintf(d->holder, sizeof(d->holder), "%s %s", name, host);
	d->remote_config.holder = d->holder;
	return 0;
}

static int parse_options(struct daemon *d, int argc, char **argv)
{
	enum { CONNECT = 1, CERT, KEY, CA, UNIX, TCP, OPEN, PLAIN, CLUSTER, PID, LEVEL, HELP };
	static const struct option options[] = {
		{"connect", 1, 0, CONNECT},
		{"cert", 1, 0, CERT},
		{"key", 1, 0, KEY},
		{"ca", 1, 0, CA},
		{"nbd-unix", 1, 0, UNIX},
		{"nbd-tcp", 1, 0, TCP},
		{"nbd-open", 0, 0, OPEN},
		{"plain-data", 0, 0, PLAIN},
		{"cluster", 1, 0, CLUSTER},
		{"pid-file", 1, 0, PID},
		{"log-level", 1, 0, LEVEL},
		{"help", 0, 0, HELP},
		{0},
	};
	enum log_level level;
	int o;

	while ((o = getopt_long(argc, argv, "", options, NULL)) != -1)
		switch (o) {
		case CONNECT:
			if (remote_parse_addresses(optarg, &d->remote_config) < 0)
				return usage("--connect wants numeric HOST:PORT, comma separated");
			break;
		case CERT:
			d->cert = optarg;
			break;
		case KEY:
			d->key = optarg;
			break;
		case CA:
			d->ca = optarg;
			break;
		case UNIX:
			d->nbd_config.unix_path = optarg;
			break;
		case TCP:
			d->nbd_config.tcp_address = optarg;
			break;
		case OPEN:
			d->nbd_config.allow_open = true;
			break;
		case PLAIN:
			d->remote_config.plain_data = true;
			break;
		case CLUSTER:
			d->cluster = optarg;
			break;
		case PID:
			d->pid_file = optarg;
			break;
		case LEVEL:
			if (log_level_parse(optarg, &level) < 0)
				return usage("unknown log level");
			log_set_level(level);
			break;
		default:
			return usage(NULL);
		}
	if (optind < argc || !d->remote_config.address_count)
		return usage("--connect is needed");
	if (!d->nbd_config.unix_path && !d->nbd_config.tcp_address)
		return usage("--nbd-unix or --nbd-tcp is needed");
	if (!d->cert != !d->key || !d->cert != !d->ca)
		return usage("--cert, --key and --ca go together");
	return 0;
}

int main(int argc, char **argv)
{
	struct daemon *d = &daemon_state;
	int rc = parse_options(d, argc, argv);

	if (rc)
		return rc;
	if (read_identity(d) < 0)
		return 1;
	if (d->ca) {
		d->tls = tls_ctx_create(d->ca, d->cert, d->key);
		if (!d->tls)
			return 1;
	}
	signal(SIGPIPE, SIG_IGN);
	d->loop = loop_create("client", RING_ENTRIES);
	if (!d->loop)
		return 1;
	d->pool = buf_pool_create(POOL_BYTES);
	d->remote_config.loop = d->nbd_config.loop = d->loop;
	d->remote_config.pool = d->nbd_config.pool = d->pool;
	d->remote_config.tls = d->nbd_config.tls = d->tls;
	d->remote_config.ops = OPS;
	d->remote_config.ready = daemon_ready;
	d->remote_config.ctx = d;
	d->term.fn = daemon_term;
	d->start.fn = daemon_start;
	timer_init(&d->grace, d->loop, daemon_grace);
	loop_post(d->loop, &d->start);
	signal(SIGTERM, on_signal);
	signal(SIGINT, on_signal);
	loop_run(d->loop);
	timer_fini(&d->grace);
	loop_destroy(d->loop);
	buf_pool_destroy(d->pool);
	if (d->tls)
		tls_ctx_destroy(d->tls);
	if (d->pid_file)
		unlink(d->pid_file);
	return d->exit_code;
}
