/* SPDX-License-Identifier: Apache-2.0 */
#include "node/base/bytes.h"

#include <stdlib.h>

void read_str(struct reader *r, char *out, size_t cap)
{
	size_t n = read_u16(r);
	const char *p = read_bytes(r, n);

	out[0] = 0;
	if (!p)
		return;
	if (n >= cap || memchr(p, 0, n)) {
		r->bad = true;
		return;
	}
	memcpy(out, p, n);
	out[n] = 0;
}

void writer_free(struct writer *w)
{
	CHECK(w->grows);
	free(w->data);
	*w = writer_init_heap();
}

uint8_t *write_space(struct writer *w, size_t n)
{
	uint8_t *p;

	if (w->bad)
		return NULL;
	if (n > w->cap - w->len) {
		if (!w->grows) {
			w->bad = true;
			return NULL;
		}
		w->cap = MAX(w->cap * 2, w->len + n + 256);
		w->data = xrealloc(w->data, w->cap);
	}
	p = w->data + w->len;
	w->len += n;
	return p;
}

void write_str(struct writer *w, const char *s)
{
	size_t n = strlen(s);

	if (n > UINT16_MAX) {
		w->bad = true;
		return;
	}
	write_u16(w, (uint16_t)n);
	write_bytes(w, s, n);
}
