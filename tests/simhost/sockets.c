/* SPDX-License-Identifier: Apache-2.0 */
/* TCP sockets of virtual processes, by the linker's --wrap, and their readiness on loops. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "tests/simhost/impl.h"
#include "tests/simhost/vnet.h"

#define SOCK_FIRST      (1 << 24)
#define USER_TIMEOUT_US 5000000u /* unacknowledged for so long: the connection is dead */
#define KEEPALIVE_US    9000000u
#define RETRY_MAX_US    1500000u /* the next retransmission after a silence */
#define TAPPED_MIN      4096u

int __real_socket(int domain, int type, int protocol);
int __real_bind(int fd, const struct sockaddr *a, socklen_t len);
int __real_listen(int fd, int backlog);
int __real_accept4(int fd, struct sockaddr *a, socklen_t *len, int flags);
int __real_connect(int fd, const struct sockaddr *a, socklen_t len);
ssize_t __real_recv(int fd, void *p, size_t n, int flags);
ssize_t __real_readv(int fd, const struct iovec *iov, int n);
ssize_t __real_sendmsg(int fd, const struct msghdr *m, int flags);
int __real_shutdown(int fd, int how);
int __real_getsockopt(int fd, int level, int name, void *value, socklen_t *len);
int __real_setsockopt(int fd, int level, int name, const void *value, socklen_t len);
int __real_getpeername(int fd, struct sockaddr *a, socklen_t *len);
int __real_getsockname(int fd, struct sockaddr *a, socklen_t *len);
int __wrap_socket(int domain, int type, int protocol);
int __wrap_bind(int fd, const struct sockaddr *a, socklen_t len);
int __wrap_listen(int fd, int backlog);
int __wrap_accept4(int fd, struct sockaddr *a, socklen_t *len, int flags);
int __wrap_connect(int fd, const struct sockaddr *a, socklen_t len);
ssize_t __wrap_recv(int fd, void *p, size_t n, int flags);
ssize_t __wrap_readv(int fd, const struct iovec *iov, int n);
ssize_t __wrap_sendmsg(int fd, const struct msghdr *m, int flags);
int __wrap_shutdown(int fd, int how);
int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *len);
int __wrap_setsockopt(int fd, int level, int name, const void *value, socklen_t len);
int __wrap_getpeername(int fd, struct sockaddr *a, socklen_t *len);
int __wrap_getsockname(int fd, struct sockaddr *a, socklen_t *len);

enum sock_state { SOCK_NEW, SOCK_LISTENS, SOCK_DIALS, SOCK_OPEN, SOCK_DEAD };
enum packet_kind { PACKET_SYN, PACKET_SYNACK, PACKET_REFUSED, PACKET_DATA, PACKET_FIN, PACKET_RST };

/* One end of a connection. It outlives its fd and its process while packets or the peer name it. */
struct sock {
	struct list link; /* socks */
	unsigned refs;
	int fd; /* 0: closed by its owner */
	struct vproc *proc;
	struct vhost *host;
	enum sock_state state;
	enum vclass class;
	uint16_t port, peer_port;
	unsigned peer_host;
	char peer_tag[96];
	struct sock *peer;
	struct list in; /* struct packet: arrived, not read */
	size_t in_bytes, window, unacked,
		unheard;            /* unheard: of unacked, arrived, but we do not know */
	bool fin_in, fin_out, gone; /* gone: its kernel knows nothing of it any more */
	int error;
	uint64_t arrive_at; /* of the last packet on its way to it */
	struct list held;   /* struct packet: a silence keeps them from reaching it */
	uint64_t held_since;
	struct list backlog; /* SOCK_LISTENS: struct sock, by backlog_link */
	struct list backlog_link;
	struct watch *watch;
	/* With a tap: the beginning of a frame. */
	uint8_t *part;
	size_t part_len, part_cap;
};

struct packet {
	struct list link;
	struct sock *to;
	enum packet_kind kind;
	struct vhost *from_host, *to_host;
	enum vclass class;
	uint16_t port;        /* SYN */
	struct sock *answers; /* SYN: who dialled */
	size_t len, at;
	uint8_t data[];
};

struct watch {
	struct list link; /* the loop's ready list */
	struct fdwatch *w;
	struct sock *s;
};

static struct list socks = LIST_INIT(socks);
static bool blocked[VNET_HOSTS][VNET_HOSTS][VCLASSES];
static uint64_t delay_lo = 20, delay_hi = 120, late_us;
static double late;
static int next_fd = SOCK_FIRST;
static unsigned next_port;

