/* SPDX-License-Identifier: Apache-2.0 */
/* Negotiation: fixed newstyle, one option at a time, from bytes to bytes. Whatever the client
 * sends, the stream stays in step: an option's data is consumed whole before it is answered. The
 * only ends are transmission, TLS, ABORT, and the cases where the protocol knows no error reply. */
#include "client/nbd_proto.h"

static void out_be16(struct writer *w, uint16_t v)
{
	uint8_t b[2];

	put_be16(b, v);
	write_bytes(w, b, 2);
}

static void out_be32(struct writer *w, uint32_t v)
{
	uint8_t b[4];

	put_be32(b, v);
	write_bytes(w, b, 4);
}

static void out_be64(struct writer *w, uint64_t v)
{
	uint8_t b[8];

	put_be64(b, v);
	write_bytes(w, b, 8);
}

static uint16_t in_be16(struct reader *r)
{
	const void *p = read_bytes(r, 2);

	return p ? get_be16(p) : 0;
}

static uint32_t in_be32(struct reader *r)
{
	const void *p = read_bytes(r, 4);

	return p ? get_be32(p) : 0;
}

void nbd_greeting(struct writer *out)
{
	out_be64(out, NBD_MAGIC);
	out_be64(out, NBD_OPTION_MAGIC);
	out_be16(out, NBD_FIXED_NEWSTYLE | NBD_NO_ZEROES);
}

uint16_t nbd_export_flags(bool structured)
{
	/* Zeroes are one log record without payload, never slower than a write: fast. A reply means
	 * durable on every in-sync replica, whichever connection or gateway it came through. */
	return NBD_FLAG_HAS_FLAGS | NBD_FLAG_SEND_FLUSH | NBD_FLAG_SEND_FUA | NBD_FLAG_SEND_TRIM |
	       NBD_FLAG_SEND_WRITE_ZEROES | NBD_FLAG_CAN_MULTI_CONN | NBD_FLAG_SEND_CACHE |
	       NBD_FLAG_SEND_FAST_ZERO | (structured ? NBD_FLAG_SEND_DF : 0);
}

static void reply_head(struct writer *out, uint32_t option, uint32_t type, uint32_t length)
{
	out_be64(out, NBD_OPTION_REPLY_MAGIC);
	out_be32(out, option);
	out_be32(out, type);
	out_be32(out, length);
}

static enum nbd_step reply_ack(struct writer *out, uint32_t option)
{
	reply_head(out, option, NBD_REP_ACK, 0);
	return NBD_STEP_NEXT;
}

static enum nbd_step reply_error(struct writer *out, uint32_t option, uint32_t type,
				 const char *text)
{
	size_t n = strlen(text);

	reply_head(out, option, type, (uint32_t)n);
	write_bytes(out, text, n);
	return NBD_STEP_NEXT;
}

/* A name of at most NBD_NAME_MAX bytes without NUL, into `out` cut to what any of our names may
 * have: a longer one cannot be found anyway, so it becomes one that no export has. */
static bool take_name(struct reader *r, uint32_t length, char out[NBD_EXPORT_MAX + 1])
{
	const char *p;

	if (length > NBD_NAME_MAX)
		return false;
	p = read_bytes(r, length);
	if (!p || memchr(p, 0, length))
		return false;
	if (length > NBD_EXPORT_MAX) {
		memcpy(out, "\n", 2);
		return true;
	}
	memcpy(out, p, length);
	out[length] = 0;
	return true;
}

/* ---- LIST ---- */

struct list_ctx {
	struct writer *out;
};

static void list_one(void *arg, const char *name)
{
	struct list_ctx *c = arg;
	uint32_t n = (uint32_t)strlen(name);

	reply_head(c->out, NBD_OPT_LIST, NBD_REP_SERVER, 4 + n);
	out_be32(c->out, n);
	write_bytes(c->out, name, n);
}

static enum nbd_step option_list(struct nbd_negotiation *n, uint32_t length, struct writer *out)
{
	struct list_ctx c = {.out = out};

	if (length)
		return reply_error(out, NBD_OPT_LIST, NBD_REP_ERR_INVALID, "LIST takes no data");
	n->exports->list(n->ctx, list_one, &c);
	return reply_ack(out, NBD_OPT_LIST);
}

/* ---- EXPORT_NAME, INFO, GO ---- */

static enum nbd_step option_export_name(struct nbd_negotiation *n, struct reader *r,
					struct writer *out)
{
	char name[NBD_EXPORT_MAX + 1];
	enum nbd_found found;

	/* There is no error reply to this one. */
	if (!take_name(r, (uint32_t)reader_left(r), name))
		return NBD_STEP_CLOSE;
	found = n->exports->find(n->ctx, name, &n->export);
	if (found != NBD_FOUND)
		return found == NBD_FOUND_LATER ? NBD_STEP_LATER : NBD_STEP_CLOSE;
	out_be64(out, n->export.size);
	out_be16(out, nbd_export_flags(n->structured));
	if (!n->no_zeroes) {
		uint8_t *z = write_space(out, 124);

		if (z)
			memset(z, 0, 124);
	}
	n->meta_allocation = n->meta_allocation && !strcmp(n->meta_export, n->export.name);
	return NBD_STEP_GO;
}

