/* SPDX-License-Identifier: Apache-2.0 */
/* Negotiation over arbitrary bytes: it always makes progress or ends, consumes no more than it was
 * given, and answers a bounded amount. First byte: what the server offers. */
#include <stdlib.h>

#include "client/nbd_proto.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static enum nbd_found find(void *ctx, const char *name, struct nbd_export *out)
{
	unsigned *asked = ctx;

	CHECK(strlen(name) < sizeof(out->name));
	if (strcmp(name, "disk") && strcmp(name, ""))
		return ++*asked % 3 ? NBD_FOUND_LATER : NBD_FOUND_NOT;
	strcpy(out->name, "disk");
	out->size = 1 << 20;
	return NBD_FOUND;
}

static void list(void *ctx, void (*fn)(void *arg, const char *name), void *arg)
{
	fn(arg, "disk");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const struct nbd_exports exports = {.find = find, .list = list};
	unsigned asked = 0;
	struct nbd_negotiation n = {.exports = &exports, .ctx = &asked};
	struct writer out = writer_init_heap();
	enum nbd_step step = NBD_STEP_NEXT;
	size_t at = 1, window = 0;

	if (size < 2)
		return 0;
	n.tls_offered = data[0] & 1;
	n.tls_required = data[0] & 2;
	while (step != NBD_STEP_CLOSE && step != NBD_STEP_GO && at < size) {
		size_t len = size - at, used;
		/* An exact copy, so that reading past the end is seen. */
		uint8_t *copy;

		/* Bytes come in pieces: the window grows until a step is made. */
		window = MIN(window + 1 + data[0] / 4u, len);
		copy = malloc(window);
		memcpy(copy, data + at, window);
		step = nbd_negotiate(&n, copy, window, &used, &out);
		free(copy);
		CHECK(used <= window);
		CHECK(!out.bad && out.len <= 600);
		out.len = 0;
		at += used;
		if (step == NBD_STEP_MORE) {
			CHECK(window < NBD_OPTION_HEADER + NBD_OPTION_MAX || n.skip);
			if (window == len)
				break;
			if (used)
				window = 0;
		} else {
			CHECK(used > 0 || step == NBD_STEP_CLOSE || step == NBD_STEP_LATER);
			CHECK(used == 0 || step != NBD_STEP_LATER);
			window = 0;
		}
		if (step == NBD_STEP_TLS)
			nbd_negotiate_tls_started(&n);
	}
	if (step == NBD_STEP_GO)
		CHECK(!strcmp(n.export.name, "disk") && (!n.meta_allocation || n.structured));
	CHECK(!n.tls_required || n.tls_on || step != NBD_STEP_GO);
	writer_free(&out);
	return 0;
}