static struct sock *sock_find(int fd)
{
	struct sock *s;

	if (fd < SOCK_FIRST || !vproc_current())
		return NULL;
	list_for_each(s, &socks, link) if (s->fd == fd) return s;
	return NULL;
}

static void packet_free(struct packet *k);

static void sock_put(struct sock *s)
{
	struct list *n;

	if (--s->refs)
		return;
	while ((n = list_pop_front(&s->in)))
		packet_free(list_entry(n, struct packet, link));
	CHECK(list_empty(&s->held));
	list_del(&s->link);
	keep_free(s->part);
	keep_free(s);
}

static void packet_free(struct packet *k)
{
	struct sock *to = k->to, *answers = k->answers;

	keep_free(k);
	if (to)
		sock_put(to);
	if (answers)
		sock_put(answers);
}

static struct sock *sock_make(struct vproc *p, struct vhost *h)
{
	struct sock *s = keep_alloc(sizeof(*s));

	s->refs = 1; /* its fd's */
	s->fd = next_fd++;
	s->proc = p;
	s->host = h;
	s->window = draw(0, 3) ? 256 << 10 : 16 << 10;
	list_init(&s->in);
	list_init(&s->held);
	list_init(&s->backlog);
	list_init(&s->backlog_link);
	list_push_back(&socks, &s->link);
	return s;
}

/* ---- Readiness ----------------------------------------------------------------------------------
 */

static bool can_write(const struct sock *s)
{
	return s->state == SOCK_OPEN && s->unacked + (s->peer ? s->peer->in_bytes : 0) < s->window;
}

static unsigned ready_of(const struct sock *s)
{
	unsigned e = 0;

	if (s->state == SOCK_LISTENS)
		return list_empty(&s->backlog) ? 0 : FD_READ;
	if (s->error || s->state == SOCK_DEAD)
		return FD_READ | FD_WRITE;
	if (s->in_bytes || s->fin_in)
		e |= FD_READ;
	if (can_write(s))
		e |= FD_WRITE;
	return e;
}

static void sock_ready(struct sock *s)
{
	struct watch *w = s->watch;

	if (w && list_empty(&w->link) && ready_of(s) & w->w->wanted)
		loop_watch_ready(w->w->loop, &w->link);
}

void watches_run(struct list *ready)
{
	struct list now = LIST_INIT(now), *n;

	list_splice_back(&now, ready);
	while ((n = list_pop_front(&now))) {
		struct watch *w = list_entry(n, struct watch, link);
		struct sock *s = w->s;
		unsigned e = s ? ready_of(s) & w->w->wanted : 0;

		if (!e)
			continue;
		s->refs++; /* fn may close it */
		w->w->fn(w->w, e);
		sock_ready(s); /* level-triggered */
		sock_put(s);
	}
}

void fdwatch_init(struct fdwatch *w, struct loop *l, int fd, void (*fn)(struct fdwatch *, unsigned))
{
	struct watch *x = calloc(1, sizeof(*x));

	CHECK(x);
	*w = (struct fdwatch){.loop = l, .fn = fn, .fd = fd, .impl_read = x};
	list_init(&x->link);
	x->w = w;
	x->s = sock_find(fd);
	CHECK(x->s && !x->s->watch);
	x->s->watch = x;
}

void fdwatch_want(struct fdwatch *w, unsigned events)
{
	struct watch *x = w->impl_read;

	w->wanted = events;
	if (x && x->s)
		sock_ready(x->s);
}

void fdwatch_fini(struct fdwatch *w)
{
	struct watch *x = w->impl_read;

	w->wanted = 0;
	if (!x)
		return;
	list_del(&x->link);
	if (x->s)
		x->s->watch = NULL;
	w->impl_read = NULL;
	free(x);
}

/* ---- Packets ------------------------------------------------------------------------------------
 */

static void packet_arrives(void *arg);

static bool is_blocked(const struct vhost *from, const struct vhost *to, enum vclass class)
{
	return blocked[from->address][to->address][class];
}

bool vnet_blocked(const struct vhost *from, const struct vhost *to, enum vclass class)
{
	return is_blocked(from, to, class);
}

static uint64_t delay(void)
{
	return late > 0 && chance(late) ? draw(delay_lo, late_us) : draw(delay_lo, delay_hi);
}