static enum nbd_step option_info(struct nbd_negotiation *n, uint32_t option, struct reader *r,
				 struct writer *out)
{
	struct nbd_export e;
	bool want_name = false;
	enum nbd_found found;
	char name[NBD_EXPORT_MAX + 1];
	unsigned count;

	if (!take_name(r, in_be32(r), name))
		return reply_error(out, option, NBD_REP_ERR_INVALID, "bad export name");
	count = in_be16(r);
	for (unsigned i = 0; i < count && !r->bad; i++)
		want_name |= in_be16(r) == NBD_INFO_NAME; /* unknown ones are ignored */
	if (!reader_done(r))
		return reply_error(out, option, NBD_REP_ERR_INVALID, "bad information requests");
	found = n->exports->find(n->ctx, name, &e);
	if (found == NBD_FOUND_LATER)
		return NBD_STEP_LATER;
	if (found == NBD_FOUND_NOT)
		return reply_error(out, option, NBD_REP_ERR_UNKNOWN, "no volume of this name");
	reply_head(out, option, NBD_REP_INFO, 12);
	out_be16(out, NBD_INFO_EXPORT);
	out_be64(out, e.size);
	out_be16(out, nbd_export_flags(n->structured));
	reply_head(out, option, NBD_REP_INFO, 14);
	out_be16(out, NBD_INFO_BLOCK_SIZE);
	out_be32(out, NBD_BLOCK_MIN);
	out_be32(out, NBD_BLOCK_PREFERRED);
	out_be32(out, NBD_PAYLOAD_MAX);
	if (want_name) {
		uint32_t len = (uint32_t)strlen(e.name);

		reply_head(out, option, NBD_REP_INFO, 2 + len);
		out_be16(out, NBD_INFO_NAME);
		write_bytes(out, e.name, len);
	}
	reply_ack(out, option);
	if (option == NBD_OPT_INFO)
		return NBD_STEP_NEXT;
	n->export = e;
	n->meta_allocation = n->meta_allocation && !strcmp(n->meta_export, e.name);
	return NBD_STEP_GO;
}

/* ---- Meta contexts ---- */

static void reply_context(struct writer *out, uint32_t option, uint32_t id)
{
	static const char name[] = "base:allocation";

	reply_head(out, option, NBD_REP_META_CONTEXT, 4 + sizeof(name) - 1);
	out_be32(out, id);
	write_bytes(out, name, sizeof(name) - 1);
}

static bool query_is(const void *q, uint32_t len, const char *name)
{
	return len == strlen(name) && !memcmp(q, name, len);
}

static enum nbd_step option_meta(struct nbd_negotiation *n, uint32_t option, struct reader *r,
				 struct writer *out)
{
	bool set = option == NBD_OPT_SET_META_CONTEXT, match;
	struct nbd_export e;
	enum nbd_found found;
	char name[NBD_EXPORT_MAX + 1];
	uint32_t count;

	if (set) /* an earlier choice ends here, even when this one fails */
		n->meta_allocation = false;
	if (!n->structured)
		return reply_error(out, option, NBD_REP_ERR_INVALID,
				   "negotiate structured replies first");
	if (!take_name(r, in_be32(r), name))
		return reply_error(out, option, NBD_REP_ERR_INVALID, "bad export name");
	count = in_be32(r);
	match = !set && count == 0;
	for (uint32_t i = 0; i < count && !r->bad; i++) {
		uint32_t len = in_be32(r);
		const void *q = len <= NBD_NAME_MAX ? read_bytes(r, len) : NULL;

		if (!q) {
			r->bad = true;
			break;
		}
		match |= query_is(q, len, "base:allocation") || (!set && query_is(q, len, "base:"));
	}
	if (!reader_done(r))
		return reply_error(out, option, NBD_REP_ERR_INVALID, "bad context queries");
	found = n->exports->find(n->ctx, name, &e);
	if (found == NBD_FOUND_LATER)
		return NBD_STEP_LATER;
	if (found == NBD_FOUND_NOT)
		return reply_error(out, option, NBD_REP_ERR_UNKNOWN, "no volume of this name");
	if (match)
		reply_context(out, option, set ? NBD_CONTEXT_ALLOCATION : 0);
	if (match && set) {
		n->meta_allocation = true;
		memcpy(n->meta_export, e.name, sizeof(n->meta_export));
	}
	return reply_ack(out, option);
}

/* ---- TLS and the rest ---- */

