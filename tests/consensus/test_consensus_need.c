/* SPDX-License-Identifier: Apache-2.0 */
/* Whole histories that go wrong as soon as one guard is off. The seeds were found by
 * `test_consensus_histories --off MASK`; a change of the simulation moves them, so a few more are
 * tried. The others' need is shown by the exact sequences of test_consensus_guards.c. */
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "node/base/log.h"
#include "tests/consensus/sim.h"
#include "tests/lib/test.h"

static struct sim sim;

/* The first seed of first … last whose history breaks a promise or crashes; 0: none. */
static uint64_t first_bad(uint32_t off, uint64_t first, uint64_t last)
{
	uint64_t *at =
		mmap(NULL, sizeof(*at), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	uint64_t bad;
	int status;
	pid_t pid;

	EXPECT(at != MAP_FAILED);
	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		close(2);
		log_set_level(LOG_ERROR + 1);
		consensus_guards_off = off;
		for (*at = first; *at <= last; ++*at)
			if (!sim_history(&sim, *at))
				_exit(1);
		_exit(0);
	}
	EXPECT(waitpid(pid, &status, 0) == pid);
	bad = WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : *at;
	munmap(at, sizeof(*at));
	return bad;
}

static void needs(uint32_t guard, uint64_t seed)
{
	uint64_t bad = first_bad(guard, seed, seed + 400);

	printf("  without it seed %llu goes wrong\n", (unsigned long long)bad);
	EXPECT(bad != 0);
	EXPECT_EQ(first_bad(0, bad, bad), 0);
}

TEST(need, r3)
{
	needs(GUARD_R3, 16);
}
TEST(need, x1)
{
	needs(GUARD_X1, 323);
}
TEST(need, x3)
{
	needs(GUARD_X3, 303);
}
TEST(need, x8a)
{
	needs(GUARD_X8A, 201);
}
TEST(need, cut)
{
	needs(GUARD_CUT, 641);
}
TEST(need, close)
{
	needs(GUARD_CLOSE, 1);
}