static void packet_go(struct packet *k, uint64_t in_us)
{
	uint64_t at = simhost_now_us() + in_us;

	if (k->to) {
		at = MAX(at, k->to->arrive_at);
		k->to->arrive_at = at;
	}
	simhost_at(at - simhost_now_us(), NULL, packet_arrives, (void (*)(void *))packet_free, k);
}

static struct packet *packet_make(enum packet_kind kind, struct sock *from, struct sock *to,
				  size_t len)
{
	struct packet *k = keep_alloc(sizeof(*k) + len);

	k->kind = kind;
	k->from_host = from->host;
	k->class = from->class;
	k->len = len;
	if (to) {
		k->to = to;
		k->to_host = to->host;
		to->refs++;
	}
	return k;
}

static void send_kind(enum packet_kind kind, struct sock *from)
{
	if (from->peer && !from->peer->gone)
		packet_go(packet_make(kind, from, from->peer, 0), delay());
}

/* The kernel forgets the connection. */
static void sock_die(struct sock *s, int error)
{
	struct sock *peer = s->peer;

	if (s->gone)
		return;
	s->gone = true;
	s->state = SOCK_DEAD;
	if (!s->error)
		s->error = error;
	s->peer = NULL;
	sock_ready(s);
	if (peer)
		sock_put(peer);
}

static void rst(struct sock *s, int error)
{
	if (s->gone)
		return;
	send_kind(PACKET_RST, s);
	sock_die(s, error);
}

/* A segment of a connection that this host does not know (any more). */
static void unknown(struct packet *k)
{
	struct sock *s = k->to;

	if (k->kind == PACKET_RST || k->kind == PACKET_REFUSED || !s->host->powered)
		return;
	/* Its sender hears of it. */
	for (struct list *n = socks.next; n != &socks; n = n->next) {
		struct sock *from = list_entry(n, struct sock, link);

		if (from->peer == s && !from->gone) {
			struct packet *r = packet_make(PACKET_RST, s, from, 0);

			packet_go(r, delay());
			return;
		}
	}
}

static void keepalive(void *arg)
{
	struct sock *s = arg;

	if (!s->gone && s->peer && s->peer->gone)
		sock_die(s, ETIMEDOUT);
	sock_put(s);
}

/* The other end has ended without a word that we could hear. */
static void keepalive_start(struct sock *s)
{
	s->refs++;
	simhost_at(KEEPALIVE_US, NULL, keepalive, (void (*)(void *))sock_put, s);
}

struct silence {
	struct sock *to;
	uint64_t since;
};

static void silence_drop(void *arg)
{
	struct silence *x = arg;

	sock_put(x->to);
	keep_free(x);
}

static void silence_ends(void *arg)
{
	struct silence *x = arg;
	struct sock *to = x->to, *from = to->peer;

	if (to->held_since == x->since && from && !from->gone) {
		sock_die(from, ETIMEDOUT);
		keepalive_start(to);
	}
	silence_drop(x);
}

/* From now on something to, or from, `to` is waited for. */
static void silence_begins(struct sock *to)
{
	struct silence *x;

	if (to->held_since)
		return;
	to->held_since = simhost_now_us();
	x = keep_alloc(sizeof(*x));
	x->to = to;
	x->since = to->held_since;
	to->refs++;
	simhost_at(USER_TIMEOUT_US, NULL, silence_ends, silence_drop, x);
}

static void acknowledge(struct sock *to, size_t n)
{
	struct sock *from = to->peer;

	if (!from || from->gone)
		return;
	if (is_blocked(to->host, from->host, to->class)) {
		from->unheard += n;
		silence_begins(to);
		return;
	}
	from->unacked -= n;
	sock_ready(from);
}

static struct sock *listener_of(struct vhost *h, uint16_t port)
{
	struct sock *s;

	list_for_each(s, &socks, link) if (s->host == h && s->port == port &&
					   s->state == SOCK_LISTENS && s->proc->alive) return s;
	return NULL;
}