static enum nbd_step option_starttls(struct nbd_negotiation *n, uint32_t length, struct writer *out)
{
	if (length)
		return reply_error(out, NBD_OPT_STARTTLS, NBD_REP_ERR_INVALID,
				   "STARTTLS takes no data");
	if (n->tls_on)
		return reply_error(out, NBD_OPT_STARTTLS, NBD_REP_ERR_INVALID, "TLS is on already");
	if (!n->tls_offered)
		return reply_error(out, NBD_OPT_STARTTLS, NBD_REP_ERR_POLICY,
				   "no TLS on this socket");
	reply_ack(out, NBD_OPT_STARTTLS);
	return NBD_STEP_TLS;
}

void nbd_negotiate_tls_started(struct nbd_negotiation *n)
{
	n->tls_on = true;
	n->structured = false;
	n->meta_allocation = false;
}

static enum nbd_step option_structured(struct nbd_negotiation *n, uint32_t length,
				       struct writer *out)
{
	if (length)
		return reply_error(out, NBD_OPT_STRUCTURED_REPLY, NBD_REP_ERR_INVALID,
				   "STRUCTURED_REPLY takes no data");
	n->structured = true;
	return reply_ack(out, NBD_OPT_STRUCTURED_REPLY);
}

static enum nbd_step option_run(struct nbd_negotiation *n, uint32_t option, const uint8_t *data,
				uint32_t length, struct writer *out)
{
	struct reader r = reader_init(data, length);

	if (n->tls_required && !n->tls_on && option != NBD_OPT_STARTTLS &&
	    option != NBD_OPT_ABORT) {
		if (option == NBD_OPT_EXPORT_NAME)
			return NBD_STEP_CLOSE;
		return reply_error(out, option, NBD_REP_ERR_TLS_REQD,
				   "this server speaks TLS only");
	}
	switch (option) {
	case NBD_OPT_EXPORT_NAME:
		return option_export_name(n, &r, out);
	case NBD_OPT_ABORT:
		reply_ack(out, option);
		return NBD_STEP_CLOSE;
	case NBD_OPT_LIST:
		return option_list(n, length, out);
	case NBD_OPT_STARTTLS:
		return option_starttls(n, length, out);
	case NBD_OPT_INFO:
	case NBD_OPT_GO:
		return option_info(n, option, &r, out);
	case NBD_OPT_STRUCTURED_REPLY:
		return option_structured(n, length, out);
	case NBD_OPT_LIST_META_CONTEXT:
	case NBD_OPT_SET_META_CONTEXT:
		return option_meta(n, option, &r, out);
	default:
		return reply_error(out, option, NBD_REP_ERR_UNSUP, "unknown option");
	}
}

static enum nbd_step skip_step(struct nbd_negotiation *n, size_t len, size_t *used,
			       struct writer *out)
{
	*used = MIN(len, n->skip);
	n->skip -= (uint32_t)*used;
	if (n->skip)
		return NBD_STEP_MORE;
	return reply_error(out, n->skip_option, NBD_REP_ERR_TOO_BIG, "option too long");
}

enum nbd_step nbd_negotiate(struct nbd_negotiation *n, const uint8_t *data, size_t len,
			    size_t *used, struct writer *out)
{
	uint32_t option, length, flags;
	enum nbd_step step;

	*used = 0;
	if (!n->greeted) {
		if (len < 4)
			return NBD_STEP_MORE;
		flags = get_be32(data);
		*used = 4;
		/* A client that is not fixed-newstyle could not understand our error replies. */
		if ((flags & ~(uint32_t)(NBD_FIXED_NEWSTYLE | NBD_NO_ZEROES)) ||
		    !(flags & NBD_FIXED_NEWSTYLE))
			return NBD_STEP_CLOSE;
		n->no_zeroes = flags & NBD_NO_ZEROES;
		n->greeted = true;
		return NBD_STEP_NEXT;
	}
	if (n->skip)
		return skip_step(n, len, used, out);
	if (len < NBD_OPTION_HEADER)
		return NBD_STEP_MORE;
	if (get_be64(data) != NBD_OPTION_MAGIC) {
		*used = len;
		return NBD_STEP_CLOSE;
	}
	option = get_be32(data + 8);
	length = get_be32(data + 12);
	if (length > NBD_OPTION_SKIP_MAX ||
	    (length > NBD_OPTION_MAX && option == NBD_OPT_EXPORT_NAME))
		return NBD_STEP_CLOSE;
	if (length > NBD_OPTION_MAX) {
		*used = NBD_OPTION_HEADER;
		n->skip = length;
		n->skip_option = option;
		if (option == NBD_OPT_SET_META_CONTEXT)
			n->meta_allocation = false;
		return NBD_STEP_NEXT;
	}
	if (len < NBD_OPTION_HEADER + length)
		return NBD_STEP_MORE;
	step = option_run(n, option, data + NBD_OPTION_HEADER, length, out);
	*used = step == NBD_STEP_LATER ? 0 : NBD_OPTION_HEADER + length;
	return step;
}
