/* SPDX-License-Identifier: Apache-2.0 */
/* The unit-test harness: TEST(suite, fact) registers itself; the program runs all tests, or those whose
 * "suite.fact" contains argv[1]. A failed EXPECT prints both sides and aborts the program. */
#pragma once

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/base/check.h"
#include "node/base/err.h"

void test_register(const char *name, void (*fn)(void));
_Noreturn void test_failed(const char *file, int line, const char *fmt, ...) PRINTF_LIKE(3, 4);

#define TEST(suite, fact)                                                                          \
	static void test_##suite##_##fact(void);                                                   \
	__attribute__((constructor)) static void register_##suite##_##fact(void)                   \
	{                                                                                          \
		test_register(#suite "." #fact, test_##suite##_##fact);                            \
	}                                                                                          \
	static void test_##suite##_##fact(void)

#define EXPECT(x)                                                                                  \
	do {                                                                                       \
		if (!(x))                                                                          \
			test_failed(__FILE__, __LINE__, "expected: %s", #x);                       \
	} while (0)
/* Asks every millisecond until it holds; a minute is too long. For what other threads and processes do and
 * tell nobody. */
#define EXPECT_SOON(x)                                                                             \
	do {                                                                                       \
		for (unsigned n_ = 0; !(x); n_++)                                                  \
			test_pause(__FILE__, __LINE__, n_, #x);                                    \
	} while (0)
void test_pause(const char *file, int line, unsigned times, const char *what);
#define EXPECT_EQ(a, b)                                                                            \
	do {                                                                                       \
		long long a_ = (long long)(a), b_ = (long long)(b);                                \
		if (a_ != b_)                                                                      \
			test_failed(__FILE__, __LINE__, "%s = %lld, expected %s = %lld", #a, a_,   \
				    #b, b_);                                                       \
	} while (0)
#define EXPECT_RC(call, code)                                                                      \
	do {                                                                                       \
		int rc_ = (call);                                                                  \
		if (rc_ != (code))                                                                 \
			test_failed(__FILE__, __LINE__, "%s = %s, expected %s", #call,             \
				    err_name(rc_), err_name(code));                                \
	} while (0)
#define EXPECT_OK(call) EXPECT_RC(call, 0)
#define EXPECT_STR(a, b)                                                                           \
	do {                                                                                       \
		const char *a_ = (a), *b_ = (b);                                                   \
		if (strcmp(a_, b_))                                                                \
			test_failed(__FILE__, __LINE__, "%s = \"%s\", expected \"%s\"", #a, a_, b_); \
	} while (0)
#define EXPECT_MEM(a, b, n) test_expect_mem(__FILE__, __LINE__, #a, (a), (b), (n))
void test_expect_mem(const char *file, int line, const char *what, const void *got, const void *want,
		     size_t n);

/* A fresh directory under TMPDIR (default /tmp), removed at exit of a passing program. */
const char *test_dir(void);
/* Golden bytes: compares with hex text, ignoring white space and "# comments". */
void test_expect_golden(const char *file, int line, const void *got, size_t n, const char *hex);
#define EXPECT_GOLDEN(got, n, hex) test_expect_golden(__FILE__, __LINE__, got, n, hex)