static void syn_arrives(struct packet *k)
{
	struct sock *d = k->answers, *ls = listener_of(k->to_host, k->port), *s;
	struct packet *a;

	if (d->gone || !k->to_host->powered)
		return;
	if (!ls) {
		a = keep_alloc(sizeof(*a));
		*a = (struct packet){.kind = PACKET_REFUSED,
				     .from_host = k->to_host,
				     .to_host = d->host,
				     .class = d->class,
				     .to = d};
		d->refs++;
		packet_go(a, delay());
		return;
	}
	s = sock_make(ls->proc, ls->host);
	s->fd = 0; /* until it is accepted */
	s->state = SOCK_OPEN;
	s->class = d->class;
	s->port = k->port;
	s->peer_host = d->host->address;
	s->peer_port = d->port;
	memcpy(s->peer_tag, d->proc->tag, sizeof(s->peer_tag));
	s->peer = d;
	d->refs++;
	d->peer = s;
	s->refs++;
	memcpy(d->peer_tag, ls->proc->tag, sizeof(d->peer_tag));
	list_push_back(&ls->backlog, &s->backlog_link);
	sock_ready(ls);
	send_kind(PACKET_SYNACK, s);
}

static void deliver(struct packet *k)
{
	struct sock *s = k->to;

	switch (k->kind) {
	case PACKET_SYN:
		syn_arrives(k);
		break;
	case PACKET_REFUSED:
		if (s->state == SOCK_DIALS)
			sock_die(s, ECONNREFUSED);
		break;
	case PACKET_SYNACK:
		if (s->state == SOCK_DIALS)
			s->state = SOCK_OPEN;
		sock_ready(s);
		break;
	case PACKET_DATA:
		if (!s->fd && list_empty(&s->backlog_link)) { /* closed here: data for nobody */
			rst(s, ECONNRESET);
			break;
		}
		acknowledge(s, k->len);
		s->in_bytes += k->len;
		list_push_back(&s->in, &k->link);
		sock_ready(s);
		return;
	case PACKET_FIN:
		s->fin_in = true;
		if (!s->fd && list_empty(&s->backlog_link))
			sock_die(s, 0);
		sock_ready(s);
		break;
	case PACKET_RST:
		sock_die(s, ECONNRESET);
		break;
	}
	packet_free(k);
}

static void packet_arrives(void *arg)
{
	struct packet *k = arg;
	struct sock *s = k->to;

	if (is_blocked(k->from_host, k->to_host, k->class)) {
		if (s && !s->gone) {
			list_push_back(&s->held, &k->link);
			silence_begins(s);
			return;
		}
		packet_free(k); /* a dial that nobody hears: it is repeated, or given up */
		return;
	}
	if (s && !list_empty(&s->held)) { /* not past what is held */
		list_push_back(&s->held, &k->link);
		return;
	}
	if (s && s->gone) {
		unknown(k);
		packet_free(k);
		return;
	}
	deliver(k);
}

static void held_drop_ref(void *arg)
{
	sock_put(arg);
}

static void held_arrive(void *arg)
{
	struct sock *s = arg;

	while (!list_empty(&s->held)) {
		struct packet *k = list_first(&s->held, struct packet, link);

		if (is_blocked(k->from_host, k->to_host, k->class))
			break;
		list_del(&k->link);
		if (s->gone) {
			unknown(k);
			packet_free(k);
		} else {
			deliver(k);
		}
	}
	sock_put(s);
}

/* They stay held until they arrive, so that what was sent after them and is on its way comes behind. */
static void held_go(struct sock *s)
{
	uint64_t since = simhost_now_us() - s->held_since;

	s->held_since = 0;
	s->refs++;
	simhost_at(draw(0, MIN(since, RETRY_MAX_US)), NULL, held_arrive, held_drop_ref, s);
}

void vnet_block(struct vhost *from, struct vhost *to, enum vclass class, bool on)
{
	struct sock *s;

	blocked[from->address][to->address][class] = on;
	if (on)
		return;
	list_for_each(s, &socks, link)
	{
		if (s->class != class)
			continue;
		if (s->host == to && s->peer && s->peer->host == from && !list_empty(&s->held))
			held_go(s);
		/* Acknowledgements that were on their way to it. */
		if (s->host == to && s->unheard && s->peer && s->peer->host == from) {
			s->unacked -= MIN(s->unacked, s->unheard);
			s->unheard = 0;
			if (list_empty(&s->peer->held))
				s->peer->held_since = 0;
			sock_ready(s);
		}
	}
}

static bool is_between(const struct sock *s, const struct vhost *a, const struct vhost *b)
{
	return !s->gone && s->peer &&
	       ((s->host == a && s->peer->host == b) || (s->host == b && s->peer->host == a));
}

