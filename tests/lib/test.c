/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/test.h"

#include <ctype.h>
#include <ftw.h>
#include <stdarg.h>
#include <time.h>
#include <unistd.h>

#define TESTS_MAX 1024

static struct {
	const char *name;
	void (*fn)(void);
} tests[TESTS_MAX];
static unsigned test_count;
static char dir_made[4096];

void test_register(const char *name, void (*fn)(void))
{
	CHECK(test_count < TESTS_MAX);
	tests[test_count].name = name;
	tests[test_count++].fn = fn;
}

void test_failed(const char *file, int line, const char *fmt, ...)
{
	va_list ap;

	fprintf(stderr, "\n%s:%d: ", file, line);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
	if (dir_made[0])
		fprintf(stderr, "files kept in %s\n", dir_made);
	fflush(NULL);
	abort();
}

void test_pause(const char *file, int line, unsigned times, const char *what)
{
	if (times == 60000)
		test_failed(file, line, "waited too long until: %s", what);
	nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

void test_expect_mem(const char *file, int line, const char *what, const void *got, const void *want,
		     size_t n)
{
	const uint8_t *g = got, *w = want;

	if (!n || !memcmp(got, want, n))
		return;
	for (size_t i = 0; i < n; i++)
		if (g[i] != w[i])
			test_failed(file, line, "%s differs at byte %zu of %zu: %02x, expected %02x",
				    what, i, n, g[i], w[i]);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	return remove(path);
}

const char *test_dir(void)
{
	const char *base = getenv("TMPDIR");

	if (!dir_made[0]) {
		snprintf(dir_made, sizeof(dir_made), "%s/ashlar-test-XXXXXX", base ? base : "/tmp");
		CHECK(mkdtemp(dir_made));
	}
	return dir_made;
}

void test_expect_golden(const char *file, int line, const void *got, size_t n, const char *hex)
{
	const uint8_t *g = got;
	size_t i = 0;
	const char *p = hex;

	while (*p) {
		if (*p == '#') {
			while (*p && *p != '\n')
				p++;
		} else if (isspace((unsigned char)*p)) {
			p++;
		} else {
			unsigned byte;

			if (sscanf(p, "%2x", &byte) != 1)
				test_failed(file, line, "golden text is not hex at \"%.8s\"", p);
			if (i >= n || g[i] != byte) {
				for (size_t k = 0; k < n; k++)
					fprintf(stderr, "%02x%s", g[k], k % 32 == 31 ? "\n" : " ");
				test_failed(file, line, "golden byte %zu is %02x, got %02x (have %zu bytes)",
					    i, byte, i < n ? g[i] : 0, n);
			}
			i++;
			p += 2;
		}
	}
	if (i != n)
		test_failed(file, line, "golden text has %zu bytes, got %zu", i, n);
}

int main(int argc, char **argv)
{
	unsigned ran = 0;

	for (unsigned i = 0; i < test_count; i++) {
		if (argc > 1 && !strstr(tests[i].name, argv[1]))
			continue;
		printf("%s\n", tests[i].name);
		fflush(stdout);
		tests[i].fn();
		ran++;
	}
	printf("%u tests passed\n", ran);
	if (dir_made[0])
		nftw(dir_made, remove_one, 32, FTW_DEPTH | FTW_PHYS);
	return ran ? 0 : 1;
}
