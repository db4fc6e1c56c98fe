/* SPDX-License-Identifier: Apache-2.0 */
/* Arbitrary bytes as a command, applied to a small state. What can be decoded must survive a round
 * trip, and its application must leave a state that restores. */
#include "tests/state/state_kit.h"

#include <stdarg.h>

/* The test library brings a main of its own; the kit needs only this of it. */
void test_failed(const char *file, int line, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	fprintf(stderr, "%s:%d: ", file, line);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	static struct kit k;
	static struct command c;
	static struct command_result out;
	struct reader r = reader_init(data, len);
	struct writer w = writer_init_heap();
	struct state *s = state_create();
	void *arena = NULL;

	if (!k.s) {
		kit_init(&k, 3);
		EXPECT_OK(kit_volume(&k, "v", 1 << 30, 2));
		EXPECT_OK(kit_attach(&k, 1, ATTACH_EXCLUSIVE, "h", false));
	}
	if (!command_decode(&r, &c, &arena)) {
		command_encode(&c, &w);
		EXPECT_EQ(w.len, len);
	}
	free(arena);
	writer_free(&w);
	state_snapshot(k.s, &w);
	EXPECT_OK(state_restore(s, w.data, w.len));
	state_apply(s, k.index + 1, data, len, &out, NULL, NULL);
	w.len = 0;
	state_snapshot(s, &w);
	EXPECT_OK(state_restore(s, w.data, w.len));
	writer_free(&w);
	state_destroy(s);
	r = reader_init(data, len);
	(void)!command_result_decode(&r, &out);
	return 0;
}