void vnet_reset(struct vhost *a, struct vhost *b)
{
	struct sock *s, *peer;
again:
	list_for_each(s, &socks, link)
	{
		if (!is_between(s, a, b))
			continue;
		peer = s->peer;
		s->refs++;
		peer->refs++;
		sock_die(s, ECONNRESET);
		sock_die(peer, ECONNRESET);
		sock_put(peer);
		sock_put(s);
		goto again; /* either may have left the list */
	}
}

void vnet_set_delay(uint64_t lo_us, uint64_t hi_us, double chance_late, uint64_t upto_us)
{
	delay_lo = lo_us;
	delay_hi = hi_us;
	late = chance_late;
	late_us = upto_us;
}

/* ---- Ends ---------------------------------------------------------------------------------------
 */

static void held_drop(struct sock *s)
{
	struct list *n;

	while ((n = list_pop_front(&s->held)))
		packet_free(list_entry(n, struct packet, link));
}

/* The owner lets go of it: close, or its death. */
static void sock_close(struct sock *s)
{
	struct list *n;

	s->fd = 0;
	if (s->watch) {
		s->watch->s = NULL;
		s->watch = NULL;
	}
	if (s->state == SOCK_LISTENS) {
		while ((n = list_pop_front(&s->backlog))) {
			struct sock *b = list_entry(n, struct sock, backlog_link);

			rst(b, ECONNRESET);
			held_drop(b);
			sock_put(b);
		}
		s->state = SOCK_DEAD;
		s->gone = true;
	} else if (!s->gone && s->in_bytes) {
		rst(s, ECONNRESET); /* unread bytes: a reset, as Linux does */
	} else if (!s->gone && s->state == SOCK_OPEN) {
		if (!s->fin_out)
			send_kind(PACKET_FIN, s);
		s->fin_out = true;
		if (s->fin_in)
			sock_die(s, 0);
	} else if (!s->gone && s->state != SOCK_OPEN) {
		sock_die(s, 0);
	}
	held_drop(s);
	sock_put(s);
}

void sockets_process_died(struct vproc *p)
{
	struct sock *s, *tmp;

	list_for_each_safe(s, tmp, &socks, link)
	{
		if (s->proc != p)
			continue;
		s->watch = NULL; /* its memory is going */
	}
	/* Closing changes the list: from the beginning after each. */
again:
	list_for_each(s, &socks, link) if (s->proc == p && s->fd)
	{
		sock_close(s);
		goto again;
	}
}

/* No word of it gets out. */
void sockets_power_cut(struct vhost *h)
{
	struct sock *s;

	h->powered = false;
	list_for_each(s, &socks, link)
	{
		if (s->host != h || s->gone)
			continue;
		s->watch = NULL;
		if (s->peer && !s->peer->gone)
			keepalive_start(s->peer);
		s->gone = true;
		s->state = s->state == SOCK_LISTENS ? s->state : SOCK_DEAD;
	}
}

/* There are no processes and no events any more. */
void sockets_forget(void)
{
	struct list *n, *m;

	while ((n = list_pop_front(&socks))) {
		struct sock *s = list_entry(n, struct sock, link);

		list_splice_back(&s->in, &s->held);
		while ((m = list_pop_front(&s->in)))
			keep_free(list_entry(m, struct packet, link));
		keep_free(s->part);
		keep_free(s);
	}
	memset(blocked, 0, sizeof(blocked));
	delay_lo = 20;
	delay_hi = 120;
	late = 0;
	next_fd = SOCK_FIRST;
	next_port = 0;
}

void vhost_set_address(struct vhost *h, unsigned number)
{
	CHECK(number < VNET_HOSTS);
	h->address = number;
}

void vproc_set_tag(struct vproc *p, const char *tag)
{
	strncpy(p->tag, tag, sizeof(p->tag) - 1);
}

void vproc_set_tap(struct vproc *p, const struct vnet_tap *tap)
{
	p->tap = tap;
}

const char *vsock_peer_tag(int fd)
{
	struct sock *s = sock_find(fd);

	return s ? s->peer_tag : "";
}

/* ---- Calls --------------------------------------------------------------------------------------
 */

static int fail(int code)
{
	errno = code;
	return -1;
}

static bool address_is_ours(const struct sockaddr *a)
{
	return a->sa_family == AF_INET;
}

int __wrap_socket(int domain, int type, int protocol)
{
	if (!fiber_current() || domain != AF_INET)
		return __real_socket(domain, type, protocol);
	return sock_make(vproc_current(), vproc_current()->host)->fd;
}

