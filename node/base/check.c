/* SPDX-License-Identifier: Apache-2.0 */
#include "node/base/check.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/base/log.h"

void check_failed(const char *expr, const char *file, int line, const char *func)
{
	log_write(LOG_ERROR, "check", "a program invariant does not hold; stopping",
		  "at=%s:%d func=%s expr=\"%s\"", file, line, func, expr);
	abort();
}

void free_ptr(void *pp)
{
	free(*(void **)pp);
}

void *xmalloc(size_t n)
{
	void *p = malloc(n ? n : 1);

	CHECK(p);
	return p;
}

void *xcalloc(size_t count, size_t size)
{
	void *p = calloc(count ? count : 1, size ? size : 1);

	CHECK(p);
	return p;
}

void *xrealloc(void *p, size_t n)
{
	p = realloc(p, n ? n : 1);
	CHECK(p);
	return p;
}

char *xstrdup(const char *s)
{
	char *p = strdup(s);

	CHECK(p);
	return p;
}

char *xasprintf(const char *fmt, ...)
{
	char *p;
	va_list ap;

	va_start(ap, fmt);
	CHECK(vasprintf(&p, fmt, ap) >= 0);
	va_end(ap);
	return p;
}

void *xalloc_aligned(size_t align, size_t n)
{
	void *p = NULL;

	CHECK(posix_memalign(&p, align, n) == 0);
	memset(p, 0, n);
	return p;
}
