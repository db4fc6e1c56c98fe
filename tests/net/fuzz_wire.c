/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes what reads bytes from the wire: the frame parser on a stream, and the decoders of hello,
 * refusal and client I/O. Whatever a decoder accepts must encode to the same bytes again. */
#include <stdlib.h>
#include <string.h>

#include "net/io_msg.h"
#include "net/wire.h"
#include "node/base/err.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void same(const struct writer *w, const uint8_t *data, size_t size)
{
	CHECK(!w->bad && w->len == size && !memcmp(w->data, data, size));
}

/* As a connection reads it: frame after frame; payloads are skipped. With `mend` checksums are made
 * right first, so that the walk gets past the first frame. */
static void stream(const uint8_t *data, size_t size, bool mend)
{
	uint8_t *copy = malloc(size ? size : 1);
	size_t at = 0;

	memcpy(copy, data, size);
	while (at < size) {
		struct wire_header h;
		int rc = wire_frame_parse(copy + at, size - at, &h);

		if (mend && rc == -ERR_PROTOCOL && size - at >= WIRE_HEADER_SIZE &&
		    !wire_header_decode(copy + at, &h)) {
			wire_header_encode(&h, copy + at + WIRE_HEADER_SIZE, copy + at);
			rc = wire_frame_parse(copy + at, size - at, &h);
			CHECK(rc == 0);
		}
		if (rc)
			break;
		CHECK(h.body_len <= size - at - WIRE_HEADER_SIZE);
		at += WIRE_HEADER_SIZE + h.body_len + h.payload_len;
	}
	free(copy);
}

static void hello(const uint8_t *data, size_t size)
{
	struct reader r = reader_init(data, size);
	struct wire_hello h;
	uint8_t out[WIRE_HELLO_SIZE];
	struct writer w = writer_init(out, sizeof(out));

	if (wire_hello_decode(&r, &h))
		return;
	wire_hello_encode(&h, &w);
	if (h.version_max == WIRE_PROTOCOL)
		same(&w, data, size);
}

static void refusal(const uint8_t *data, size_t size)
{
	struct reader r = reader_init(data, size);
	struct wire_refusal f;
	uint8_t out[512];
	struct writer w = writer_init(out, sizeof(out));

	if (wire_refusal_decode(&r, &f))
		return;
	CHECK(memchr(f.text, 0, sizeof(f.text)) && !strpbrk(f.text, "\"\n\\"));
	wire_refusal_encode(&f, &w);
	CHECK(!w.bad && w.len == size); /* the text itself was made harmless */
}

static void request(const uint8_t *data, size_t size)
{
	static struct io_request q;
	static uint8_t out[8192];
	struct reader r = reader_init(data, size);
	struct writer w = writer_init(out, sizeof(out));
	uint32_t payload_len = size > 36 && data[0] == IO_WRITE ? get_le32(data + 32) : 0;

	if (io_request_decode(&r, payload_len, &q))
		return;
	io_request_encode(&q, &w);
	same(&w, data, size);
}

static void reply(const uint8_t *data, size_t size)
{
	static struct io_reply a;
	static uint8_t out[8192];
	struct writer w = writer_init(out, sizeof(out));
	struct reader r;
	enum io_kind kind;
	uint32_t offset, length;

	if (size < 10)
		return;
	kind = data[0] % 6;
	offset = get_le32(data + 1);
	length = get_le32(data + 5);
	data += 9;
	size -= 9;
	r = reader_init(data, size);
	if (io_reply_decode(&r, kind, offset, length, kind == IO_READ && !data[0] ? length : 0, &a))
		return;
	io_reply_encode(&a, kind, &w);
	same(&w, data, size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (!size)
		return 0;
	switch (data[0] % 6) {
	case 0:
		stream(data + 1, size - 1, false);
		break;
	case 1:
		stream(data + 1, size - 1, true);
		break;
	case 2:
		hello(data + 1, size - 1);
		break;
	case 3:
		refusal(data + 1, size - 1);
		break;
	case 4:
		request(data + 1, size - 1);
		break;
	case 5:
		reply(data + 1, size - 1);
		break;
	}
	return 0;
}