int __wrap_bind(int fd, const struct sockaddr *a, socklen_t len)
{
	struct sock *s = sock_find(fd);
	uint16_t port;

	if (!s)
		return __real_bind(fd, a, len);
	CHECK(address_is_ours(a));
	port = ntohs(((const struct sockaddr_in *)a)->sin_port);
	if (listener_of(s->host, port))
		return fail(EADDRINUSE);
	s->port = port;
	return 0;
}

int __wrap_listen(int fd, int backlog)
{
	struct sock *s = sock_find(fd);

	if (!s)
		return __real_listen(fd, backlog);
	s->state = SOCK_LISTENS;
	return 0;
}

int __wrap_accept4(int fd, struct sockaddr *a, socklen_t *len, int flags)
{
	struct sock *ls = sock_find(fd), *s;

	if (!ls)
		return __real_accept4(fd, a, len, flags);
	if (list_empty(&ls->backlog))
		return fail(EAGAIN);
	s = list_entry(list_pop_front(&ls->backlog), struct sock, backlog_link);
	list_init(&s->backlog_link);
	s->fd = next_fd++;
	return s->fd;
}

int __wrap_connect(int fd, const struct sockaddr *a, socklen_t len)
{
	struct sock *s = sock_find(fd);
	const struct sockaddr_in *in = (const struct sockaddr_in *)a;
	struct vhost *to;
	struct packet *k;

	if (!s)
		return __real_connect(fd, a, len);
	s->peer_host = ntohl(in->sin_addr.s_addr) & 255;
	s->peer_port = ntohs(in->sin_port);
	to = vhost_by_address(s->peer_host);
	s->state = SOCK_DIALS;
	s->port = (uint16_t)(20000 + next_port++ % 20000);
	if (!to)
		return fail(ENETUNREACH);
	k = packet_make(PACKET_SYN, s, NULL, 0);
	k->to_host = to;
	k->port = s->peer_port;
	k->answers = s;
	s->refs++;
	packet_go(k, delay());
	return fail(EINPROGRESS);
}

static ssize_t take(struct sock *s, void *p, size_t n)
{
	size_t done = 0;

	if (n > 1 && chance(0.05))
		n = draw(1, n);
	while (n && !list_empty(&s->in)) {
		struct packet *k = list_first(&s->in, struct packet, link);
		size_t part = MIN(n, k->len - k->at);

		memcpy((uint8_t *)p + done, k->data + k->at, part);
		k->at += part;
		done += part;
		n -= part;
		if (k->at == k->len) {
			list_del(&k->link);
			packet_free(k);
		}
	}
	s->in_bytes -= done;
	sock_ready(s);
	if (s->peer && !s->peer->gone)
		sock_ready(s->peer);
	return (ssize_t)done;
}

ssize_t __wrap_recv(int fd, void *p, size_t n, int flags)
{
	struct sock *s = sock_find(fd);

	if (!s)
		return __real_recv(fd, p, n, flags);
	if (s->in_bytes)
		return take(s, p, n);
	if (s->error) {
		int e = s->error;

		s->error = 0;
		return fail(e);
	}
	if (s->fin_in || s->state == SOCK_DEAD)
		return 0;
	return fail(EAGAIN);
}

ssize_t __wrap_readv(int fd, const struct iovec *iov, int n)
{
	if (!sock_find(fd))
		return __real_readv(fd, iov, n);
	for (int i = 0; i < n; i++)
		if (iov[i].iov_len)
			return __wrap_recv(fd, iov[i].iov_base, iov[i].iov_len, 0);
	return 0;
}

static bool is_tapped(const struct sock *s)
{
	return s->proc->tap && s->class == VCLASS_DATA;
}

static void bytes_go(struct sock *s, const uint8_t *p, size_t n)
{
	struct packet *k;

	if (!s->peer || !n)
		return;
	s->unacked += n;
	k = packet_make(PACKET_DATA, s, s->peer, n);
	memcpy(k->data, p, n);
	packet_go(k, delay());
}

/* Whole frames leave, the rest waits for its end. */
static void tapped_go(struct sock *s, const uint8_t *p, size_t n)
{
	const struct vnet_tap *tap = s->proc->tap;
	size_t at = 0, len;

	if (s->part_len + n > s->part_cap) {
		uint8_t *more;

		s->part_cap = 2 * (s->part_len + n);
		more = keep_alloc(s->part_cap);
		if (s->part_len)
			memcpy(more, s->part, s->part_len);
		keep_free(s->part);
		s->part = more;
	}
	memcpy(s->part + s->part_len, p, n);
	s->part_len += n;
	while ((len = tap->parse(s->part + at, s->part_len - at)) && len <= s->part_len - at) {
		bytes_go(s, s->part + at, len);
		tap->frame(tap->arg, s->fd, s->part + at, len);
		at += len;
	}
	memmove(s->part, s->part + at, s->part_len - at);
	s->part_len -= at;
}

bool vnet_inject(struct vproc *p, int sock, const uint8_t *frame, size_t n)
{
	struct sock *s;

	list_for_each(s, &socks,
		      link) if (s->proc == p &&
				(sock ? s->fd == sock : s->fd && s->class == VCLASS_DATA) &&
				s->state == SOCK_OPEN && s->peer && !s->part_len)
	{
		bytes_go(s, frame, n);
		return true;
	}
	return false;
}

ssize_t __wrap_sendmsg(int fd, const struct msghdr *m, int flags)
{
	struct sock *s = sock_find(fd);
	size_t total = 0, room, at = 0;
	uint8_t *bytes;

	if (!s)
		return __real_sendmsg(fd, m, flags);
	if (s->error || s->gone || s->fin_out) {
		int e = s->error ? s->error : EPIPE;

		s->error = 0;
		return fail(e);
	}
	if (!can_write(s))
		return fail(EAGAIN);
	room = s->window - s->unacked - (s->peer ? s->peer->in_bytes : 0);
	if (is_tapped(s)) /* what waits for its end takes no room: it shall not come in bits of a few bytes */
		room = MAX(room, TAPPED_MIN);
	for (size_t i = 0; i < m->msg_iovlen; i++)
		total += m->msg_iov[i].iov_len;
	total = MIN(total, room);
	if (total > 1 && chance(0.02))
		total = draw(1, total);
	bytes = keep_alloc(total);
	for (size_t i = 0; at < total; i++) {
		size_t n = MIN(m->msg_iov[i].iov_len, total - at);

		memcpy(bytes + at, m->msg_iov[i].iov_base, n);
		at += n;
	}
	if (is_tapped(s))
		tapped_go(s, bytes, total);
	else
		bytes_go(s, bytes, total);
	keep_free(bytes);
	return (ssize_t)total;
}

int __wrap_shutdown(int fd, int how)
{
	struct sock *s = sock_find(fd);

	if (!s)
		return __real_shutdown(fd, how);
	if (!s->gone && !s->fin_out) {
		s->fin_out = true;
		send_kind(PACKET_FIN, s);
	}
	return 0;
}

int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *len)
{
	struct sock *s = sock_find(fd);

	if (!s)
		return __real_getsockopt(fd, level, name, value, len);
	CHECK(level == SOL_SOCKET && name == SO_ERROR);
	*(int *)value = s->error;
	s->error = 0;
	return 0;
}

int __wrap_setsockopt(int fd, int level, int name, const void *value, socklen_t len)
{
	struct sock *s = sock_find(fd);

	if (!s)
		return __real_setsockopt(fd, level, name, value, len);
	if (level == IPPROTO_IP && name == IP_TOS && s->state == SOCK_NEW)
		s->class = *(const int *)value == IPTOS_CLASS_CS4 ? VCLASS_DATA : VCLASS_CONTROL;
	return 0;
}

static int name_of(struct sockaddr *a, socklen_t *len, unsigned host, uint16_t port)
{
	struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons(port)};

	in.sin_addr.s_addr = htonl(0x0a000000u | host);
	memcpy(a, &in, MIN(*len, sizeof(in)));
	*len = sizeof(in);
	return 0;
}

int __wrap_getpeername(int fd, struct sockaddr *a, socklen_t *len)
{
	struct sock *s = sock_find(fd);

	return s ? name_of(a, len, s->peer_host, s->peer_port) : __real_getpeername(fd, a, len);
}

int __wrap_getsockname(int fd, struct sockaddr *a, socklen_t *len)
{
	struct sock *s = sock_find(fd);

	return s ? name_of(a, len, s->host->address, s->port) : __real_getsockname(fd, a, len);
}

bool vsock_close(int fd)
{
	struct sock *s = sock_find(fd);

	if (!s)
		return false;
	sock_close(s);
	return true;
}
